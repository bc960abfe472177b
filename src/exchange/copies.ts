import type { Namespace } from '../broker/namespace.ts';
import type { Delivery, ElementContent, NewElement } from '../model/element.ts';
import { COPY_COUNT, EXCHANGE_ERROR, EXCHANGE_NAME, HOP_COUNT } from '../model/service-headers.ts';
import type { SelectorVerdict } from '../sandbox/sandbox.ts';
import { bytesOfText } from '../util/byte-text.ts';

// What an element becomes on its way through an exchange, for the loop and for dry runs.

/**
 * The queues, in the source's namespace, for elements that no destination accepted, and for those with too many hops.
 */
export const NO_ROUTE = '__no_route__';
export const TOO_MANY_HOPS = '__too_many_hops__';

/** What the headers of an element say about the exchanges that it passed. */
export interface History {
  /** How many exchanges it has passed. */
  readonly hops: number;
  /** How many copies its original has become, at most, among those that an exchange may take again. */
  readonly copies: number;
}

/** A header that is not a count was written by a client, and is ignored. */
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

/**
 * What the destination can store. A copy that is due later needs a maturity; if the destination does not support one,
 * that is an error of the selector and counts as a rejection, since another try would fail, too.
 */
export function keepable(
  verdict: SelectorVerdict,
  { name, capabilities }: Pick<Namespace, 'name' | 'capabilities'>,
  now: number,
): SelectorVerdict {
  const { accepted, matureAt, delayMs } = verdict;
  const isLater = matureAt === null ? (delayMs ?? 0) > 0 : matureAt > now;
  if (!accepted || !isLater || capabilities.sched) return verdict;
  const error = `Queues of namespace ${name} do not support a maturity in the future.`;
  return { ...verdict, accepted: false, error };
}

/** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
export type Returning = readonly boolean[] | null;

/**
 * How many copies an element's original has become in those that an exchange may bring back, if these destinations get
 * one. `isTooMany`: none gets one then.
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
 * A destination's copy: body and headers as its selector, and those before it, left them, one hop more, a new start.
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

/** Why an element could not be forwarded, and by which exchange. */
interface UnroutableReason {
  readonly exchange: string;
  /** The error that it failed with; null: none. */
  readonly error: string | null;
  /** Whether it returns to the queue from which it came, where the exchange finds it again. */
  readonly isBack: boolean;
}

/**
 * An element that could not be forwarded: unchanged but for the name of the exchange that gave up on it, and the error
 * that it failed with, if there is one. One that returns to its source has one hop more, or the exchange would take it
 * for ever.
 */
export function unroutable(
  { body, contentType, contentEncoding, headers: given }: Delivery,
  { exchange, error, isBack }: UnroutableReason,
  groups: readonly string[],
): NewElement {
  const headers = isBack
    ? withHeader(given, HOP_COUNT, String(historyOf({ headers: given }).hops + 1))
    : given;
  const named = withHeader(headers, EXCHANGE_NAME, bytesOfText(exchange));
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
  const changed: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    const [own, kept] = [headers[i], headers[i + 1]];
    if (own !== undefined && own !== name) changed.push(own, kept ?? '');
  }
  changed.push(name, value);
  return changed;
}
