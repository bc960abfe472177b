import { get } from '../api.ts';
import { connection, keyOf, type QueueNamed, type QueuePicture, queues } from './live.ts';

/** A queue that the server found: sizes as in {@link QueuePicture}, rates over the last minute. */
export interface QueueOfPage extends QueueNamed, Omit<QueuePicture, 'stats'> {
  readonly insert: number;
  readonly take: number;
}

/** One page of found queues. */
export interface FoundQueues {
  readonly queues: readonly QueueOfPage[];
  /** Number of matches on all pages. */
  readonly matched: number;
  /** Number of queues without the filter. */
  readonly total: number;
  readonly sums: Readonly<Record<'size' | 'schedSize' | 'resvSize' | 'totalSize', number>>;
  /** Namespaces whose queues are missing, because their engine is unavailable. */
  readonly unavailable: readonly string[];
}

/** Filter and order of a list of queues. `sort` with a leading `-` is descending. */
export interface QueueSearch {
  readonly filter: string;
  readonly sort: string;
  /** From 1. */
  readonly page: number;
}

export const PAGE_SIZE = 100;
/** The server's maximum `offset` is a million. */
const MAX_PAGE = 10_001;

const SORTS: readonly string[] = ['name', 'ready', 'scheduled', 'reserved', 'depth', 'age', 'in', 'out'];

/** Suggestions for the field of the filter. */
export const QUALIFIERS = [
  'ns:N',
  'ready:>0',
  'depth:>1000',
  'scheduled:>0',
  'reserved:>0',
  'age:>60',
  'in:>1',
  'out:0',
  'paused',
  'running',
] as const;

/** Parses the query of an address. Invalid members are ignored. */
export function searchOf(query: URLSearchParams): QueueSearch {
  const sort = query.get('sort') ?? '';
  const page = Number(query.get('page'));
  return {
    filter: query.get('filter') ?? '',
    sort: SORTS.includes(sort.replace(/^-/, '')) ? sort : 'name',
    page: Number.isInteger(page) && page >= 1 && page <= MAX_PAGE ? page : 1,
  };
}

export function findQueues({ filter, sort, page }: QueueSearch, signal: AbortSignal): Promise<FoundQueues> {
  const isDown = sort.startsWith('-');
  const query = {
    filter,
    sort: isDown ? sort.slice(1) : sort,
    order: isDown ? 'desc' : 'asc',
    limit: PAGE_SIZE,
    offset: (page - 1) * PAGE_SIZE,
  };
  return get<FoundQueues>('queues', { query, signal });
}

/** A row, and the data that it was built from. */
interface CachedRow {
  readonly read: QueueOfPage | undefined;
  readonly picture: QueuePicture | undefined;
  readonly row: QueueOfPage;
}

/** Cached rows by listed queue: an unchanged row must stay the same object, so that it is not rendered again. */
const rowCache = new WeakMap<QueueOfPage, CachedRow>();

/**
 * Returns the rows of a list in their order, with the latest data of each queue: from the stream if it is live,
 * otherwise from the last read. Deleted queues are left out; a new queue that the stream has not sent yet stays.
 */
export function withLatest(
  listed: readonly QueueOfPage[],
  latest: readonly QueueOfPage[],
): readonly QueueOfPage[] {
  const isLive = connection.value === 'live';
  const read = new Map(latest.map((one) => [keyOf(one), one]));
  return listed.flatMap((one) => {
    const key = keyOf(one);
    const picture = isLive ? queues.get(key) : undefined;
    if (isLive && picture === undefined && rowCache.get(one)?.picture !== undefined) return [];
    return [rowOf(one, read.get(key), picture)];
  });
}

function rowOf(
  listed: QueueOfPage,
  read: QueueOfPage | undefined,
  picture: QueuePicture | undefined,
): QueueOfPage {
  const before = rowCache.get(listed);
  if (before !== undefined && before.read === read && before.picture === picture) return before.row;
  const row = { ...listed, ...read, ...picture };
  rowCache.set(listed, { read, picture, row });
  return row;
}
