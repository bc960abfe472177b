import type { Delivery } from '../model/element.ts';
import { contextIn, parseTraceparent, type Span, TRACEPARENT, type Tracer } from '../tracing/tracer.ts';
import { ownString } from '../util/own-bytes.ts';
import type { HttpCall } from './call.ts';
import { rareHeader } from './head.ts';

/** Routes without spans: probes and scrapes, which come every few seconds. */
const UNTRACED: ReadonlySet<string> = new Set(['live', 'ready', 'metrics']);
/** The `error.type` of a request whose client disconnected before the response. */
const CLIENT_GONE = 'client-disconnected';
const SERVER_ERROR = 500;
/**
 * Maximum length of an attribute; a percent-encoded namespace and queue are shorter. Spans are in memory until they are
 * exported, and anonymous clients may send a target of 16 KiB.
 */
const MAX_ATTRIBUTE_LENGTH = 2_048;

/** Runs a request within a span that ends when its response is sent or its client disconnects. */
export function traceRequest(call: HttpCall, tracer: Tracer, run: () => void): void {
  const { request, response } = call;
  const name = request.method ?? '';
  // Repeated headers are ignored: joined, they are not valid.
  const parent = parseTraceparent(rareHeader(request.rawHeaders, TRACEPARENT) ?? '');
  const span = tracer.begin({ name, kind: 'server', parent });
  call.span = span;
  response.once('close', () => {
    if (span.isRecorded) setAttributes(span, call);
    if (span.parentId === null && UNTRACED.has(call.route?.id ?? '')) span.end(tracer.now());
    else tracer.end(span);
  });
  tracer.within(span, run);
}

/** Continues a request within its span, if it has one, after an event of its connection. */
export function withinSpan<T>({ span, front }: HttpCall, run: () => T): T {
  const { tracer } = front.parts;
  return span === null || tracer === undefined ? run() : tracer.within(span, run);
}

/** Links the span of a request with the insert of an element that the request returns. */
export function linkInsert(span: Span, { headers }: Delivery): void {
  span.link(contextIn(headers));
}

/**
 * Sets the attributes of the semantic conventions for HTTP servers. Without the user, and without the query, which may
 * contain lease tokens.
 */
function setAttributes(span: Span, call: HttpCall): void {
  const { request, response, route } = call;
  span.set('http.request.method', request.method ?? '');
  span.set('url.scheme', call.front.parts.options.tls === null ? 'http' : 'https');
  span.set('url.path', truncated(call.path));
  if (route !== null) {
    span.name = `${request.method} ${route.path}`;
    span.set('http.route', route.path);
    const { namespace, queue } = call.params;
    // The names are not validated yet if the request was rejected.
    if (queue !== undefined) span.set('messaging.destination.name', truncated(`${namespace}/${queue}`));
  }
  if (!response.headersSent) {
    span.fail(CLIENT_GONE);
    return;
  }
  const { statusCode } = response;
  span.set('http.response.status_code', statusCode);
  if (statusCode >= SERVER_ERROR) span.fail(String(statusCode));
}

function truncated(text: string): string {
  return ownString(text.slice(0, MAX_ATTRIBUTE_LENGTH));
}
