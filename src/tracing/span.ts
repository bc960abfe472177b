import type { TraceContext } from './trace-context.ts';

/** As OTLP numbers them. */
export const SPAN_KINDS = { internal: 1, server: 2 } as const;
export type SpanKind = keyof typeof SPAN_KINDS;

export type AttributeValue = string | number;

/** Further links of a span are left out: a take of many may return thousands of elements. */
const MAX_LINKS = 128;

/** How a span begins. */
export interface SpanStart {
  readonly name: string;
  readonly kind: SpanKind;
  readonly context: TraceContext;
  /** The id of its parent; null for the first span of a trace. */
  readonly parentId: string | null;
  /** On the tracer's clock, ms since 1970 with a fraction. */
  readonly startedAt: number;
}

/** A piece of work that takes time. One that is not sampled is kept only so that the work within it is not sampled either. */
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

  end(at: number): void {
    this.#endedAt = at;
  }
}
