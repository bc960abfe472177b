import { CALL_TIMEOUT_MS } from '../../engine/calls.ts';
import type { Usage } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import { asString, type Reply } from './client/connection.ts';
import type { Executor } from './client/executor.ts';
import type { RedisContext } from './context.ts';
import { type Keys, parseQueueText, queueText } from './keys.ts';

/** When to sweep a queue: good for one sweep at or after its moment. */
export interface NewSweepEntry {
  readonly queue: QueueKey;
  /** By the server's clock. */
  readonly at: number;
}

/** An entry of a sweep list. */
export interface SweepEntry extends NewSweepEntry {
  readonly member: string;
}

export interface UnusedName {
  readonly name: string;
  readonly usedAt: number;
}

/** The sweep lists: queues in which something expires, and queues that need housekeeping. */
export type SweepList = 'due' | 'tidy';

/** An entry this close to its moment may be removed by a sweep while a call that relies on it is in flight. */
const MARGIN_MS = CALL_TIMEOUT_MS + 1_000;
const TIDY_AFTER_MS = 60_000;
/** A use is recorded if the last recorded one is older than this: one write per hour for a busy queue. */
const USE_NOTED_MS = 3_600_000;
/**
 * A queue with a recorded use within this time certainly has its name: names are removed after a day without use
 * (`Sweeper`). The rest of the day allows for clocks that differ, and for records that a failover lost.
 */
const SURELY_KNOWN_MS = 12 * USE_NOTED_MS;
/** A server's time is estimated between its replies. If its clock is set back further, all uses are recorded again. */
const CLOCK_TOLERANCE_MS = 60_000;
/** A map with more queues than this is cleared. */
const MAX_REMEMBERED = 100_000;
/** Queues whose usage is queried at a time: Redis counts them in less than a millisecond. */
const QUEUES_AT_ONCE = 200;
/**
 * How many fields, members or nodes of a key Redis measures, in 3 ms at most. For a larger key, it extrapolates: to
 * measure all of a million takes half a second, in which it serves nobody else.
 */
const SAMPLES = 10_000;

/**
 * Stores the names of queues, and when to sweep which, in keys outside the slots of the queues.
 *
 * An entry is good for one sweep, so no locks are needed: the node that sweeps at its moment adds an entry for the next
 * moment, as reported by the queue, and only then removes the old one. Before a reserve is sent, it ensures that there
 * is an entry between now and the end of its lease.
 */
export class Registry {
  readonly #context: Pick<RedisContext, 'settings' | 'topology' | 'dedupWindowMs'>;
  readonly #executor: Executor;
  readonly #keys: Keys;
  /** By queue with a registered name: when a use was last recorded, or began to be. */
  readonly #used = new Map<string, number>();
  /** By queue: the last moment that was registered. */
  readonly #due = new Map<string, number>();
  /** The same for sweeps that are due within `MARGIN_MS`. */
  readonly #soon = new Map<string, number>();
  readonly #tidy = new Map<string, number>();
  /** Queues of which an entry could not be written. */
  readonly #untidied = new Map<string, QueueKey>();
  /** By queue: its last known tag. */
  readonly #tags = new Map<string, string>();
  readonly #written = [this.#used, this.#due, this.#soon, this.#tidy, this.#tags];
  /** The last time that `now` returned without a queue. */
  #seenAt = Number.NEGATIVE_INFINITY;

  constructor(context: Pick<RedisContext, 'executor' | 'keys' | 'settings' | 'topology' | 'dedupWindowMs'>) {
    this.#context = context;
    this.#executor = context.executor;
    this.#keys = context.keys;
  }

  /** The time with which entries are compared, or, with `queue`, the time of the queue's server. */
  now(queue?: QueueKey): number {
    if (queue !== undefined) return this.#timeOf(this.#keys.queue(queue).hash);
    const now = this.#timeOf(this.#keys.due);
    // The clock was set back. While it was ahead, a sweep may have removed entries whose moments are still to come.
    if (now < this.#seenAt - MARGIN_MS) this.noteLoss();
    this.#seenAt = now;
    return now;
  }

  #timeOf(key: string): number {
    const { settings, topology } = this.#context;
    return settings.givenTime?.now() ?? topology.serverTime(topology.slotOf(key));
  }

