import type { Namespace } from '../broker/namespace.ts';
import type { Delivery, ElementContent, NewElement } from '../model/element.ts';
import { COPY_COUNT, EXCHANGE_ERROR, EXCHANGE_NAME, HOP_COUNT } from '../model/service-headers.ts';
import type { SelectorVerdict } from '../sandbox/sandbox.ts';
import { bytesOfText } from '../util/byte-text.ts';

/** Where elements go that no destination accepted, and those that went round too often: in the source's namespace. */
export const NO_ROUTE = '__no_route__';
export const TOO_MANY_HOPS = '__too_many_hops__';

/** The element as a destination's selector, and those before it, left it. */
export function changed(content: ElementContent, verdict: SelectorVerdict): ElementContent {
  return {
    body: verdict.body ?? content.body,
    contentType: content.contentType,
    contentEncoding: content.contentEncoding,
    headers: verdict.headers ?? content.headers,
  };
}

/** How many exchanges an element has passed. A header that is no count was written by a client, and counts as none. */
export function hopsOf(element: Pick<ElementContent, 'headers'>): number {
  return countIn(element, HOP_COUNT) ?? 0;
}

/** How many copies the original of an element has become, at most, among those that an exchange may take again. */
export function copiesOf(element: Pick<ElementContent, 'headers'>): number {
  return countIn(element, COPY_COUNT) ?? 1;
}

function countIn({ headers }: Pick<ElementContent, 'headers'>, name: string): number | null {
  for (let i = 0; i < headers.length; i += 2) {
    if (headers[i] === name) {
      const count = Number(headers[i + 1]);
      return Number.isSafeInteger(count) && count > 0 ? count : null;
    }
  }
  return null;
}

/**
 * What the destination can store. A copy that is due later needs a maturity; if the destination keeps none, that is a fault of
 * the selector and counts as no, since trying again would not help.
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

/** What a selector may set on the copy that it accepts. */
interface CopyTiming {
  /** ms since 1970, or null. */
  readonly matureAt: number | null;
  readonly delayMs: number | null;
  readonly tries: number | null;
}

const NOW: CopyTiming = { matureAt: null, delayMs: null, tries: null };

/** What a copy carries of the way that its original came. */
interface CopyHistory {
  /** Exchanges that the element had passed before. */
  readonly hops: number;
  readonly copies: number;
}

/** A destination's copy: body, type and headers as its selector left them, one hop more, a new start. */
export function copyOf(
  content: ElementContent,
  { hops, copies }: CopyHistory,
  groups: readonly string[],
  dedupKey: string | null,
  timing: CopyTiming = NOW,
): NewElement {
  const hopped = withHeader(content.headers, HOP_COUNT, String(hops + 1));
  const headers = copies === 1 ? hopped : withHeader(hopped, COPY_COUNT, String(copies));
  return {
    ...element(content, headers, groups, dedupKey),
    matureAt: timing.matureAt,
    delayMs: timing.delayMs ?? 0,
    tries: timing.tries ?? 0,
  };
}

/**
 * An element that could not be forwarded: unchanged but for the name of the exchange that gave up on it, and the error
 * that it failed with, if there is one.
 */
export function unroutable(
  delivery: Delivery,
  exchange: string,
  groups: readonly string[],
  error: string | null = null,
): NewElement {
  const named = withHeader(delivery.headers, EXCHANGE_NAME, bytesOfText(exchange));
  const headers = error === null ? named : withHeader(named, EXCHANGE_ERROR, printable(error));
  return element(delivery, headers, groups, null);
}

function printable(error: string): string {
  return error.replace(/[^\x20-\x7e]/g, '?').slice(0, 200);
}

function element(
  { body, contentType, contentEncoding }: ElementContent,
  headers: readonly string[],
  groups: readonly string[],
  dedupKey: string | null,
): NewElement {
  return {
    body,
    contentType,
    contentEncoding,
    headers,
    matureAt: null,
    delayMs: 0,
    tries: 0,
    groups,
    dedupKey,
  };
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
