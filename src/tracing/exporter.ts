import { Backoff } from '../util/backoff.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { Fifo } from '../util/fifo.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import type { Service } from '../util/service.ts';
import { Collector, type CollectorAddress, CollectorError } from './collector.ts';
import { exportRequest, rejectedSpans, type TracedResource } from './otlp.ts';
import type { Span } from './span.ts';

interface ExporterOptions {
  readonly collector: CollectorAddress;
  readonly resource: TracedResource;
  /** Spans that wait to be sent; further ones are dropped. */
  readonly maxQueue: number;
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: {
    info(fields: object, message: string): void;
    warn(fields: object, message: string): void;
  };
}

/** What became of spans since the start. */
export interface SpanCounts {
  exported: number;
  /** The queue was full. */
  dropped: number;
  /** The collector rejected them, or was unavailable for too long. */
  failed: number;
}

/** Spans of one request. */
const BATCH = 512;
/** The first span of a batch waits this long for others. */
const GATHER_MS = 1_000;
const REQUEST_MS = 10_000;
/** After so many failed requests in a row the spans of the batch are given up; newer ones tell more. */
const MAX_ATTEMPTS = 5;
const BETWEEN_ATTEMPTS = { minMs: 500, maxMs: 8_000 };
const MAX_RETRY_AFTER_MS = 30_000;
/** What is left at a stop is sent within this time, or is lost. */
const STOP_MS = 2_000;
/** The OTLP specification names these; all others would be answered the same again. */
const RETRYABLE: ReadonlySet<number> = new Set([429, 502, 503, 504]);

/** Sends spans to a collector, in batches, from a bounded queue. A span is never waited for. */
export class SpanExporter implements Service {
  readonly counts: SpanCounts = { exported: 0, dropped: 0, failed: 0 };
  readonly #options: ExporterOptions;
  readonly #collector: Collector;
  readonly #backoff: Backoff;
  readonly #queue = new Fifo<Span>();
  readonly #outcome: LogOnChange;
  readonly #stop = new AbortController();
  #cancelTimer: CancelTimer | null = null;
  /** Ends the wait for the next attempt. */
  #endWait: () => void = () => {};
  #sending: Promise<void> | null = null;
  #stopping: Promise<void> | null = null;

  constructor(options: ExporterOptions) {
    this.#options = options;
    const { log, random, collector } = options;
    this.#collector = new Collector(collector);
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
    this.#endWait();
    do {
      this.#send();
      await this.#sending;
    } while (this.#queue.length > 0);
    cancel();
    this.#collector.close();
  }

  /** A full batch is sent now, a smaller one when others had time to come. */
  #schedule(): void {
    if (this.#queue.length >= BATCH) this.#send();
    else this.#cancelTimer ??= this.#options.clock.after(GATHER_MS, () => this.#send());
  }

  #send(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#sending ??= this.#sendAll().finally(() => {
      this.#sending = null;
      // A span may have come after the last look at the queue.
      if (this.#queue.length > 0 && this.#stopping === null) this.#schedule();
    });
  }

  async #sendAll(): Promise<void> {
    while (this.#queue.length > 0) {
      const batch: Span[] = [];
      while (batch.length < BATCH && this.#queue.length > 0) batch.push(this.#queue.shift() as Span);
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

  async #post(body: string): Promise<string> {
    const late = new AbortController();
    const cancel = this.#options.clock.after(REQUEST_MS, () => late.abort());
    try {
      return await this.#collector.post(body, AbortSignal.any([late.signal, this.#stop.signal]));
    } finally {
      cancel();
    }
  }

  /** Until the next attempt, or a stop. */
  async #wait(error: unknown): Promise<void> {
    this.#backoff.noteFailure();
    const asked = error instanceof CollectorError ? (error.retryAfterMs ?? 0) : 0;
    const { promise, resolve } = Promise.withResolvers<void>();
    const delayMs = Math.max(this.#backoff.delayMs(), Math.min(asked, MAX_RETRY_AFTER_MS));
    const cancel = this.#options.clock.after(delayMs, resolve);
    this.#endWait = resolve;
    await promise;
    cancel();
  }
}
