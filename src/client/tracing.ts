import { textOf } from './errors.ts';
import type { InsertOptions } from './options.ts';
import type { Inserted } from './wire.ts';

/**
 * What the client uses of the module `@opentelemetry/api`: pass the module itself,
 * `import * as api from '@opentelemetry/api'`.
 */
export interface TracingApi {
  readonly ROOT_CONTEXT: TracingContext;
  readonly trace: {
    getTracer(name: string): {
      startSpan(name: string, options?: SpanOptions, context?: TracingContext): TracingSpan;
    };
    setSpan(context: TracingContext, span: never): TracingContext;
    getSpanContext(context: TracingContext): TracingSpanContext | undefined;
  };
  readonly context: {
    active(): TracingContext;
    with<F extends () => unknown>(context: TracingContext, run: F): ReturnType<F>;
  };
  readonly propagation: {
    inject(context: TracingContext, carrier: Record<string, string>): void;
    extract(context: TracingContext, carrier: Readonly<Record<string, string>>): TracingContext;
  };
}

export interface TracingContext {
  getValue(key: symbol): unknown;
  setValue(key: symbol, value: unknown): TracingContext;
  deleteValue(key: symbol): TracingContext;
}

export interface TracingSpanContext {
  readonly traceId: string;
  readonly spanId: string;
  readonly traceFlags: number;
}

export interface SpanOptions {
  readonly kind?: number;
  readonly attributes?: Record<string, string | number>;
  readonly links?: { readonly context: TracingSpanContext }[];
}

export interface TracingSpan {
  setAttribute(key: string, value: string): unknown;
  recordException(error: Error): unknown;
  setStatus(status: { code: number; message?: string }): unknown;
  end(): void;
}

/** Values of OpenTelemetry's `SpanKind` and `SpanStatusCode`. */
const PRODUCER = 3;
const CONSUMER = 4;
const ERROR = 2;

/** Creates the spans of one client. Does nothing without the OpenTelemetry API. */
export class Tracing {
  readonly #api: TracingApi | undefined;

  constructor(api: TracingApi | undefined) {
    this.#api = api;
  }

  /** Runs an insert of one element in a span, whose context is added to the element's headers. */
  async insert(
    queue: string,
    options: InsertOptions,
    insert: (options: InsertOptions) => Promise<Inserted>,
  ): Promise<Inserted> {
    const api = this.#api;
    if (!api) return insert(options);
    const attributes = attributesOf(queue, 'insert', 'send');
    const span = api.trace.getTracer('quayside').startSpan(`insert ${queue}`, { kind: PRODUCER, attributes });
    const headers: Record<string, string> = { ...options.headers };
    api.propagation.inject(api.trace.setSpan(api.context.active(), span as never), headers);
    return observed(span, async () => {
      const inserted = await insert({ ...options, headers });
      span.setAttribute('messaging.message.id', inserted.id);
      return inserted;
    });
  }

  /** Processes one element in a span of its own trace, with a link to the insert. */
  async process<R>(
    queue: string,
    group: string | undefined,
    { id, headers }: { readonly id: string; readonly headers: Readonly<Record<string, string>> },
    run: () => R | Promise<R>,
  ): Promise<R> {
    const api = this.#api;
    if (!api) return run();
    const inserted = api.trace.getSpanContext(api.propagation.extract(api.ROOT_CONTEXT, headers));
    const attributes = {
      ...attributesOf(queue, 'process', 'process'),
      'messaging.message.id': id,
      ...(group !== undefined && { 'messaging.consumer.group.name': group }),
    };
    const links = inserted === undefined ? [] : [{ context: inserted }];
    const span = api.trace
      .getTracer('quayside')
      .startSpan(`process ${queue}`, { kind: CONSUMER, attributes, links });
    const context = api.trace.setSpan(api.context.active(), span as never);
    return observed(span, () => api.context.with(context, async () => run()));
  }
}

function attributesOf(queue: string, name: string, type: string): Record<string, string> {
  return {
    'messaging.system.name': 'quayside',
    'messaging.operation.name': name,
    'messaging.operation.type': type,
    'messaging.destination.name': queue,
  };
}

async function observed<R>(span: TracingSpan, run: () => Promise<R>): Promise<R> {
  try {
    return await run();
  } catch (error) {
    if (error instanceof Error) span.recordException(error);
    span.setStatus({ code: ERROR, message: textOf(error) });
    throw error;
  } finally {
    span.end();
  }
}
