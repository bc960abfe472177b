import type { Namespace } from '../broker/namespace.ts';
import type { QueueRecord } from '../broker/record.ts';
import { QuaysideError } from '../model/errors.ts';

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
