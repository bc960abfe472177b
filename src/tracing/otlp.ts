import { type AttributeValue, SPAN_KINDS, type Span } from './span.ts';

/** Who the spans are of. */
export interface TracedResource {
  readonly attributes: Readonly<Record<string, AttributeValue>>;
  /** Of the program. */
  readonly version: string;
}

const SCOPE = 'quayside';
const STATUS_ERROR = 2;

/** The body of a request to `/v1/traces` (OTLP/HTTP, JSON encoding). */
export function exportRequest(spans: readonly Span[], { attributes, version }: TracedResource): string {
  return JSON.stringify({
    resourceSpans: [
      {
        resource: { attributes: keyValues(Object.entries(attributes)) },
        scopeSpans: [{ scope: { name: SCOPE, version }, spans: spans.map(spanRecord) }],
      },
    ],
  });
}

/** How many spans the receiver rejected, as its response to a request that succeeded says; 0 if it does not say. */
export function rejectedSpans(responseBody: string): number {
  try {
    const count = Number(JSON.parse(responseBody)?.partialSuccess?.rejectedSpans ?? 0);
    return Number.isSafeInteger(count) && count > 0 ? count : 0;
  } catch {
    return 0;
  }
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

/** Nanoseconds since 1970 are more than a number holds exactly, and travel as text; microseconds are not. */
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
