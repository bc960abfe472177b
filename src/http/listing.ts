import type { Namespace } from '../broker/namespace.ts';
import type { QueueRecord } from '../broker/record.ts';

/** A queue as listings need it. */
interface Listed {
  readonly namespace: string;
  readonly queue: string;
  readonly record: QueueRecord;
}

/** Records read at once: enough to fill an engine's batch, few enough to leave room for others. */
const RECORDS_AT_ONCE = 64;

/** The records of all queues of a namespace, by name. */
export async function listQueues(namespace: Namespace): Promise<Listed[]> {
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

/** `array=1`. */
export function asArray(listed: readonly Listed[]): { data: (QueueRecord & { id: string })[] } {
  return { data: listed.map(({ namespace, queue, record }) => ({ ...record, id: keyOf(queue, namespace) })) };
}

/** `tree=1`, one folder: a namespace with its queues. */
export function asFolder(namespace: string, listed: readonly Listed[]): object {
  return {
    title: namespace,
    key: namespace,
    folder: true,
    expanded: true,
    children: listed.map(({ queue, record }) => leaf(keyOf(queue, namespace), queue, record)),
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
