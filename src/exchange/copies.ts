import type { Broker } from '../broker/broker.ts';
import type { Delivery, ElementContent, NewElement } from '../model/element.ts';
import { COPY_COUNT, EXCHANGE_ERROR, EXCHANGE_NAME, HOP_COUNT } from '../model/service-headers.ts';
import type { ProgramSources } from '../sandbox/protocol.ts';
import type { SelectorVerdict } from '../sandbox/sandbox.ts';
import { toByteString } from '../util/byte-string.ts';
import type { Declaration } from './declaration.ts';

// How an exchange changes the elements that it forwards; used by its loops and by dry runs.

/** Queues in the source's namespace: for elements that no destination accepted, and for those with too many hops. */
export const NO_ROUTE = '__no_route__';
export const TOO_MANY_HOPS = '__too_many_hops__';

/** An element's history in exchanges, as its headers record it. */
export interface History {
  /** The number of exchanges that the element has passed. */
  readonly hops: number;
  /** The maximum number of copies of its original that may come to an exchange again. */
  readonly copies: number;
}

/** Headers without a valid count are ignored: a client wrote them. */
export function historyOf({ headers }: Pick<ElementContent, 'headers'>): History {
  let [hops, copies] = [0, 1];
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i];
    if (name !== HOP_COUNT && name !== COPY_COUNT) continue;
    const count = Number(headers[i + 1]);
    if (!Number.isSafeInteger(count) || count <= 0) continue;
    if (name === HOP_COUNT) hops = count;
    else copies = count;
  }
  return { hops, copies };
}

/** The selector of a destination; null: it has none. Setting a maturity fails if the destination stores none. */
export function selectorOf(
  { ns, selector }: Declaration['dst'][number],
  broker: Pick<Broker, 'namespace'>,
): ProgramSources[number] {
  if (selector === undefined) return null;
  if (broker.namespace(ns).capabilities.sched) return selector;
  const lateError = `Queues of namespace ${ns} do not support a maturity in the future.`;
  return { source: selector, lateError };
}

/** Per destination, whether declared exchanges can bring elements from it back to the source. Null: from none. */
export type Returning = readonly boolean[] | null;

/**
 * The new copy count of an element if these destinations get a copy. `isTooMany`: the count exceeds `maxCopies`, and no
 * destination may get one.
 */
export function copiesBack(
  before: number,
  accepted: readonly number[],
  { returning, maxCopies }: { readonly returning: Returning; readonly maxCopies: number },
): { readonly count: number; readonly isTooMany: boolean } {
  const back = returning === null ? 0 : accepted.filter((destination) => returning[destination]).length;
  const count = before * Math.max(1, back);
  return { count, isTooMany: back > 0 && count > maxCopies };
}

/**
 * A destination's copy: body and headers as its selector, and those before it, left them, with one more hop, and with
 * the timing and tries that the selector set.
 */
export function copyOf(
  content: ElementContent,
  verdict: SelectorVerdict,
  { hops, copies }: History,
  groups: readonly string[],
): NewElement {
  const hopped = withHeader(verdict.headers ?? content.headers, HOP_COUNT, String(hops + 1));
  return {
    body: verdict.body ?? content.body,
    contentType: content.contentType,
    contentEncoding: content.contentEncoding,
    headers: copies === 1 ? hopped : withHeader(hopped, COPY_COUNT, String(copies)),
    matureAt: verdict.matureAt,
    delayMs: verdict.delayMs ?? 0,
    tries: verdict.tries ?? 0,
    groups,
    dedupKey: null,
  };
}

/** The exchange that could not forward an element, and the reason. */
interface UnroutableReason {
  readonly exchange: string;
  /** The error; null: there was none. */
  readonly error: string | null;
  /** Whether it returns to the source queue, where the exchange takes it again. */
  readonly isBack: boolean;
}

/**
 * The element to store for one that could not be forwarded. It is unchanged except for headers with the exchange's name
 * and, if there is one, the error. If it returns to its source, its hop count is incremented, since the exchange would
 * take it forever otherwise.
 */
export function unroutable(
  { body, contentType, contentEncoding, headers: given }: Delivery,
  { exchange, error, isBack }: UnroutableReason,
  groups: readonly string[],
): NewElement {
  const headers = isBack
    ? withHeader(given, HOP_COUNT, String(historyOf({ headers: given }).hops + 1))
    : given;
  const named = withHeader(headers, EXCHANGE_NAME, toByteString(exchange));
  return {
    body,
    contentType,
    contentEncoding,
    headers: error === null ? named : withHeader(named, EXCHANGE_ERROR, printable(error)),
    matureAt: null,
    delayMs: 0,
    tries: 0,
    groups,
    dedupKey: null,
  };
}

function printable(error: string): string {
  return error.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);
}

function withHeader(headers: readonly string[], name: string, value: string): string[] {
  const others = headers.includes(name) ? headers.filter((_, i) => headers[i - (i % 2)] !== name) : headers;
  return others.concat([name, value]);
}
