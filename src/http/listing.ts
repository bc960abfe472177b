import { Type } from 'typebox';
import type { Namespace } from '../broker/namespace.ts';
import type { QueueRecord } from '../broker/record.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { type QueryParameter, whole } from './parameters.ts';

/** A namespace as listings need it. `queues` is null if its engine is unavailable. */
export interface Folder<Q = ListedQueue> {
  readonly name: string;
  readonly queues: readonly Q[] | null;
}

/** A queue as listings need it. */
export class ListedQueue {
  readonly namespace: string;
  readonly queue: string;
  readonly record: QueueRecord;
  #json: string | null = null;

  constructor(namespace: string, queue: string, record: QueueRecord) {
    this.namespace = namespace;
    this.queue = queue;
    this.record = record;
  }

  get id(): string {
    return `${this.queue}@${this.namespace}`;
  }

  /** The record as JSON, written once for all listings that share this object. */
  get json(): string {
    this.#json ??= JSON.stringify(this.record);
    return this.#json;
  }
}

/** Records read at once: enough to fill an engine's batch, few enough that other calls are not delayed by it. */
const RECORDS_AT_ONCE = 32;

/**
 * The queues of namespaces, read once for all who ask at the same time: of a namespace one reading is under way,
 * and at most one more waits behind it. Nobody is shown a picture that is older than their request.
 */
export class QueueLists {
  readonly #underWay = new Map<Namespace, Promise<readonly ListedQueue[]>>();
  readonly #behind = new Map<Namespace, Promise<readonly ListedQueue[]>>();

  /** The records of all queues of a namespace, by name. */
  of(namespace: Namespace): Promise<readonly ListedQueue[]> {
    const underWay = this.#underWay.get(namespace);
    if (underWay === undefined) return this.#begin(namespace);
    let behind = this.#behind.get(namespace);
    if (behind === undefined) {
      const begin = (): Promise<readonly ListedQueue[]> => {
        this.#behind.delete(namespace);
        return this.#begin(namespace);
      };
      behind = underWay.then(begin, begin);
      this.#behind.set(namespace, behind);
    }
    return behind;
  }

  #begin(namespace: Namespace): Promise<readonly ListedQueue[]> {
    const listed = readQueues(namespace);
    this.#underWay.set(namespace, listed);
    const done = (): void => {
      if (this.#underWay.get(namespace) === listed) this.#underWay.delete(namespace);
    };
    listed.then(done, done);
    return listed;
  }
}

async function readQueues(namespace: Namespace): Promise<ListedQueue[]> {
  return readRecords(namespace, await namespace.queueNames());
}

/** The records of some queues of a namespace, in batches between which the engine and this thread serve others. */
export async function readRecords(namespace: Namespace, names: readonly string[]): Promise<ListedQueue[]> {
  const listed: ListedQueue[] = [];
  for (let from = 0; from < names.length; from += RECORDS_AT_ONCE) {
    const some = names.slice(from, from + RECORDS_AT_ONCE);
    const records = await Promise.all(some.map((name) => namespace.visit(name).status(null)));
    for (const [i, record] of records.entries()) {
      listed.push(new ListedQueue(namespace.name, some[i] ?? '', record));
    }
  }
  return listed;
}

/**
 * The queues of several namespaces. One whose engine is unavailable does not hide the others.
 * @throws QuaysideError the first one's reason, if none of them can be listed
 */
export async function listFolders<Q>(
  namespaces: readonly Namespace[],
  list: (namespace: Namespace) => Promise<readonly Q[]>,
): Promise<Folder<Q>[]> {
  const outcomes = await Promise.allSettled(namespaces.map(list));
  const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  const failure = reasons.find((reason) => !isUnavailable(reason));
  if (failure !== undefined) throw failure;
  if (reasons.length > 0 && reasons.length === namespaces.length) throw reasons[0];
  return outcomes.map((outcome, i) => ({
    name: namespaces[i]?.name ?? '',
    queues: outcome.status === 'fulfilled' ? outcome.value : null,
  }));
}

function isUnavailable(reason: unknown): boolean {
  return (
    reason instanceof QuaysideError &&
    (reason.code === 'storage-unavailable' || reason.code === 'outcome-unknown')
  );
}

/** The default form of one namespace, an object by queue name, in pieces of JSON. */
export function* objectPieces(queues: readonly ListedQueue[]): Generator<string> {
  yield* joined('{', queues, ({ queue, json }) => `${JSON.stringify(queue)}:${json}`, '}');
}

