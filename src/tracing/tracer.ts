import { AsyncLocalStorage } from 'node:async_hooks';
import { randomUUID } from 'node:crypto';
import type { ElementHeaders } from '../model/element.ts';
import { headerOf } from '../model/headers.ts';
import type { Clock } from '../util/clock.ts';
import { ownString } from '../util/own-bytes.ts';

interface TracerOptions {
  readonly clock: Clock;
  /**
   * The fraction of the traces started here that is recorded, 0 to 1. A trace started elsewhere is recorded if its
   * parent is.
   */
  readonly ratio: number;
  /** Called with each recorded span that has ended. */
  readonly onEnd: (span: Span) => void;
}

/** What is known of a span when it begins. */
interface BeginOptions {
  readonly name: string;
  readonly kind: SpanKind;
  /** Null: the span starts a trace. */
  readonly parent: TraceContext | null;
  /** Spans with which it is linked. If it starts a trace, it is recorded if one of them is, or by the ratio. */
  readonly linked?: readonly TraceContext[];
  /** As `now()` returned it; not given: now. */
  readonly startedAt?: number;
}

/** Hexadecimal digits of a trace id that a number represents exactly. */
const RATIO_DIGITS = 13;
const RATIO_RANGE = 16 ** RATIO_DIGITS;
/** Maximum difference between the time of spans and the wall clock, which a time server adjusts in smaller steps. */
const MAX_DRIFT_MS = 1_000;

/** Creates spans, decides which are recorded, and provides the current one. */
export class Tracer {
  readonly #clock: Clock;
  readonly #threshold: number;
  readonly #onEnd: (span: Span) => void;
  readonly #current = new AsyncLocalStorage<Span>();
  /** Wall time at which the monotonic clock was 0. */
  #epoch: number;

  constructor({ clock, ratio, onEnd }: TracerOptions) {
    this.#clock = clock;
    this.#threshold = ratio * RATIO_RANGE;
    this.#onEnd = onEnd;
    this.#epoch = clock.now() - clock.monotonic();
  }

  /**
   * Ms since 1970 with a fraction, by the monotonic clock, so that nested spans are shown nested. If the wall clock was
   * set, or the machine was suspended, which the monotonic clock does not count, restarts from the wall clock;
   * otherwise all later spans would have a wrong time.
   */
  now(): number {
    const monotonic = this.#clock.monotonic();
    const epoch = this.#clock.now() - monotonic;
    if (Math.abs(epoch - this.#epoch) > MAX_DRIFT_MS) this.#epoch = epoch;
    return this.#epoch + monotonic;
  }

  /**
   * The span within which this code runs; null if there is none, or it has ended: a timer that was set within it may
   * later serve other requests.
   */
  get current(): Span | null {
    const span = this.#current.getStore();
    return span === undefined || span.endedAt !== null ? null : span;
  }

  begin({ name, kind, parent, linked = [], startedAt = this.now() }: BeginOptions): Span {
    const traceId = parent?.traceId ?? newTraceId();
    const isSampled =
      parent?.isSampled ?? (linked.some((context) => context.isSampled) || this.#isInRatio(traceId));
    const context = { traceId, spanId: newSpanId(), isSampled };
    const span = new Span({ name, kind, context, parentId: parent?.spanId ?? null, startedAt });
    for (const other of linked) span.link(other);
    return span;
  }

  /** Runs code, and what it starts, within a span. */
  within<T>(span: Span, run: () => T): T {
    return this.#current.run(span, run);
  }

  end(span: Span): void {
    span.end(this.now());
    if (span.isRecorded) this.#onEnd(span);
  }

  /** Decides by the last digits of the id, which are random, so that all nodes with the same ratio decide alike. */
  #isInRatio(traceId: string): boolean {
    return Number.parseInt(traceId.slice(-RATIO_DIGITS), 16) < this.#threshold;
  }
}

/** The kinds of spans, as numbered by OTLP. */
export const SPAN_KINDS = { internal: 1, server: 2 } as const;
type SpanKind = keyof typeof SPAN_KINDS;

export type AttributeValue = string | number;

/** Maximum number of links of a span: a take of many may return thousands of elements. */
export const MAX_LINKS = 128;

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

/** A timed piece of work. A span that is not sampled exists only so that the work within it is not sampled either. */
export class Span {
  readonly kind: SpanKind;
  readonly context: TraceContext;
  readonly parentId: string | null;
  readonly startedAt: number;
  readonly attributes = new Map<string, AttributeValue>();
  readonly links: TraceContext[] = [];
  name: string;
  /** The error code or the status of failed work; null if it has not failed. */
  error: string | null = null;
  endedAt: number | null = null;

  constructor({ name, kind, context, parentId, startedAt }: SpanStart) {
    this.name = name;
    this.kind = kind;
    this.context = context;
    this.parentId = parentId;
    this.startedAt = startedAt;
  }

  /** Whether the span is exported. If not, collecting details is a waste of time. */
  get isRecorded(): boolean {
    return this.context.isSampled;
  }

  set(name: string, value: AttributeValue): void {
    this.attributes.set(name, value);
  }

  /** Links the span with a related one, such as that of a producer. */
  link(context: TraceContext | null): void {
    if (context !== null && this.isRecorded && this.links.length < MAX_LINKS) this.links.push(context);
  }

  /** @param type the code of an error, or a status */
  fail(type: string): void {
    this.error = type;
    this.set('error.type', type);
  }

  /** Ends the span. Its length is 0 if the clock was set back during it. */
  end(at: number): void {
    this.endedAt = Math.max(this.startedAt, at);
  }
}

/** The header of a request, and of an element, that identifies a span of its sender (W3C Trace Context). */
export const TRACEPARENT = 'traceparent';

/** Identifies a span, of this process or of another one. */
export interface TraceContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits. */
  readonly spanId: string;
  /** Whether the spans of its trace are recorded. */
  readonly isSampled: boolean;
}

/** Version, trace id, span id, flags. A later version may add fields behind them; version `ff` is forbidden. */
const TRACEPARENT_PATTERN =
  /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED = 1;

/** Null if the text is not a valid `traceparent`: such a header counts as not sent. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] =
    TRACEPARENT_PATTERN.exec(text.trim()) ?? [];
  if (version === undefined || (version === '00' && more !== undefined)) return null;
  const isSampled = (Number.parseInt(flags, 16) & SAMPLED) !== 0;
  // Spans are in memory until they are exported, and must not retain the whole header or frame.
  return { traceId: ownString(traceId), spanId: ownString(spanId), isSampled };
}

/** The span that inserted an element; null if its headers name none. */
export function contextIn(headers: ElementHeaders): TraceContext | null {
  const text = headerOf(headers, TRACEPARENT);
  return text === null ? null : parseTraceparent(text);
}

// The ids are parts of random UUIDs, which have fixed bits other than 0: an id must not consist of zeros.

export function newTraceId(): string {
  return randomUUID().replaceAll('-', '');
}

export function newSpanId(): string {
  return newTraceId().slice(16);
}
