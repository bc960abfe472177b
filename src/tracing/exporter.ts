import { Backoff } from '../util/backoff.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { Fifo } from '../util/fifo.ts';
import type { EventLog } from '../util/log.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { Pause } from '../util/pause.ts';
import type { Service } from '../util/service.ts';
import { type AttributeValue, SPAN_KINDS, type Span } from './tracer.ts';

interface ExporterOptions {
  readonly collector: CollectorAddress;
  readonly resource: TracedResource;
  /** Maximum number of spans that wait to be sent; further ones are dropped. */
  readonly maxQueue: number;
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: EventLog;
}

/** Spans since the start, by outcome. */
export interface SpanCounts {
  exported: number;
  /** The queue was full. */
  dropped: number;
  /** The collector rejected them, or was unavailable for too long. */
  failed: number;
}

/** Maximum number of spans in one request. */
const MAX_BATCH_SPANS = 512;
/** The first span of a batch waits this long for others. */
const BATCH_WAIT_MS = 1_000;
const REQUEST_MS = 10_000;
/** After this many failed requests in a row, the spans of a batch are discarded: newer ones are more useful. */
const MAX_ATTEMPTS = 5;
const BETWEEN_ATTEMPTS = { minMs: 500, maxMs: 8_000 };
const MAX_RETRY_AFTER_MS = 30_000;
/** At a stop, the remaining spans are sent within this time or lost. */
const STOP_MS = 2_000;
/** By the OTLP specification, only requests with these status codes are repeated. */
const RETRYABLE: ReadonlySet<number> = new Set([429, 502, 503, 504]);

/** Sends spans to a collector, in batches, from a bounded queue. Requests never wait for it. */
export class SpanExporter implements Service {
  readonly counts: SpanCounts = { exported: 0, dropped: 0, failed: 0 };
  readonly #options: ExporterOptions;
  readonly #backoff: Backoff;
  readonly #queue = new Fifo<Span>();
  readonly #outcome: LogOnChange;
  readonly #stop = new AbortController();
  #cancelTimer: CancelTimer | null = null;
  /** The wait between two attempts. */
  readonly #pause: Pause;
  #sending: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;

