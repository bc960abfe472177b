import { Agent, request as httpRequest, type IncomingMessage } from 'node:http';

/** A response as received: nothing is decoded, and no status is thrown. */
export interface Answer {
  readonly status: number;
  readonly reason: string;
  /** Lower-case names; a repeated header is joined as Node joins it. */
  readonly headers: Readonly<Record<string, string | undefined>>;
  /** Name, value, name, value, … in the order and letter case of the wire. */
  readonly rawHeaders: readonly string[];
  readonly body: Buffer;
}

export interface RequestOptions {
  readonly query?: Query;
  readonly headers?: Readonly<Record<string, string | string[]>>;
  readonly body?: Uint8Array | string;
  /** Aborting it closes the connection immediately, as a client that disconnects. */
  readonly signal?: AbortSignal;
}

/** Values are percent-encoded; an array repeats the parameter; undefined omits it. */
export type Query = Readonly<Record<string, string | number | boolean | readonly string[] | undefined>>;

export interface InsertOptions extends RequestOptions {
  readonly contentType?: string;
  readonly mature?: number;
  readonly delay?: number;
  readonly tries?: number;
  readonly groups?: string;
}

export interface GetOptions extends RequestOptions {
  readonly to?: number;
  readonly tid?: string;
  readonly group?: string;
  readonly lease?: number;
}

export interface SettleOptions extends RequestOptions {
  readonly token?: string;
  readonly group?: string;
  readonly delay?: number;
  readonly lease?: number;
}

export interface ClientOptions {
  /** Such as `http://127.0.0.1:3444`; a function is called at every request (for a server whose port changes). */
  readonly url: string | (() => string);
  /** `name:password`; null sends no credentials. */
  readonly credentials?: string | null;
  /** Maximum number of connections; default: as many as there are concurrent requests. */
  readonly maxSockets?: number;
}

/**
 * One user of the HTTP interface, over keep-alive connections. Names are percent-encoded here; `request` sends a path
 * as it is. Promises are rejected only if no complete response arrived.
 */
export class QueueClient {
  readonly #agent: Agent;
  readonly #url: () => string;
  readonly #authorization: string | null;

  constructor(options: ClientOptions) {
    const { url, credentials = 'test1:test1' } = options;
    this.#url = typeof url === 'function' ? url : () => url;
    this.#agent = new Agent({ keepAlive: true, maxSockets: options.maxSockets ?? Number.POSITIVE_INFINITY });
    this.#authorization =
      credentials === null ? null : `Basic ${Buffer.from(credentials).toString('base64')}`;
  }

  /** Closes every connection, including those of pending requests. */
  close(): void {
    this.#agent.destroy();
  }

  insert(ns: string, queue: string, body: Uint8Array | string, options: InsertOptions = {}): Promise<Answer> {
    const { contentType, mature, delay, tries, groups, ...rest } = options;
    const headers = {
      ...(contentType === undefined ? {} : { 'content-type': contentType }),
      ...rest.headers,
    };
    const query = { mature, delay, tries, groups, ...rest.query };
    return this.request('PUT', queuePath(ns, queue), { ...rest, headers, query, body });
  }

  /** Inserts many elements, one per line: an object becomes JSON, a string is sent as it is. */
  insertLines(
    ns: string,
    queue: string,
    lines: readonly (object | string)[],
    options: RequestOptions = {},
  ): Promise<Answer> {
    const body = lines.map((line) => `${typeof line === 'string' ? line : JSON.stringify(line)}\n`).join('');
    return this.insertMany(ns, queue, body, 'application/x-ndjson', options);
  }

  /** Inserts many elements with a body of any format. */
  insertMany(
    ns: string,
    queue: string,
    body: Uint8Array | string,
    contentType: string,
    options: RequestOptions = {},
  ): Promise<Answer> {
    const headers = { 'content-type': contentType, ...options.headers };
    return this.request('POST', `${queuePath(ns, queue)}/elements`, { ...options, headers, body });
  }

  settleMany(ns: string, queue: string, body: object, options: RequestOptions = {}): Promise<Answer> {
    const headers = { 'content-type': 'application/json', ...options.headers };
    const path = `${queuePath(ns, queue)}/settle`;
    return this.request('POST', path, { ...options, headers, body: JSON.stringify(body) });
  }

  get(ns: string, queue: string, options: GetOptions = {}): Promise<Answer> {
    const { to, tid, group, lease, ...rest } = options;
    return this.request('GET', queuePath(ns, queue), {
      ...rest,
      query: { to, tid, group, lease, ...rest.query },
    });
  }

  reserve(ns: string, queue: string, options: GetOptions = {}): Promise<Answer> {
    return this.get(ns, queue, { ...options, query: { reserve: '1', ...options.query } });
  }

  commit(ns: string, queue: string, id: string, options: SettleOptions = {}): Promise<Answer> {
    return this.#settle('commit', ns, queue, id, options);
  }

  release(ns: string, queue: string, id: string, options: SettleOptions = {}): Promise<Answer> {
    return this.#settle('release', ns, queue, id, options);
  }

