import { AsyncLocalStorage } from 'node:async_hooks';
import { randomFillSync } from 'node:crypto';
import type { ElementHeaders } from '../model/element.ts';
import { headerOf } from '../model/headers.ts';
import type { Clock } from '../util/clock.ts';
import { ownString } from '../util/own-bytes.ts';

interface TracerOptions {
  readonly clock: Clock;
  /**
   * The share of the traces that begin here which is recorded, 0 to 1. A trace that began elsewhere is recorded as its
   * parent says.
   */
  readonly ratio: number;
  /** Takes a recorded span that has ended. */
  readonly onEnd: (span: Span) => void;
}

/** What is known of a span when it begins. */
interface BeginOptions {
  readonly name: string;
  readonly kind: SpanKind;
  /** Null: it begins a trace. */
  readonly parent: TraceContext | null;
  /**
   * For a span that begins a trace: spans that it is linked with. It is recorded if one of them is, or by the ratio.
   */
  readonly linked?: readonly TraceContext[];
  /** As `now()` returned it; not given: now. */
  readonly startedAt?: number;
}

/** Of a trace id, as many hexadecimal digits as a number holds exactly. */
const RATIO_DIGITS = 13;
const RATIO_RANGE = 16 ** RATIO_DIGITS;
/** The time of spans may differ by this much from the wall clock, which a time server moves in smaller steps. */
const MAX_DRIFT_MS = 1_000;

/** Makes spans, decides which are recorded, and knows the one within which code runs. */
export class Tracer {
  readonly #clock: Clock;
  readonly #threshold: number;
  readonly #onEnd: (span: Span) => void;
  readonly #ids = new TraceIds();
  readonly #current = new AsyncLocalStorage<Span>();
  /** Wall time at which the monotonic clock began. */
  #epoch: number;

  constructor({ clock, ratio, onEnd }: TracerOptions) {
    this.#clock = clock;
    this.#threshold = ratio * RATIO_RANGE;
    this.#onEnd = onEnd;
    this.#epoch = clock.now() - clock.monotonic();
  }

  /**
   * Ms since 1970 with a fraction, by the monotonic clock, so that a span within another one is shown within it. If the
   * wall clock was set, or the machine slept, which the monotonic clock does not count, it begins again from the wall
   * clock: else all later spans would have a wrong time.
   */
  now(): number {
    const monotonic = this.#clock.monotonic();
    const epoch = this.#clock.now() - monotonic;
    if (Math.abs(epoch - this.#epoch) > MAX_DRIFT_MS) this.#epoch = epoch;
    return this.#epoch + monotonic;
  }

  /**
   * The span within which this code runs; null if there is none. One that has ended does not count: a timer that was
   * set within it belongs to whatever it serves later.
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

/** As OTLP numbers them. */
export const SPAN_KINDS = { internal: 1, server: 2 } as const;
type SpanKind = keyof typeof SPAN_KINDS;

export type AttributeValue = string | number;

/** Further links of a span are left out: a take of many may return thousands of elements. */
const MAX_LINKS = 128;

/** How a span begins. */
interface SpanStart {
  readonly name: string;
  readonly kind: SpanKind;
  readonly context: TraceContext;
  /** The id of its parent; null for the first span of a trace. */
  readonly parentId: string | null;
  /** On the tracer's clock, ms since 1970 with a fraction. */
  readonly startedAt: number;
}

/**
 * A piece of work that takes time. One that is not sampled is kept only so that the work within it is not sampled
 * either.
 */
export class Span {
  readonly kind: SpanKind;
  readonly context: TraceContext;
  readonly parentId: string | null;
  readonly startedAt: number;
  readonly attributes = new Map<string, AttributeValue>();
  readonly links: TraceContext[] = [];
  name: string;
  /** What kept the work from its end; null: nothing. */
  error: string | null = null;
  #endedAt: number | null = null;

  constructor({ name, kind, context, parentId, startedAt }: SpanStart) {
    this.name = name;
    this.kind = kind;
    this.context = context;
    this.parentId = parentId;
    this.startedAt = startedAt;
  }

  get endedAt(): number | null {
    return this.#endedAt;
  }

  /** Whether there is anybody for whom details are worth their time. */
  get isRecorded(): boolean {
    return this.context.isSampled;
  }

  set(name: string, value: AttributeValue): void {
    this.attributes.set(name, value);
  }

  /** Joins the span to one that it has to do with, such as that of a producer. */
  link(context: TraceContext | null): void {
    if (context !== null && this.isRecorded && this.links.length < MAX_LINKS) this.links.push(context);
  }

  /** @param type the code of an error, or a status */
  fail(type: string): void {
    this.error = type;
    this.set('error.type', type);
  }

  /** If the clock was set back during the span, it has no length. */
  end(at: number): void {
    this.#endedAt = Math.max(this.startedAt, at);
  }
}

/** The header of a request, and of an element, that names a span of its sender (W3C Trace Context). */
export const TRACEPARENT = 'traceparent';

/** Names a span, of this process or of another one. */
export interface TraceContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits. */
  readonly spanId: string;
  /** Whether the spans of its trace are recorded. */
  readonly isSampled: boolean;
}

/** Version, trace id, span id, flags. A later version may add fields behind them; version `ff` is forbidden. */
const FORM = /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED = 1;

/** Null if the text is not a valid `traceparent`: such a header counts as not sent. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] = FORM.exec(text.trim()) ?? [];
  if (version === undefined || (version === '00' && more !== undefined)) return null;
  const isSampled = (Number.parseInt(flags, 16) & SAMPLED) !== 0;
  // Spans wait for their collector, and must not retain the rest of the text, or of the frame that it is a part of.
  return { traceId: ownString(traceId), spanId: ownString(spanId), isSampled };
}

/** The span that inserted an element; null if its headers name none. */
export function contextIn(headers: ElementHeaders): TraceContext | null {
  const text = headerOf(headers, TRACEPARENT);
  return text === null ? null : parseTraceparent(text);
}

const TRACE_BYTES = 16;
const SPAN_BYTES = 8;
/** Drawn in one go, since each draw has a fixed cost. */
const POOL_BYTES = 4096;

/** Draws the ids of traces and spans. */
export class TraceIds {
  readonly #pool = Buffer.alloc(POOL_BYTES);
  #at = POOL_BYTES;

  trace(): string {
    return this.#draw(TRACE_BYTES);
  }

  span(): string {
    return this.#draw(SPAN_BYTES);
  }

  #draw(bytes: number): string {
    if (this.#at + bytes > POOL_BYTES) {
      randomFillSync(this.#pool);
      this.#at = 0;
    }
    const from = this.#at;
    this.#at += bytes;
    const id = this.#pool.toString('hex', from, this.#at);
    // All zeros are not an id.
    return /[^0]/.test(id) ? id : this.#draw(bytes);
  }
}
