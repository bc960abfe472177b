import type { FoundQueue, FoundQueues } from '../../model/records.ts';
import { get } from '../api.ts';
import { connection, keyOf, queues } from './live.ts';

/** Filter and order of a list of queues. `sort` with a leading `-` is descending. */
interface QueueSearch {
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

/** The listed queues that the stream has sent. */
const followed = new WeakSet<FoundQueue>();

/**
 * Returns the rows of a list in their order, with the latest data of each queue: from the stream if it is live,
 * otherwise from the last read. Deleted queues are left out; a new queue that the stream has not sent yet stays.
 */
export function withLatest(
  listed: readonly FoundQueue[],
  latest: readonly FoundQueue[],
): readonly FoundQueue[] {
  const isLive = connection.value === 'live';
  const read = new Map(latest.map((one) => [keyOf(one), one]));
  return listed.flatMap((one) => {
    const key = keyOf(one);
    const picture = isLive ? queues.get(key) : undefined;
    if (isLive && picture === undefined && followed.has(one)) return [];
    if (picture !== undefined) followed.add(one);
    return [{ ...one, ...read.get(key), ...picture }];
  });
}
