import type { Namespace } from '../broker/namespace.ts';
import type { QueueRecord } from '../broker/record.ts';
import { QuaysideError } from '../model/errors.ts';

/** A namespace as listings of several need it. `listed` is null where its engine is away. */
export interface Folder {
  readonly name: string;
  readonly listed: readonly Listed[] | null;
}

/** A queue as listings need it. */
export interface Listed {
  readonly namespace: string;
  readonly queue: string;
  readonly record: QueueRecord;
}

/** Records read at once: enough to fill an engine's batch, few enough to leave room for others. */
const RECORDS_AT_ONCE = 64;

/**
 * The queues of namespaces, read once for all who ask at the same time: of a namespace one reading is under way,
 * and at most one more waits behind it. Nobody is shown a picture that is older than their request.
 */
export class QueueLists {
  readonly #underWay = new Map<Namespace, Promise<readonly Listed[]>>();
  readonly #behind = new Map<Namespace, Promise<readonly Listed[]>>();

  /** The records of all queues of a namespace, by name. */
  of(namespace: Namespace): Promise<readonly Listed[]> {
    const underWay = this.#underWay.get(namespace);
    if (underWay === undefined) return this.#begin(namespace);
    let behind = this.#behind.get(namespace);
    if (behind === undefined) {
      const begin = (): Promise<readonly Listed[]> => {
        this.#behind.delete(namespace);
        return this.#begin(namespace);
      };
      behind = underWay.then(begin, begin);
      this.#behind.set(namespace, behind);
    }
    return behind;
  }

  #begin(namespace: Namespace): Promise<readonly Listed[]> {
    const listed = readQueues(namespace);
    this.#underWay.set(namespace, listed);
    const done = (): void => {
      if (this.#underWay.get(namespace) === listed) this.#underWay.delete(namespace);
    };
    listed.then(done, done);
    return listed;
  }
}

async function readQueues(namespace: Namespace): Promise<Listed[]> {
  const names = await namespace.queueNames();
  const listed: Listed[] = [];
  for (let from = 0; from < names.length; from += RECORDS_AT_ONCE) {
    const some = names.slice(from, from + RECORDS_AT_ONCE);
    const records = await Promise.all(some.map((name) => namespace.record(name, null)));
    for (const [i, record] of records.entries()) {
      listed.push({ namespace: namespace.name, queue: some[i] ?? '', record });
    }
  }
  return listed;
}

/** The default form of one namespace: an object keyed by queue name. `__proto__` is a key like any other. */
export function asObject(listed: readonly Listed[]): Record<string, QueueRecord> {
  return Object.fromEntries(listed.map(({ queue, record }) => [queue, record]));
}

/**
 * The queues of several namespaces. One whose engine is away does not keep the others from being shown.
 * @throws QuaysideError the first one's reason, where none of them can be listed
 */
export async function listFolders(
  namespaces: readonly Namespace[],
  list: (namespace: Namespace) => Promise<readonly Listed[]>,
): Promise<Folder[]> {
  const outcomes = await Promise.allSettled(namespaces.map(list));
  const reasons = outcomes.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
  const fault = reasons.find((reason) => !isAway(reason));
  if (fault !== undefined) throw fault;
  if (reasons.length > 0 && reasons.length === namespaces.length) throw reasons[0];
  return outcomes.map((outcome, i) => ({
    name: namespaces[i]?.name ?? '',
    listed: outcome.status === 'fulfilled' ? outcome.value : null,
  }));
}

function isAway(reason: unknown): boolean {
  return (
    reason instanceof QuaysideError &&
    (reason.code === 'storage-unavailable' || reason.code === 'outcome-unknown')
  );
}

/** `array=1`. */
export function asArray(folders: readonly Folder[]): {
  data: (QueueRecord & { id: string })[];
  unavailable?: string[];
} {
  const data = folders.flatMap(({ listed }) =>
    (listed ?? []).map(({ namespace, queue, record }) => ({ ...record, id: keyOf(queue, namespace) })),
  );
  const unavailable = folders.filter(({ listed }) => listed === null).map(({ name }) => name);
  return unavailable.length === 0 ? { data } : { data, unavailable };
}

/** `tree=1`, one folder: a namespace with its queues. */
export function asFolder({ name, listed }: Folder): object {
  return {
    title: name,
    key: name,
    folder: true,
    expanded: true,
    ...(listed === null && { unavailable: true }),
    children: (listed ?? []).map(({ queue, record }) => leaf(keyOf(queue, name), queue, record)),
  };
}

function leaf(key: string, title: string, record: QueueRecord): object {
  const { put, get, reserve, commit, rollback } = record.stats;
  return {
    title,
    key,
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

function keyOf(queue: string, namespace: string): string {
  return `${queue}@${namespace}`;
}
