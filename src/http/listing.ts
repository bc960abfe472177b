import { invalidParameter, isOutage } from '../model/errors.ts';
import { allowing, Type } from '../util/schema.ts';
import { given, type QueryParameter, wholeNumber } from './parameters.ts';

// Shared by all listings: forms, pages, and JSON in pieces.

/** Maximum number of entries of one page. */
const MAX_PAGE = 1_000;

/** The parameters of one page of a listing. The next page has the same form (`array`, `tree`). */
export interface PageQuery {
  readonly limit: number | null;
  readonly after: string | null;
  readonly array?: boolean;
  readonly tree?: boolean;
}

/** The items of one page, and the additional headers of its response. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly headers: readonly string[];
}

/** The query parameters of a listing that can be read in pages. @param after the description of `after` */
export function paging(after: string): {
  limit: QueryParameter<number | null>;
  after: QueryParameter<string | null>;
} {
  return {
    limit: wholeNumber<number | null>(
      'Maximum number of entries; the header `link` names the next page.',
      { from: 1, to: MAX_PAGE, unit: 'a count' },
      null,
    ),
    after: given(after, allowing('the last entry of the page before', Type.String({ minLength: 1 }))),
  };
}

export const NEXT_LINK = {
  link: 'The next page of a listing with `limit`, `<?…>; rel="next"`; omitted on the last one.',
};

/** The header that names the next page, relative to the request's own URL. */
function nextPage({ limit, array, tree }: PageQuery, after: string): readonly string[] {
  const form = array ? 'array=1&' : tree ? 'tree=1&' : '';
  return ['link', `<?${form}limit=${limit}&after=${encodeURIComponent(after)}>; rel="next"`];
}

/** The first page of the remaining items of a listing. @param cursor returns the `after` of the page behind an item */
export function pageOf<T>(remaining: readonly T[], query: PageQuery, cursor: (item: T) => string): Page<T> {
  const items = remaining.slice(0, query.limit ?? remaining.length);
  const last = items.at(-1);
  const isCut = items.length < remaining.length && last !== undefined;
  return { items, headers: isCut ? nextPage(query, cursor(last)) : [] };
}

/** The names behind `after`, which may itself no longer exist. */
export function itemsAfter(sorted: readonly string[], after: string): readonly string[] {
  const first = sorted.findIndex((name) => name > after);
  return first === -1 ? [] : sorted.slice(first);
}

/**
 * The requested form of a listing (docs/protocols/http.md, `listNamespaces`). @throws QuaysideError `invalid-parameter`
 */
export function listingForm({ array, tree }: { array: boolean; tree: boolean }): 'plain' | 'array' | 'tree' {
  if (array && tree) throw invalidParameter('tree', 'array and tree are both set. Set one of them.');
  if (array) return 'array';
  return tree ? 'tree' : 'plain';
}

/** The pieces of an array or an object: `start`, the items with commas between them, `end`. */
export function* jsonPieces<T>(
  start: string,
  items: readonly T[],
  write: (item: T) => string,
  end: string,
): Generator<string> {
  yield start;
  for (const [i, item] of items.entries()) yield i === 0 ? write(item) : `,${write(item)}`;
  yield end;
}

/** The items of one namespace, a folder in the form `tree`. */
export interface Folder<T> {
  /** Name of the namespace. */
  readonly name: string;
  /** Null if the engine of the namespace is unavailable. */
  readonly items: readonly T[] | null;
}

/** The pieces of a listing in the form `tree`: a folder for each namespace. */
export function* treePieces<T>(folders: readonly Folder<T>[], leaf: (item: T) => object): Generator<string> {
  let separator = '[';
  for (const { name, items } of folders) {
    const folder = {
      title: name,
      key: name,
      folder: true,
      expanded: true,
      ...(items === null && { unavailable: true }),
    };
    const start = `${separator}${JSON.stringify(folder).slice(0, -1)},"children":[`;
    yield* jsonPieces(start, items ?? [], (item) => JSON.stringify(leaf(item)), ']}');
    separator = ',';
  }
  yield separator === '[' ? '[]' : ']';
}

/**
 * Queues read at once: enough to fill an engine's batch, few enough for a batch to take milliseconds. PostgreSQL reads
 * streams one by one.
 */
export const READ_AT_ONCE = 32;

/**
 * Calls `read` for each namespace. Returns null for those whose engine is unavailable, so that the others are still
 * listed.
 * @throws QuaysideError the first one's error, if all engines are unavailable; any other error that `read` throws
 */
export async function readEach<N, T>(
  namespaces: readonly N[],
  read: (namespace: N) => Promise<T>,
): Promise<(T | null)[]> {
  const outcomes = await Promise.allSettled(namespaces.map(read));
  const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  const failure = reasons.find((reason) => !isOutage(reason));
  if (failure !== undefined) throw failure;
  if (reasons.length > 0 && reasons.length === namespaces.length) throw reasons[0];
  return outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value : null));
}