  constructor(options: ExporterOptions) {
    this.#options = options;
    const { log, random, clock } = options;
    this.#pause = new Pause(clock);
    this.#backoff = new Backoff(random, BETWEEN_ATTEMPTS);
    this.#outcome = new LogOnChange({
      failed: (err) => log.warn({ event: 'tracing', err }, 'spans could not be sent to the collector'),
      worksAgain: () => log.info({ event: 'tracing' }, 'spans reach the collector again'),
    });
  }

  async start(): Promise<void> {}

  add(span: Span): void {
    if (this.#stopping !== null || this.#queue.length >= this.#options.maxQueue) {
      this.counts.dropped += 1;
      return;
    }
    this.#queue.push(span);
    if (this.#sending === null) this.#schedule();
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#finish();
    return this.#stopping;
  }

  async #finish(): Promise<void> {
    const cancel = this.#options.clock.after(STOP_MS, () => this.#stop.abort());
    this.#pause.end();
    do {
      this.#send();
      await this.#sending;
    } while (this.#queue.length > 0);
    cancel();
  }

  /** Sends a full batch now, a smaller one after {@link BATCH_WAIT_MS}. */
  #schedule(): void {
    if (this.#queue.length >= MAX_BATCH_SPANS) this.#send();
    else this.#cancelTimer ??= this.#options.clock.after(BATCH_WAIT_MS, () => this.#send());
  }

  #send(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = null;
      // A span may have been added after the last check of the queue.
      if (this.#queue.length > 0 && this.#stopping === null) this.#schedule();
    });
  }

  async #sendAll(): Promise<void> {
    while (this.#queue.length > 0) {
      const batch: Span[] = [];
      while (batch.length < MAX_BATCH_SPANS && this.#queue.length > 0)
        batch.push(this.#queue.shift() as Span);
      await this.#sendBatch(batch);
    }
  }

  async #sendBatch(batch: readonly Span[]): Promise<void> {
    const body = exportRequest(batch, this.#options.resource);
    for (let attempt = 1; ; attempt += 1) {
      try {
        const rejected = Math.min(rejectedSpans(await this.#post(body)), batch.length);
        this.counts.exported += batch.length - rejected;
        this.counts.failed += rejected;
        this.#backoff.reset();
        this.#outcome.worked();
        return;
      } catch (error) {
        this.#outcome.failed(error);
        const isFinal = error instanceof CollectorError && !RETRYABLE.has(error.status);
        if (isFinal || attempt === MAX_ATTEMPTS || this.#stopping !== null) {
          this.counts.failed += batch.length;
          return;
        }
        await this.#wait(error);
      }
    }
  }

  /** Returns the body of the response. @throws CollectorError, and Error if there is no response */
  async #post(body: string): Promise<string> {
    const { collector, clock } = this.#options;
    const timeout = new AbortController();
    const cancel = clock.after(REQUEST_MS, () => timeout.abort());
    try {
      const response = await fetch(collector.url, {
        method: 'POST',
        headers: { ...collector.headers, 'content-type': 'application/json' },
        body,
        redirect: 'manual',
        signal: AbortSignal.any([timeout.signal, this.#stop.signal]),
      });
      const responseBody = await response.text();
      if (response.status !== 200) throw new CollectorError(response);
      return responseBody;
    } finally {
      cancel();
    }
  }

  /** Waits until the next attempt or a stop. */
  #wait(error: unknown): Promise<void> {
    this.#backoff.noteFailure();
    const requestedMs = error instanceof CollectorError ? (error.retryAfterMs ?? 0) : 0;
    return this.#pause.wait(Math.max(this.#backoff.delayMs(), Math.min(requestedMs, MAX_RETRY_AFTER_MS)));
  }
}

/** Where spans are sent to. */
export interface CollectorAddress {
  readonly url: URL;
  /** Sent with each request, such as a token. */
  readonly headers: Readonly<Record<string, string>>;
}

/** A response that is not a success. */
class CollectorError extends Error {
  readonly status: number;
  /** The delay of its `Retry-After` header; null if there is none. */
  readonly retryAfterMs: number | null;

  constructor({ status, headers }: Response) {
    super(`the collector answered with status ${status}`);
    this.status = status;
    const seconds = Number(headers.get('retry-after') ?? Number.NaN);
    this.retryAfterMs = seconds >= 0 ? seconds * 1000 : null;
  }
}

/** The resource to which the spans belong, in the sense of OpenTelemetry. */
interface TracedResource {
  readonly attributes: Readonly<Record<string, AttributeValue>>;
  /** Version of the program. */
  readonly version: string;
}

const SCOPE = 'quayside';
const STATUS_ERROR = 2;

/** The body of a request to `/v1/traces` (OTLP/HTTP, JSON encoding). */
function exportRequest(spans: readonly Span[], { attributes, version }: TracedResource): string {
  return JSON.stringify({
    resourceSpans: [
      {
        resource: { attributes: keyValues(Object.entries(attributes)) },
        scopeSpans: [{ scope: { name: SCOPE, version }, spans: spans.map(spanRecord) }],
      },
    ],
  });
}

/** The number of spans that the collector rejected, from the body of a success response; 0 if it has no number. */
function rejectedSpans(responseBody: string): number {
  const reply = parsedJson(responseBody) as
    | { partialSuccess?: { rejectedSpans?: unknown } }
    | null
    | undefined;
  const count = Number(reply?.partialSuccess?.rejectedSpans ?? 0);
  return Number.isSafeInteger(count) && count > 0 ? count : 0;
}

function spanRecord(span: Span): object {
  const { context, parentId, links, error } = span;
  return {
    traceId: context.traceId,
    spanId: context.spanId,
    ...(parentId !== null && { parentSpanId: parentId }),
    name: span.name,
    kind: SPAN_KINDS[span.kind],
    startTimeUnixNano: nanoseconds(span.startedAt),
    endTimeUnixNano: nanoseconds(span.endedAt ?? span.startedAt),
    attributes: keyValues(span.attributes),
    ...(links.length > 0 && { links: links.map(({ traceId, spanId }) => ({ traceId, spanId })) }),
    ...(error !== null && { status: { code: STATUS_ERROR, message: error } }),
  };
}

/** Formats ms as nanoseconds. Since 1970, those exceed the range of exact numbers; microseconds do not. */
function nanoseconds(ms: number): string {
  return `${Math.round(ms * 1000)}000`;
}

function keyValues(attributes: Iterable<readonly [string, AttributeValue]>): object[] {
  return Array.from(attributes, ([key, value]) => ({ key, value: anyValue(value) }));
}

function anyValue(value: AttributeValue): object {
  if (typeof value === 'string') return { stringValue: value };
  return Number.isInteger(value) ? { intValue: String(value) } : { doubleValue: value };
}