/** `array=1`, in pieces of JSON. */
export function* arrayPieces(folders: readonly Folder[]): Generator<string> {
  const queues = folders.flatMap((folder) => folder.queues ?? []);
  yield* joined(
    '{"data":[',
    queues,
    ({ id, json }) => `${json.slice(0, -1)},"id":${JSON.stringify(id)}}`,
    ']',
  );
  const unavailable = folders.flatMap(({ name, queues }) => (queues === null ? [name] : []));
  yield unavailable.length === 0 ? '}' : `,"unavailable":${JSON.stringify(unavailable)}}`;
}

/** `tree=1`, in pieces of JSON: a folder for each namespace with its queues. */
export function* treePieces(folders: readonly Folder[]): Generator<string> {
  let separator = '[';
  for (const { name, queues } of folders) {
    const folder = {
      title: name,
      key: name,
      folder: true,
      expanded: true,
      ...(queues === null && { unavailable: true }),
    };
    const start = `${separator}${JSON.stringify(folder).slice(0, -1)},"children":[`;
    yield* joined(start, queues ?? [], (queue) => JSON.stringify(leaf(queue)), ']}');
    separator = ',';
  }
  yield separator === '[' ? '[]' : ']';
}

/** The pieces of an array or an object: `start`, the items with commas between them, `end`. */
export function* joined<T>(
  start: string,
  items: readonly T[],
  write: (item: T) => string,
  end: string,
): Generator<string> {
  yield start;
  for (const [i, item] of items.entries()) yield i === 0 ? write(item) : `,${write(item)}`;
  yield end;
}

function leaf({ id, queue, record }: ListedQueue): object {
  const { put, get, reserve, commit, rollback } = record.stats;
  return {
    title: queue,
    key: id,
    put,
    get,
    reserve,
    commit,
    rollback,
    size: record.size,
    total: record.totalSize,
    sched: record.schedSize,
    resv: record.resvSize,
    next_t: record.next_mature_t,
    paused: record.paused,
  };
}

/** The most entries of one page. */
const MAX_PAGE = 1_000;

/** How a page of a listing is asked for, with the form of the listing, which the next page has as well. */
export interface PageQuery {
  readonly limit: number | null;
  readonly after: string | null;
  readonly array: boolean;
  readonly tree: boolean;
}

/** What one page shows, and the headers of its response. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly headers: readonly string[];
}

/** The parameters of a listing that can be read in pages. */
export function paging(after: string): {
  limit: QueryParameter<number | null>;
  after: QueryParameter<string | null>;
} {
  return {
    limit: whole<number | null>(
      'At most so many entries; the header `link` says where the next page is.',
      { from: 1, to: MAX_PAGE, unit: 'a count' },
      null,
    ),
    after: {
      description: after,
      schema: Type.String({ minLength: 1 }),
      fallback: null,
      read(name, value) {
        if (value !== '') return value;
        throw invalidParameter(name, `${name} has no value; give the last entry of the page before.`);
      },
    },
  };
}

export const NEXT_LINK = {
  name: 'link',
  description: 'The next page of a listing with `limit`, `<?…>; rel="next"`; left out on the last one.',
} as const;

/** The header that names the next page, relative to the request's own URL. */
export function nextPage({ limit, array, tree }: PageQuery, after: string): readonly string[] {
  const form = array ? 'array=1&' : tree ? 'tree=1&' : '';
  return ['link', `<?${form}limit=${limit}&after=${encodeURIComponent(after)}>; rel="next"`];
}

/** The first page of what is left of a listing. */
export function pageOf<T>(left: readonly T[], query: PageQuery, cursor: (item: T) => string): Page<T> {
  const items = left.slice(0, query.limit ?? left.length);
  const last = items.at(-1);
  const isCut = items.length < left.length && last !== undefined;
  return { items, headers: isCut ? nextPage(query, cursor(last)) : [] };
}

/** What follows `after` among sorted names; `after` itself may be gone. */
export function itemsAfter(sorted: readonly string[], after: string): readonly string[] {
  const first = sorted.findIndex((name) => name > after);
  return first === -1 ? [] : sorted.slice(first);
}

/** How a listing is asked for (decisions, "Listings and status"). @throws QuaysideError `invalid-parameter` */
export function listingForm({ array, tree }: { array: boolean; tree: boolean }): 'plain' | 'array' | 'tree' {
  if (array && tree) throw invalidParameter('tree', 'array and tree are both set. Set one of them.');
  if (array) return 'array';
  return tree ? 'tree' : 'plain';
}
