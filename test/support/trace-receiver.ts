import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';

/** A span of OTLP/HTTP in JSON, with attributes by name. */
export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string | null;
  readonly name: string;
  readonly kind: number;
  readonly attributes: Readonly<Record<string, string | number>>;
  readonly links: readonly { readonly traceId: string; readonly spanId: string }[];
  readonly status: { readonly code: number; readonly message: string } | null;
  readonly resource: Readonly<Record<string, string | number>>;
}

interface Reply {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: object;
}

type KeyValues = readonly {
  readonly key: string;
  readonly value: {
    readonly stringValue?: string;
    readonly intValue?: string;
    readonly doubleValue?: number;
  };
}[];

interface TraceBody {
  readonly resourceSpans: readonly {
    readonly resource: { readonly attributes: KeyValues };
    readonly scopeSpans: readonly { readonly spans: readonly Readonly<Record<string, unknown>>[] }[];
  }[];
}

/** An OTLP/HTTP collector: accepts `POST /v1/traces`, checks the format of each span and stores it. */
export class TraceReceiver {
  readonly spans: ReceivedSpan[] = [];
  readonly requests: IncomingHttpHeaders[] = [];
  /** Replies to the next requests; success if it is empty. */
  readonly replies: Reply[] = [];
  readonly #server: Server;
  #arrived = Promise.withResolvers<void>();

  private constructor() {
    this.#server = createServer(async (request, response) => {
      const body = (await json(request)) as TraceBody;
      this.requests.push(request.headers);
      assert.deepEqual([request.method, request.url], ['POST', '/v1/traces']);
      assert.equal(request.headers['content-type'], 'application/json');
      const { status, headers = {}, body: reply = {} } = this.replies.shift() ?? { status: 200 };
      if (status === 200) this.spans.push(...body.resourceSpans.flatMap(spansOf));
      response.writeHead(status, { 'content-type': 'application/json', ...headers });
      response.end(JSON.stringify(reply));
      this.#arrived.resolve();
      this.#arrived = Promise.withResolvers();
    });
  }

  static async start(port = 0): Promise<TraceReceiver> {
    const receiver = new TraceReceiver();
    receiver.#server.listen(port, '127.0.0.1');
    await once(receiver.#server, 'listening');
    return receiver;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  /** Resolves when `count` requests have arrived in total. */
  async requested(count: number): Promise<void> {
    while (this.requests.length < count) await this.#arrived.promise;
  }

  /** Returns the first received span that matches. */
  received(fits: (span: ReceivedSpan) => boolean): ReceivedSpan {
    const found = this.spans.find(fits);
    assert.ok(found, `no span fits among ${this.spans.map(({ name }) => name).join(', ')}`);
    return found;
  }

  /** Resolves with the first span that matches, once it has arrived. */
  async span(fits: (span: ReceivedSpan) => boolean): Promise<ReceivedSpan> {
    for (;;) {
      const found = this.spans.find(fits);
      if (found !== undefined) return found;
      await this.#arrived.promise;
    }
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}

function spansOf({ resource, scopeSpans }: TraceBody['resourceSpans'][number]): ReceivedSpan[] {
  const attributes = valuesOf(resource.attributes);
  return scopeSpans.flatMap(({ spans }) => spans.map((span) => spanOf(span, attributes)));
}

function spanOf(span: Readonly<Record<string, unknown>>, resource: ReceivedSpan['resource']): ReceivedSpan {
  const { traceId, spanId, parentSpanId = null, name, kind, links = [], status = null } = span;
  assert.match(traceId as string, /^(?!0+$)[0-9a-f]{32}$/);
  assert.match(spanId as string, /^(?!0+$)[0-9a-f]{16}$/);
  if (parentSpanId !== null) assert.match(parentSpanId as string, /^[0-9a-f]{16}$/);
  const [startedAt, endedAt] = [span.startTimeUnixNano, span.endTimeUnixNano] as [string, string];
  assert.match(startedAt, /^\d{19}$/);
  assert.ok(BigInt(endedAt) >= BigInt(startedAt), `${name} ends at ${endedAt}, before ${startedAt}`);
  const attributes = valuesOf(span.attributes as KeyValues);
  return { traceId, spanId, parentSpanId, name, kind, links, status, attributes, resource } as ReceivedSpan;
}

function valuesOf(pairs: KeyValues): Record<string, string | number> {
  return Object.fromEntries(
    pairs.map(({ key, value: { stringValue, intValue, doubleValue } }) => {
      const value = stringValue ?? doubleValue ?? Number(intValue);
      assert.ok(value !== undefined && !Number.isNaN(value), `${key} has no value`);
      return [key, value];
    }),
  );
}
