import type { Namespace } from '../broker/namespace.ts';
import { bytesOfText } from '../model/byte-text.ts';
import { LETTER_HEADERS } from '../model/dead-letter.ts';
import type { Delivery, ElementContent, NewElement } from '../model/element.ts';
import type { SelectorVerdict } from './sandbox/sandbox.ts';

/** Headers that exchanges write on what they forward (decisions, "Exchanges"). */
export const HOP_COUNT = 'x-hop-count';
export const EXCHANGE_NAME = 'x-exchange-name';

/** What the service itself writes beside what clients set: an element that has all of these may still be forwarded. */
export const SERVICE_HEADERS: ReadonlySet<string> = new Set([HOP_COUNT, EXCHANGE_NAME, ...LETTER_HEADERS]);

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

/** How many exchanges an element has passed. A count that is no count, written by somebody else, is none. */
export function hopsOf({ headers }: Pick<ElementContent, 'headers'>): number {
  for (let i = 0; i < headers.length; i += 2) {
    if (headers[i] === HOP_COUNT) {
      const hops = Number(headers[i + 1]);
      return Number.isSafeInteger(hops) && hops > 0 ? hops : 0;
    }
  }
  return 0;
}

/**
 * What the destination can store: a copy that is due later, where it keeps no maturity, never. That is a fault of
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
export interface CopyTiming {
  /** ms since 1970, or null. */
  readonly matureAt: number | null;
  readonly delayMs: number | null;
  readonly tries: number | null;
}

const NOW: CopyTiming = { matureAt: null, delayMs: null, tries: null };

/** A destination's copy: body, type and headers as its selector left them, one hop more, a new start. */
export function copyOf(
  content: ElementContent,
  hops: number,
  groups: readonly string[],
  dedupKey: string | null,
  timing: CopyTiming = NOW,
): NewElement {
  return {
    ...element(content, withHeader(content.headers, HOP_COUNT, String(hops + 1)), groups, dedupKey),
    matureAt: timing.matureAt,
    delayMs: timing.delayMs ?? 0,
    tries: timing.tries ?? 0,
  };
}

/** An element that could not be forwarded: unchanged but for the name of the exchange that gave up on it. */
export function strayOf(
  delivery: Delivery,
  exchange: string,
  groups: readonly string[],
  dedupKey: string | null,
): NewElement {
  return element(
    delivery,
    withHeader(delivery.headers, EXCHANGE_NAME, bytesOfText(exchange)),
    groups,
    dedupKey,
  );
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
