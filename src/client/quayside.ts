import {
  type Codec,
  checkedBy,
  dataCodecOf,
  JSON_DATA,
  type SchemaInput,
  type SchemaOutput,
  type StandardSchema,
} from './codec.ts';
import { invalid, QuaysideError, quoted, roundedMs } from './errors.ts';
import type { ClientOptions, RawResponse, RequestMethod, RequestOptions, StreamOptions } from './options.ts';
import { Queue } from './queue.ts';
import { Tracing } from './tracing.ts';
import { type ClientRequest, Transport } from './transport.ts';
import { QueueWire } from './wire.ts';

/** Namespace and queue, such as `N/orders`. What follows the first `/` is the queue's name. */
export type Name = `${string}/${string}`;

/** Maximum cached queues. Above it, the cache is cleared; existing `Queue` objects keep theirs. */
const MAX_WIRES = 1_000;

/** A client of one server, or of several nodes behind one address. */
export class Quayside implements AsyncDisposable {
  readonly #transport: Transport;
  readonly #tracing: Tracing;
  readonly #wires = new Map<string, QueueWire>();

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
    this.#tracing = new Tracing(options.tracing);
  }

  /**
   * Returns a queue whose data are JSON or bytes. Sends no request, and creates nothing on the server. A `schema`
   * checks and types the data; a `codec` replaces JSON.
   * @throws QuaysideError `invalid-name`
   */
  queue(name: Name): Queue<unknown>;
  queue<S extends StandardSchema>(name: Name, options: { schema: S }): Queue<SchemaOutput<S>, SchemaInput<S>>;
  queue<T>(name: Name, options: { codec: Codec<T> }): Queue<T>;
  queue<T, In>(name: Name, options: { schema?: StandardSchema; codec?: Codec<T> } = {}): Queue<T, In> {
    const { schema, codec } = options;
    return new Queue({
      name,
      wire: this.#wireOf(name),
      tracing: this.#tracing,
      codec: schema !== undefined ? checkedBy(schema) : codec !== undefined ? dataCodecOf(codec) : JSON_DATA,
    });
  }

  /**
   * Sends any request of the HTTP interface. Reads are repeated after an unknown outcome; other requests only if
   * `isRepeatable` is true.
   */
  async request(method: RequestMethod, path: string, options: RequestOptions = {}): Promise<RawResponse> {
    this.#transport.checkOpen();
    return this.#transport.send(clientRequest(method, path, options));
  }

  /** Like `request`, but streams the response or the body. Sends one attempt. */
  async stream(method: RequestMethod, path: string, options: StreamOptions = {}): Promise<Response> {
    this.#transport.checkOpen();
    return this.#transport.stream(clientRequest(method, path, options));
  }

  /** Waits for inserts and settlements in flight, then ends all other calls with `StoppedError`. */
  close(): Promise<void> {
    return this.#transport.close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #wireOf(name: Name): QueueWire {
    const known = this.#wires.get(name);
    if (known) return known;
    if (this.#wires.size >= MAX_WIRES) this.#wires.clear();
    const wire = new QueueWire(this.#transport, pathOf(name));
    this.#wires.set(name, wire);
    return wire;
  }
}

/** Paths whose GET takes an element: queues. */
const TAKES = /^\/q(\/[^/?]+){2}(\?|$)/;

function clientRequest<Body>(
  method: RequestMethod,
  path: string,
  options: Omit<RequestOptions, 'body'> & { readonly body?: Body | undefined },
): ClientRequest<Body> {
  roundedMs('waitMs', options.waitMs);
  if (!path.startsWith('/')) throw invalid(`The path ${quoted(path)} does not begin with "/".`);
  const isRead = method === 'GET' && !TAKES.test(path);
  return { ...options, method, path, isRepeatable: options.isRepeatable ?? isRead, options };
}

/** Rejects `.` and `..`, which URL parsers resolve as path segments even if they are encoded. */
const QUEUE_NAME = /^(?!\.\.?\/)([^/]+)\/(?!\.\.?$)(.+)$/s;

/** Returns the path of the queue `namespace/queue`. @throws QuaysideError `invalid-name` */
export function pathOf(name: string): string {
  const [, ...parts] = QUEUE_NAME.exec(name) ?? [];
  if (!parts[0] || !name.isWellFormed()) {
    const allowed = 'Allowed: "namespace/queue", neither "." nor ".."';
    throw new QuaysideError('invalid-name', `${quoted(name)} is not a queue. ${allowed}.`);
  }
  return `/q/${parts.map(encodeURIComponent).join('/')}`;
}
