import type { BrowsedElement, BrowsePage } from '../../model/records.ts';
import { get, path } from '../api.ts';
import { groupsOf } from './groups.ts';
import type { QueueNamed } from './live.ts';

/** Maximum pages that are searched for an element. The server examines up to 10,000 elements per page. */
const MAX_PAGES = 5;

/** A redriven element. Its id changes with each queue; its first id is kept in a header. */
export interface RedrivenElement {
  readonly firstId: string;
  readonly source: QueueNamed;
  readonly deadLetters: QueueNamed;
}

/** Where a redriven element is now. */
export type ElementLocation =
  | {
      readonly kind: 'source' | 'dead letter';
      readonly element: BrowsedElement;
      readonly group: string | null;
    }
  /** Not found among the first `looked` elements; the queue has more elements or groups. */
  | { readonly kind: 'behind'; readonly looked: number }
  | { readonly kind: 'gone' };

/** The result of a search, and how many elements the server examined for it. */
export interface LocatedElement {
  readonly location: ElementLocation;
  readonly examined: number;
}

/** The header with the first id of an element. */
const ORIGIN = 'x-ks-origin-id';

/** @returns the first id of an element */
export function firstIdOf(id: string, headers: readonly (readonly [string, string])[]): string {
  return headers.find(([name]) => name === ORIGIN)?.[1] ?? id;
}

/** Searches the source first, then the dead-letter queue, to find an element that moves in between. */
export async function locate(redriven: RedrivenElement, signal: AbortSignal): Promise<LocatedElement> {
  const { source, deadLetters, firstId } = redriven;
  const { groups, areAll } = await groupsOf(source, signal);
  let looked = 0;
  let examined = 0;
  let isWhole = areAll;
  for (const group of groups) {
    const found = await search(source, group, firstId, signal);
    examined += found.looked;
    const { element } = found;
    if (element !== null) return { location: { kind: 'source', element, group }, examined };
    looked = Math.max(looked, found.looked);
    isWhole &&= found.isWhole;
  }
  const { element, looked: dead } = await search(deadLetters, null, firstId, signal);
  examined += dead;
  if (element !== null) return { location: { kind: 'dead letter', element, group: null }, examined };
  return { location: isWhole ? { kind: 'gone' } : { kind: 'behind', looked }, examined };
}

interface SearchResult {
  readonly element: BrowsedElement | null;
  readonly looked: number;
  readonly isWhole: boolean;
}

async function search(
  { ns, queue }: QueueNamed,
  group: string | null,
  firstId: string,
  signal: AbortSignal,
): Promise<SearchResult> {
  const where = `env => env.msg.hdrs[${JSON.stringify(ORIGIN)}] === ${JSON.stringify(firstId)}`;
  let after: string | null = null;
  let looked = 0;
  for (let pages = 0; pages < MAX_PAGES; pages += 1) {
    const page: BrowsePage = await get<BrowsePage>(path('q', ns, queue, 'elements'), {
      query: { where, group, body: 'none', limit: 1, after },
      signal,
    });
    looked += page.looked;
    const [element] = page.elements;
    if (element !== undefined) return { element, looked, isWhole: true };
    if (page.next === null) return { element: null, looked, isWhole: true };
    after = page.next;
  }
  return { element: null, looked, isWhole: false };
}