  rollback(ns: string, queue: string, id: string, options: SettleOptions = {}): Promise<Answer> {
    return this.#settle('rollback', ns, queue, id, options);
  }

  extend(ns: string, queue: string, id: string, options: SettleOptions = {}): Promise<Answer> {
    return this.#settle('extend', ns, queue, id, options);
  }

  remove(ns: string, queue: string, id: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('DELETE', `${queuePath(ns, queue)}/${encodeURIComponent(id)}`, options);
  }

  status(ns: string, queue: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('GET', `${queuePath(ns, queue)}/status`, options);
  }

  consumers(ns: string, queue: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('GET', `${queuePath(ns, queue)}/consumers`, options);
  }

  cancel(ns: string, queue: string, tid: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('DELETE', `${queuePath(ns, queue)}/consumer/${encodeURIComponent(tid)}`, options);
  }

  pause(ns: string, queue: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('PATCH', `${queuePath(ns, queue)}/pause`, options);
  }

  resume(ns: string, queue: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('PATCH', `${queuePath(ns, queue)}/resume`, options);
  }

  paused(ns: string, queue: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('GET', `${queuePath(ns, queue)}/paused`, options);
  }

  options(ns: string, queue: string): Promise<Answer> {
    return this.request('GET', `${queuePath(ns, queue)}/options`);
  }

  setOptions(ns: string, queue: string, options: unknown): Promise<Answer> {
    const headers = { 'content-type': 'application/json' };
    const body = JSON.stringify(options);
    return this.request('PUT', `${queuePath(ns, queue)}/options`, { headers, body });
  }

  removeOptions(ns: string, queue: string): Promise<Answer> {
    return this.request('DELETE', `${queuePath(ns, queue)}/options`);
  }

  namespaces(options: RequestOptions = {}): Promise<Answer> {
    return this.request('GET', '/q', options);
  }

  queues(ns: string, options: RequestOptions = {}): Promise<Answer> {
    return this.request('GET', `/q/${encodeURIComponent(ns)}`, options);
  }

  request(method: string, path: string, options: RequestOptions = {}): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const { hostname, port } = new URL(this.#url());
    const headers: Record<string, string | string[]> = { ...options.headers };
    if (this.#authorization !== null && headers.authorization === undefined) {
      headers.authorization = this.#authorization;
    }
    const body = typeof options.body === 'string' ? Buffer.from(options.body) : options.body;
    if (body !== undefined) headers['content-length'] = String(body.length);
    const outgoing = httpRequest({
      agent: this.#agent,
      host: hostname,
      port,
      method,
      path: path + queryString(options.query ?? {}),
      headers,
      ...(options.signal === undefined ? {} : { signal: options.signal }),
    });
    outgoing.on('error', reject);
    outgoing.on('response', (incoming) => readAnswer(incoming).then(resolve, reject));
    outgoing.end(body);
    return promise;
  }

  #settle(verb: string, ns: string, queue: string, id: string, options: SettleOptions): Promise<Answer> {
    const { token, group, delay, lease, ...rest } = options;
    const query = { token, group, delay, lease, ...rest.query };
    return this.request('PATCH', `${queuePath(ns, queue)}/${verb}/${encodeURIComponent(id)}`, {
      ...rest,
      query,
    });
  }
}

/** Returns the path of a queue, with percent-encoded names. */
export function queuePath(ns: string, queue: string): string {
  return `/q/${encodeURIComponent(ns)}/${encodeURIComponent(queue)}`;
}

/** Parses the body as JSON; its shape is not checked. @throws SyntaxError if it is not JSON */
export function jsonOf<T>(answer: Answer): T {
  return JSON.parse(answer.body.toString('utf8')) as T;
}

/** Returns the element headers of a response, without their prefix. */
export function elementHeadersOf(answer: Answer): Map<string, string> {
  const found = new Map<string, string>();
  for (let at = 0; at + 1 < answer.rawHeaders.length; at += 2) {
    const name = (answer.rawHeaders[at] ?? '').toLowerCase();
    if (name.startsWith('x-ks-hdr-'))
      found.set(name.slice('x-ks-hdr-'.length), answer.rawHeaders[at + 1] ?? '');
  }
  return found;
}

/** Returns a header that must exist. @throws Error with the status and the body if it does not */
export function headerOf(answer: Answer, name: string): string {
  const value = answer.headers[name];
  if (value === undefined) {
    throw new Error(`The answer (${answer.status} ${answer.reason}) has no header ${name}: ${answer.body}`);
  }
  return value;
}

function queryString(query: Query): string {
  const parts: string[] = [];
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) {
      parts.push(`${encodeURIComponent(name)}=${encodeURIComponent(String(one))}`);
    }
  }
  return parts.length === 0 ? '' : `?${parts.join('&')}`;
}

async function readAnswer(incoming: IncomingMessage): Promise<Answer> {
  const chunks: Buffer[] = [];
  for await (const chunk of incoming) chunks.push(chunk);
  return {
    status: incoming.statusCode ?? 0,
    reason: incoming.statusMessage ?? '',
    headers: incoming.headers as Record<string, string | undefined>,
    rawHeaders: incoming.rawHeaders,
    body: Buffer.concat(chunks),
  };
}
