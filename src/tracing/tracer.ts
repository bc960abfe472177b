import { AsyncLocalStorage } from 'node:async_hooks';
import type { Clock } from '../util/clock.ts';
import { Span, type SpanKind } from './span.ts';
import { type TraceContext, TraceIds } from './trace-context.ts';

interface TracerOptions {
  readonly clock: Clock;
  /** The share of the traces that begin here which is recorded, 0 to 1. A trace that began elsewhere is recorded as its parent says. */
  readonly ratio: number;
  /** Takes a recorded span that has ended. */
  readonly onEnd: (span: Span) => void;
}

/** What is known of a span when it begins. */
export interface BeginOptions {
  readonly name: string;
  readonly kind: SpanKind;
  /** Null: it begins a trace. */
  readonly parent: TraceContext | null;
  /** For a span that begins a trace: spans that it is linked with. It is recorded if one of them is, or by the ratio. */
  readonly linked?: readonly TraceContext[];
  /** As `now()` returned it; not given: now. */
  readonly startedAt?: number;
}

/** Of a trace id, as many hexadecimal digits as a number holds exactly. */
const RATIO_DIGITS = 13;
const RATIO_RANGE = 16 ** RATIO_DIGITS;

/** Makes spans, decides which are recorded, and knows the one within which code runs. */
export class Tracer {
  readonly #clock: Clock;
  readonly #threshold: number;
  readonly #onEnd: (span: Span) => void;
  readonly #ids = new TraceIds();
  readonly #current = new AsyncLocalStorage<Span>();
  readonly #epoch: number;

  constructor({ clock, ratio, onEnd }: TracerOptions) {
    this.#clock = clock;
    this.#threshold = ratio * RATIO_RANGE;
    this.#onEnd = onEnd;
    this.#epoch = clock.now() - clock.monotonic();
  }

  /** Ms since 1970 with a fraction. Never goes back, so that a span within another one is shown within it. */
  now(): number {
    return this.#epoch + this.#clock.monotonic();
  }

  /**
   * The span within which this code runs; null if there is none. One that has ended does not count: a timer that was set
   * within it belongs to whatever it serves later.
   */
  get current(): Span | null {
    const span = this.#current.getStore();
    return span === undefined || span.endedAt !== null ? null : span;
  }

  begin({ name, kind, parent, linked = [], startedAt = this.now() }: BeginOptions): Span {
    const traceId = parent?.traceId ?? this.#ids.trace();
    const isSampled =
      parent?.isSampled ?? (linked.some((context) => context.isSampled) || this.#isInRatio(traceId));
    const context = { traceId, spanId: this.#ids.span(), isSampled };
    const span = new Span({ name, kind, context, parentId: parent?.spanId ?? null, startedAt });
    for (const other of linked) span.link(other);
    return span;
  }

  /** Runs code, and what it starts, within a span. */
  within(span: Span, run: () => void): void {
    this.#current.run(span, run);
  }

  end(span: Span): void {
    span.end(this.now());
    if (span.isRecorded) this.#onEnd(span);
  }

  /** By the end of the id, which is random in each trace; all nodes with one ratio decide alike. */
  #isInRatio(traceId: string): boolean {
    return Number.parseInt(traceId.slice(-RATIO_DIGITS), 16) < this.#threshold;
  }
}
