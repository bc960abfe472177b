import type {
  SpanOptions,
  TracingApi,
  TracingContext,
  TracingSpan,
  TracingSpanContext,
} from '../../src/client/tracing.ts';

class FakeSpan implements TracingSpan {
  readonly name: string;
  readonly attributes: Record<string, string | number>;
  readonly links: readonly TracingSpanContext[];
  readonly spanContext: TracingSpanContext;
  error: string | null = null;
  isEnded = false;

  constructor(name: string, number: number, { attributes = {}, links = [] }: SpanOptions) {
    this.name = name;
    this.attributes = { ...attributes };
    this.links = links.map(({ context }) => context);
    this.spanContext = { traceId: `trace-${number}`, spanId: `span-${number}`, traceFlags: 1 };
  }

  setAttribute(key: string, value: string): void {
    this.attributes[key] = value;
  }

  recordException(error: Error): void {
    this.error = error.message;
  }

  setStatus(): void {}

  end(): void {
    this.isEnded = true;
  }
}

const SPAN = Symbol('span');

class FakeContext implements TracingContext {
  readonly #values: ReadonlyMap<symbol, unknown>;

  constructor(values: ReadonlyMap<symbol, unknown> = new Map()) {
    this.#values = values;
  }

  getValue(key: symbol): unknown {
    return this.#values.get(key);
  }

  setValue(key: symbol, value: unknown): FakeContext {
    return new FakeContext(new Map([...this.#values, [key, value]]));
  }

  deleteValue(key: symbol): FakeContext {
    return new FakeContext(new Map([...this.#values].filter(([other]) => other !== key)));
  }
}

/**
 * Behaves like `@opentelemetry/api` with an SDK that records everything: spans, an active context, and `traceparent`
 * headers.
 */
export class FakeTracing implements TracingApi {
  readonly spans: FakeSpan[] = [];
  readonly ROOT_CONTEXT = new FakeContext();
  #active: TracingContext = this.ROOT_CONTEXT;

  active(): FakeSpan | undefined {
    return this.#active.getValue(SPAN) as FakeSpan | undefined;
  }

  readonly trace = {
    getTracer: () => ({
      startSpan: (name: string, options: SpanOptions = {}): FakeSpan => {
        const span = new FakeSpan(name, this.spans.length + 1, options);
        this.spans.push(span);
        return span;
      },
    }),
    setSpan: (context: TracingContext, span: never) => context.setValue(SPAN, span),
    getSpanContext: (context: TracingContext) =>
      (context.getValue(SPAN) as { spanContext: TracingSpanContext } | undefined)?.spanContext,
  };

  readonly context = {
    active: () => this.#active,
    with: <F extends () => unknown>(context: TracingContext, run: F): ReturnType<F> => {
      const before = this.#active;
      this.#active = context;
      try {
        return run() as ReturnType<F>;
      } finally {
        this.#active = before;
      }
    },
  };

  readonly propagation = {
    inject: (context: TracingContext, carrier: Record<string, string>) => {
      const span = context.getValue(SPAN) as FakeSpan | undefined;
      if (span !== undefined) carrier.traceparent = JSON.stringify(span.spanContext);
    },
    extract: (context: TracingContext, carrier: Readonly<Record<string, string>>) =>
      carrier.traceparent === undefined
        ? context
        : context.setValue(SPAN, { spanContext: JSON.parse(carrier.traceparent) as TracingSpanContext }),
  };
}