  isDeclared(queue: QueueKey): boolean {
    return this.#isWithin(this.#used.get(queueText(queue)), SURELY_KNOWN_MS);
  }

  /**
   * A server was restarted or replaced and may have lost the last writes: nothing that was written before is relied on.
   */
  noteLoss(): void {
    for (const map of this.#written) map.clear();
  }

  /** A queue with another tag than before has lost its data, and perhaps its name and entries as well. */
  noteTag(queue: QueueKey, tag: string): void {
    const text = queueText(queue);
    const before = this.#tags.get(text);
    if (before === tag) return;
    if (before !== undefined) this.forgetWritten(queue);
    remember(this.#tags, text, tag);
  }

  /** Nothing that was written for the queue is relied on any more. */
  forgetWritten(queue: QueueKey): void {
    for (const map of this.#written) map.delete(queueText(queue));
  }

  /** Registers the names of queues. @throws QuaysideError */
  async declare(queues: readonly QueueKey[], deadlineAt = this.#executor.deadline()): Promise<void> {
    if (queues.length === 0) return;
    const now = this.now();
    const byNamespace = Map.groupBy(queues, ({ ns }) => ns);
    await Promise.all(
      Array.from(byNamespace, ([ns, group]) => {
        const names = group.map(({ name }) => name);
        return this.#use(ns, names, true, deadlineAt);
      }),
    );
    for (const queue of queues) remember(this.#used, queueText(queue), now);
  }

  /**
   * Registers the name of a queue that was just created if it has none. A read: queues that are empty most of the time
   * are created by nearly each insert, and the names of all are on one server. @throws QuaysideError
   */
  async nameMissing(queue: QueueKey): Promise<void> {
    const key = this.#keys.names(queue.ns);
    if ((await this.#executor.read(key, 'ZSCORE', [key, queue.name])) === null) await this.declare([queue]);
  }

  /**
   * Records, at most once an hour, that a declared queue is used, which keeps its name for a day. Runs in the
   * background; a failed attempt is repeated at the next use.
   */
  noteUse(queue: QueueKey): void {
    const text = queueText(queue);
    const before = this.#used.get(text);
    if (before === undefined || this.#isWithin(before, USE_NOTED_MS)) return;
    const now = this.now();
    remember(this.#used, text, now);
    this.isKnown(queue).catch(() => {
      if (this.#used.get(text) === now) remember(this.#used, text, before);
    });
  }

  /** Whether the queue's name is registered. If so, its use is recorded. @throws QuaysideError */
  async isKnown(queue: QueueKey, deadlineAt = this.#executor.deadline()): Promise<boolean> {
    const now = this.now();
    const isKnown = (await this.#use(queue.ns, [queue.name], false, deadlineAt)) === 1;
    if (isKnown) remember(this.#used, queueText(queue), now);
    else this.#used.delete(queueText(queue));
    return isKnown;
  }

  /** The moments are by the server's clock: a name that is about to be used must never look unused. */
  #use(ns: string, names: readonly string[], creates: boolean, deadlineAt: number): Promise<Reply> {
    const now = Math.floor(this.#context.settings.givenTime?.now() ?? 0);
    const args = [now, creates ? 1 : '', ...names];
    return this.#executor.call('use', [this.#keys.names(ns)], args, { deadlineAt });
  }

  /** Up to `limit` names that were not used for `ageMs`. @throws QuaysideError */
  async unused(ns: string, ageMs: number, limit: number): Promise<UnusedName[]> {
    const key = this.#keys.names(ns);
    const args = [key, '-inf', this.now() - ageMs, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES'];
    const reply = await this.#executor.read(key, 'ZRANGE', args);
    const flat = Array.isArray(reply) ? reply.map(asString) : [];
    const names: UnusedName[] = [];
    for (let i = 0; i < flat.length; i += 2) names.push({ name: flat[i] ?? '', usedAt: Number(flat[i + 1]) });
    return names;
  }

  /**
   * Deletes a queue; returns false if anything is stored in it, or it has declared options.
   * @throws QuaysideError
   */
  forget(queue: QueueKey): Promise<boolean> {
    return this.#delete(queue, true);
  }

  /**
   * Deletes a queue, and then its name unless it was used since; returns false if it has deliveries. A later call that
   * stores something creates the queue again and registers its name. @throws QuaysideError
   */
  async drop(queue: QueueKey): Promise<boolean> {
    const { ns, name } = queue;
    const key = this.#keys.names(ns);
    const score = await this.#executor.read(key, 'ZSCORE', [key, name]);
    const usedAt = score === null ? null : Number(asString(score));
    const isList = this.#context.settings.variant === 'list';
    const hasDedupKeys = usedAt !== null && isList && this.#context.dedupWindowMs > 0;
    if (!(await this.#delete(queue, false, hasDedupKeys ? [this.#keys.listDropped(queue)] : [])))
      return false;
    this.forgetWritten(queue);
    if (usedAt === null) return true;
    await this.unname(ns, { name, usedAt }, null);
    if (!isList) return true;
    // An insert that created the list again, before its name was removed, has found that name.
    const list = this.#keys.list(queue);
    if ((await this.#executor.read(list, 'EXISTS', [list])) === 1) await this.declare([queue]);
    return true;
  }

  async #delete(queue: QueueKey, onlyUnused: boolean, extraKeys: readonly string[] = []): Promise<boolean> {
    const { hash, order, stats } = this.#keys.queue(queue);
    const keys = [hash, order, stats, this.#keys.list(queue), ...extraKeys] as const;
    return (
      (await this.#executor.call('drop', keys, [onlyUnused ? 1 : '', this.#context.dedupWindowMs])) === 1
    );
  }

  /**
   * Removes a name, or sets another moment as its last use, unless it was used since.
   * @param instead that moment; null: the name is removed
   * @throws QuaysideError
   */
  async unname(ns: string, { name, usedAt }: UnusedName, instead: number | null): Promise<void> {
    await this.#executor.call('unname', [this.#keys.names(ns)], [name, usedAt, instead ?? '']);
  }

  #isWithin(moment: number | undefined, ms: number): boolean {
    const now = this.now();
    return moment !== undefined && moment <= now + CLOCK_TOLERANCE_MS && now < moment + ms;
  }

  /** @throws QuaysideError */
  async names(ns: string): Promise<string[]> {
    const key = this.#keys.names(ns);
    const reply = await this.#executor.read(key, 'ZRANGE', [key, 0, -1]);
    return Array.isArray(reply) ? reply.map(asString).sort() : [];
  }

  /**
   * How much the queues of a namespace store. Bytes are measured, because a stored counter could drift: see
   * `library/queue.lua` and `library/list.lua`. @throws QuaysideError
   */
  async usage(ns: string, needsBytes: boolean): Promise<Usage> {
    const names = await this.names(ns);
    const isList = this.#context.settings.variant === 'list';
    const perCall = this.#context.topology.queuesPerCall(QUEUES_AT_ONCE);
    let elements = 0;
    let bytes = 0;
    for (let from = 0; from < names.length; from += QUEUES_AT_ONCE) {
      const counted: string[] = [];
      const measured: string[] = [];
      for (const name of names.slice(from, from + QUEUES_AT_ONCE)) {
        const { hash, order } = this.#keys.queue({ ns, name });
        const list = this.#keys.list({ ns, name });
        counted.push(isList ? list : order);
        if (needsBytes) measured.push(...(isList ? [list] : [hash, order]));
      }
      const counting: Promise<Reply>[] = [];
      for (let at = 0; at < counted.length; at += perCall) {
        const [key = '', ...others] = counted.slice(at, at + perCall);
        counting.push(this.#executor.call('usage', [key, ...others], [], { writes: false }));
      }
      const measuring = measured.map((key) =>
        this.#executor.read(key, 'MEMORY', ['USAGE', key, 'SAMPLES', SAMPLES]),
      );
      const [counts, sizes] = await Promise.all([Promise.all(counting), Promise.all(measuring)]);
      for (const count of counts) elements += Number(count);
      for (const size of sizes) bytes += Number(size);
    }
    return { elements, bytes: needsBytes ? bytes : null };
  }

  /** Ensures that the queue is swept within `ms`. Null if an entry does so already. @throws QuaysideError */
  requireSweep(queue: QueueKey, ms: number, deadlineAt: number): Promise<void> | null {
    const now = this.now();
    const text = queueText(queue);
    const isSoon = ms <= MARGIN_MS;
    const registered = (isSoon ? this.#soon : this.#due).get(text) ?? 0;
    if (registered > (isSoon ? now : now + MARGIN_MS) && registered <= now + ms) return null;
    if (!isSoon) return this.add('due', [{ queue, at: now + ms }], deadlineAt);
    // A sweep may remove the first entry while the call is in flight; then the second one remains.
    const entries = [now + ms, now + ms + MARGIN_MS].map((at) => ({ queue, at }));
    return this.add('due', entries, deadlineAt).then(() => remember(this.#soon, text, now + ms));
  }

  /** Ensures that the queue's housekeeping is done in a minute. Nobody waits for the write. */
  tidyLater(queue: QueueKey): void {
    // The dedup keys of a list expire in Redis.
    if (this.#context.settings.variant === 'list') return;
    const now = this.now();
    const text = queueText(queue);
    if ((this.#tidy.get(text) ?? 0) > now) return;
    const at = now + TIDY_AFTER_MS;
    remember(this.#tidy, text, at);
    this.add('tidy', [{ queue, at }]).catch(() => {
      this.#tidy.delete(text);
      this.tidyBySweep(queue);
    });
  }

  /** Has the next sweep of this node add the queue's entry for housekeeping. */
  tidyBySweep(queue: QueueKey): void {
    remember(this.#untidied, queueText(queue), queue);
  }

  /** Adds the entries that could not be written: perhaps nobody uses their queues any more. @throws QuaysideError */
  async tidyUntidied(at: number): Promise<void> {
    const queues = [...this.#untidied.values()];
    this.#untidied.clear();
    try {
      const entries = queues.map((queue) => ({ queue, at }));
      await this.add('tidy', entries);
    } catch (error) {
      for (const queue of queues) remember(this.#untidied, queueText(queue), queue);
      throw error;
    }
  }

  /**
   * Up to `limit` entries between two moments, the earliest first, after the first `skipped`.
   * @throws QuaysideError
   */
  async entries(
    list: SweepList,
    from: string | number,
    to: string | number,
    limit: number,
    skipped = 0,
  ): Promise<SweepEntry[]> {
    const key = this.#keys[list];
    const args = [key, from, to, 'BYSCORE', 'LIMIT', skipped, limit];
    const reply = await this.#executor.read(key, 'ZRANGE', args);
    return Array.isArray(reply) ? reply.map((member) => readEntry(asString(member))) : [];
  }

  /** @throws QuaysideError */
  async remove(list: SweepList, entries: readonly SweepEntry[]): Promise<void> {
    if (entries.length === 0) return;
    const key = this.#keys[list];
    await this.#executor.command(key, 'ZREM', [key, ...entries.map(({ member }) => member)]);
  }

  /** Adds entries. The moment is part of the member, so a queue may have several. @throws QuaysideError */
  async add(
    list: SweepList,
    entries: readonly NewSweepEntry[],
    deadlineAt = this.#executor.deadline(),
  ): Promise<void> {
    if (entries.length === 0) return;
    const args = entries.flatMap(({ queue, at }) => [
      Math.floor(at),
      `${Math.floor(at)}:${queueText(queue)}`,
    ]);
    await this.#executor.call('moments', [this.#keys[list]], args, { deadlineAt });
    if (list === 'due') for (const { queue, at } of entries) remember(this.#due, queueText(queue), at);
  }
}

function readEntry(member: string): SweepEntry {
  const colon = member.indexOf(':');
  return { member, at: Number(member.slice(0, colon)), queue: parseQueueText(member.slice(colon + 1)) };
}

function remember<Value>(map: Map<string, Value>, text: string, value: Value): void {
  if (map.size > MAX_REMEMBERED) map.clear();
  map.set(text, value);
}
