import type { EngineLog } from '../../engine/engine.ts';
import {
  COUNTER_NAMES,
  type CounterName,
  type Counters,
  type Stats,
  zeroCounters,
} from '../../engine/stats.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Commands } from './client/commands.ts';
import type { Arg } from './client/connection.ts';
import { text } from './client/greeting.ts';
import { type Keys, queueText } from './keys.ts';
import type { Library } from './library.ts';

interface StatsParts {
  readonly commands: Commands;
  readonly keys: Keys;
  readonly library: Library;
  readonly clock: Clock;
  readonly log: EngineLog;
}

interface Buffered {
  readonly queue: QueueKey;
  readonly groups: Map<GroupName, Counters>;
}

const FLUSH_AFTER_MS = 900;
/** Counts are worth less waiting than elements; a status read may have a flush to wait for first. */
const FLUSH_MS = 2_000;
const READ_MS = 2_000;
/** With the server away for long, groups that nobody counted before are not counted any more. */
const MOST_GROUPS = 50_000;

/** The Stats port: a hash per queue, added to once a second. */
export class RedisStats implements Stats {
  readonly #parts: StatsParts;
  #buffer = new Map<string, Buffered>();
  #groups = 0;
  #flushing: Promise<void> = Promise.resolve();
  #cancelFlush: CancelTimer | null = null;
  /** Said once, not for every queue and second. */
  #failing = false;

  constructor(parts: StatsParts) {
    this.#parts = parts;
  }

  add(queue: QueueKey, group: GroupName, deltas: Partial<Counters>): void {
    const counters = this.#countersOf(queue, group);
    if (counters === null) return;
    for (const name of COUNTER_NAMES) counters[name] += deltas[name] ?? 0;
    this.#cancelFlush ??= this.#parts.clock.after(FLUSH_AFTER_MS, () => void this.flush().catch(() => {}));
  }

  async read(queue: QueueKey): Promise<ReadonlyMap<GroupName, Counters>> {
    for (;;) {
      const flushing = this.#flushing;
      // What a flush under way carries is in neither place until it has arrived.
      await flushing.catch(() => {});
      const counts = this.#buffered(queue);
      const key = this.#parts.keys.queue(queue).stats;
      const flat = await this.#parts.commands.read(
        key,
        'HGETALL',
        [key],
        this.#parts.commands.deadline(READ_MS),
      );
      // A flush that began meanwhile may be counted in both places.
      if (this.#flushing !== flushing) continue;
      if (Array.isArray(flat)) addStored(counts, flat.map(text));
      return counts;
    }
  }

  flush(): Promise<void> {
    this.#cancelFlush?.();
    this.#cancelFlush = null;
    const buffer = this.#buffer;
    if (buffer.size === 0) return this.#flushing;
    this.#buffer = new Map();
    this.#groups = 0;
    const before = this.#flushing.catch(() => {});
    const flushing = Promise.all([before, ...[...buffer.values()].map((each) => this.#flushQueue(each))]);
    this.#flushing = flushing.then(() => {});
    this.#flushing.catch(() => {});
    return this.#flushing;
  }

  /** Flushes for the last time, as far as the server answers. */
  async stop(): Promise<void> {
    await this.flush().catch(() => {});
    this.#cancelFlush?.();
    this.#cancelFlush = null;
  }

  #buffered(queue: QueueKey): Map<GroupName, Counters> {
    const counts = new Map<GroupName, Counters>();
    for (const [group, counters] of this.#buffer.get(queueText(queue))?.groups ?? []) {
      counts.set(group, { ...counters });
    }
    return counts;
  }

  #countersOf(queue: QueueKey, group: GroupName): Counters | null {
    const key = queueText(queue);
    const buffered = this.#buffer.get(key) ?? { queue, groups: new Map<GroupName, Counters>() };
    let counters = buffered.groups.get(group) ?? null;
    if (counters !== null) return counters;
    if (this.#groups >= MOST_GROUPS) return null;
    this.#groups++;
    this.#buffer.set(key, buffered);
    counters = zeroCounters();
    buffered.groups.set(group, counters);
    return counters;
  }

  /** What was certainly not stored goes back into the buffer; what may have been is not added twice. */
  async #flushQueue({ queue, groups }: Buffered): Promise<void> {
    const { commands, keys, library, log } = this.#parts;
    const key = keys.queue(queue).stats;
    try {
      const call = [library.addCounters, 1, key, ...additions(groups)];
      await commands.writeOnce(key, 'FCALL', call, commands.deadline(FLUSH_MS));
      this.#failing = false;
    } catch (error) {
      if (!this.#failing)
        log.warn({ queue, err: error }, 'statistics could not be stored; they are tried again');
      this.#failing = true;
      if (error instanceof Error && 'certain' in error && error.certain === true) {
        for (const [group, counters] of groups) this.add(queue, group, counters);
      }
      throw error;
    }
  }
}

function additions(groups: ReadonlyMap<GroupName, Counters>): Arg[] {
  const args: Arg[] = [];
  for (const [group, counters] of groups) {
    for (const name of COUNTER_NAMES) {
      if (counters[name] !== 0) args.push(`${name}:${group}`, counters[name]);
    }
  }
  return args;
}

function addStored(counts: Map<GroupName, Counters>, flat: readonly string[]): void {
  for (let i = 0; i < flat.length; i += 2) {
    const field = flat[i] ?? '';
    const colon = field.indexOf(':');
    const name = field.slice(0, colon) as CounterName;
    if (!COUNTER_NAMES.includes(name)) continue;
    const group = field.slice(colon + 1);
    const counters = counts.get(group) ?? zeroCounters();
    counters[name] += Number(flat[i + 1]);
    counts.set(group, counters);
  }
}
