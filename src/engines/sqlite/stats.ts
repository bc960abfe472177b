import type { EngineLog } from '../../engine/engine.ts';
import {
  COUNTER_NAMES,
  type CounterName,
  type Counters,
  MOST_COUNTED_GROUPS,
  type Stats,
  zeroCounters,
} from '../../engine/stats.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import { type GroupName, PLAIN_GROUP } from '../../model/element.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { ToldOnce } from '../../model/told-once.ts';
import type { Client } from './client.ts';
import type { MessageReader } from './message.ts';

/** How long counts may stay in memory only. A crash loses at most these. */
const FLUSH_AFTER_MS = 1000;

interface Buffered {
  readonly queue: QueueKey;
  readonly groups: Map<GroupName, Counters>;
}

/** The Stats port over the worker. Counts gather here and leave once a second, so counting costs no write. */
export class SqliteStats implements Stats {
  readonly #client: Client;
  readonly #clock: Clock;
  readonly #told: ToldOnce;
  /** By namespace and name. */
  #buffer = new Map<string, Map<string, Buffered>>();
  #cancelFlush: CancelTimer | null = null;

  constructor(client: Client, clock: Clock, log: EngineLog) {
    this.#client = client;
    this.#clock = clock;
    this.#told = new ToldOnce({
      failed: (err) => log.warn({ err }, 'statistics could not be stored'),
      worksAgain: () => log.info({}, 'statistics are stored again'),
    });
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    this.#gather(queue, group, deltas);
    this.#cancelFlush ??= this.#clock.after(FLUSH_AFTER_MS, () => {
      this.flush().catch((error: unknown) => this.#told.failed(error));
    });
  }

  read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    const buffered = new Map<GroupName, Counters>();
    const groups = this.#buffer.get(queue.ns)?.get(queue.name)?.groups ?? [];
    for (const [group, counters] of groups) buffered.set(group, { ...counters });
    this.#client.begin('statsRead').value(this.#client.handle(queue));
    // A flush that is under way was called before this read, so the read sees it: calls keep their order.
    return this.#client.end('statsRead', (reply) => {
      for (let left = reply.number(); left > 0; left--) {
        const group = reply.text();
        const counters = buffered.get(group) ?? zeroCounters();
        addCounters(counters, readCounters(reply));
        buffered.set(group, counters);
      }
      return buffered;
    });
  }

  /** What was certainly not stored is gathered again; what may have been is not added twice. */
  async flush(): Promise<void> {
    this.stopTimer();
    const buffer = this.#buffer;
    if (buffer.size === 0) return;
    this.#buffer = new Map();
    const entries = [...buffer.values()].flatMap((queues) =>
      [...queues.values()].flatMap(({ queue, groups }) =>
        [...groups].map(([group, counters]) => ({ queue, group, counters })),
      ),
    );
    const call = this.#client.begin('statsAdd');
    call.value(entries.length);
    for (const { queue, group, counters } of entries) {
      call.value(this.#client.handle(queue));
      call.value(group);
      for (const name of COUNTER_NAMES) call.value(counters[name]);
    }
    try {
      await this.#client.end('statsAdd', () => {});
      this.#told.worked();
    } catch (error) {
      if (error instanceof QuaysideError && error.code !== 'outcome-unknown') {
        for (const { queue, group, counters } of entries) this.#gather(queue, group, counters);
      }
      throw error;
    }
  }

  #gather(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    const { groups } = this.#buffered(queue);
    let counters = groups.get(group);
    if (counters === undefined) {
      if (groups.size > MOST_COUNTED_GROUPS && group !== PLAIN_GROUP) return;
      counters = zeroCounters();
      groups.set(group, counters);
    }
    addCounters(counters, deltas);
  }

  #buffered(queue: QueueKey): Buffered {
    let queues = this.#buffer.get(queue.ns);
    if (queues === undefined) {
      queues = new Map();
      this.#buffer.set(queue.ns, queues);
    }
    let buffered = queues.get(queue.name);
    if (buffered === undefined) {
      buffered = { queue, groups: new Map() };
      queues.set(queue.name, buffered);
    }
    return buffered;
  }

  stopTimer(): void {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
  }
}

function addCounters(to: Counters, deltas: Partial<Counters>): void {
  // Of the six names a count usually has one, and this is on every request's path.
  for (const name in deltas) to[name as CounterName] += deltas[name as CounterName] ?? 0;
}

function readCounters(reply: MessageReader): Counters {
  const counters = zeroCounters();
  for (const name of COUNTER_NAMES) counters[name] = reply.number();
  return counters;
}
