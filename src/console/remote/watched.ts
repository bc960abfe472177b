import type { BrowsedElement, BrowsePage } from '../../model/records.ts';
import { get, type QueueNamed, queuePath } from '../api.ts';
import { groupsOf, havingHeader } from './elements.ts';

/** Maximum pages that are searched for an element. The server examines up to 10,000 elements per page. */
const MAX_PAGES = 5;
/** Maximum groups of a stream that are searched for it. */
const MAX_GROUPS = 10;

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
  /** Not found among the first `looked` elements of both queues; one has more elements, or the source more groups. */
  | { readonly kind: 'behind'; readonly looked: number }
  | { readonly kind: 'gone' };

/** The result of a search, and how many elements the server examined for it. */
interface LocatedElement {
  readonly location: ElementLocation;
  readonly examined: number;
}

/** The header with the first id of an element. */
const ORIGIN = 'x-ks-origin-id';

/** @returns the first id of an element */
export function firstIdOf({ id, headers }: BrowsedElement): string {
  return headers[ORIGIN] ?? id;
}

/** Searches the source first, then the dead-letter queue, to find an element that moves in between. */
export async function locate(redriven: RedrivenElement, signal: AbortSignal): Promise<LocatedElement> {
  const { source, deadLetters, firstId } = redriven;
  const groups = (await groupsOf(source, signal)) ?? [null];
  let looked = 0;
  let examined = 0;
  let isWhole = groups.length <= MAX_GROUPS;
  const places = [
    ...groups.slice(0, MAX_GROUPS).map((group) => ({ kind: 'source' as const, of: source, group })),
    { kind: 'dead letter' as const, of: deadLetters, group: null },
  ];
  for (const { kind, of, group } of places) {
    const found = await search(of, group, firstId, signal);
    examined += found.looked;
    const { element } = found;
    if (element !== null) return { location: { kind, element, group }, examined };
    looked = Math.max(looked, found.looked);
    isWhole &&= found.isWhole;
  }
  return { location: isWhole ? { kind: 'gone' } : { kind: 'behind', looked }, examined };
}

interface SearchResult {
  readonly element: BrowsedElement | null;
  readonly looked: number;
  readonly isWhole: boolean;
}

async function search(
  of: QueueNamed,
  group: string | null,
  firstId: string,
  signal: AbortSignal,
): Promise<SearchResult> {
  const where = havingHeader(ORIGIN, firstId);
  let after: string | null = null;
  let looked = 0;
  for (let pages = 0; pages < MAX_PAGES; pages += 1) {
    const page: BrowsePage = await get<BrowsePage>(queuePath(of, 'elements'), {
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
