import { AffectedQueues } from '../../engine/affected-queues.ts';
import { type Definitions, queueDefinitionKey } from '../../engine/definitions.ts';
import type { NamespacePolicy } from '../../engine/engine.ts';
import type { QueueKey } from '../../model/names.ts';
import { type Batchers, single } from './batcher.ts';
import type { RedisContext } from './context.ts';
import { queueText } from './keys.ts';
import type { NewSweepEntry, Registry, SweepEntry, SweepList, UnusedName } from './registry.ts';

/** Entries per read. A sweep that has found as many reads no more. */
const MAX_QUEUES = 500;
/** Queues that are swept at a time to find the next moment. */
const QUEUES_PER_STEP = 50;
/** Queues whose server is unavailable are swept again after this long. */
const RETRY_MS = 5_000;

const HOUR_MS = 3_600_000;
/** A queue that is empty, not paused and unused for this long is removed. Its last use is known to the hour. */
const FORGOTTEN_MS = 25 * HOUR_MS;
/** An unused queue that is still needed is checked again after this long. */
const NEEDED_MS = HOUR_MS;
/** Time between two checks for unused queues, and how many names of a namespace one check covers. */
const CHECK_INTERVAL_MS = 600_000;
const NAMES_AT_ONCE = 200;

/**
 * Ends leases and does the housekeeping in all queues of the engine, by the registry's lists; removes unused queues.
 */
export class Sweeper {
  readonly #context: RedisContext;
  readonly #batchers: Batchers;
  readonly #registry: Registry;
  readonly #definitions: Definitions;
  readonly #namespaces: ReadonlySet<string>;
  readonly affected = new AffectedQueues();
  /** When to look for unused queues again. */
  #forgetAt = Number.NEGATIVE_INFINITY;

  constructor(context: RedisContext, batchers: Batchers, registry: Registry, definitions: Definitions) {
    this.#context = context;
    this.#batchers = batchers;
    this.#registry = registry;
    this.#definitions = definitions;
    this.#namespaces = new Set(context.namespaces.map(({ name }) => name));
  }

  #sweepQueue(queue: QueueKey): Promise<Swept> {
    return this.#batchers.call(queue, SWEEP, this.#context.dedupWindowMs);
  }

  /** See `Storage.sweep`. @throws QuaysideError */
  async sweep(): Promise<number | null> {
    const now = this.#registry.now();
    await this.#registry.tidyUntidied(now);
    const [due, tidy] = await Promise.all([this.#dueEntries('due', now), this.#dueEntries('tidy', now)]);
    const swept = await this.#sweepAll([...due, ...tidy], now);
    const dueTexts = new Set(due.map(({ queue }) => queueText(queue)));
    const nextDue: NewSweepEntry[] = [];
    const nextTidy: NewSweepEntry[] = [];
    // Later than all old entries, so that no new entry equals one of them: a server whose clock is behind the
    // registry's may report a moment that has already passed there.
    const earliest = now + 1;
    for (const [text, { queue, released, ready, more, nextAt, nextTidyAt }] of swept) {
      if (released || (ready && dueTexts.has(text))) this.affected.note(queue);
      if (more) nextDue.push({ queue, at: earliest });
      else if (nextAt !== null) nextDue.push({ queue, at: Math.max(nextAt, earliest) });
      if (nextTidyAt !== null) nextTidy.push({ queue, at: Math.max(nextTidyAt, earliest) });
    }
    // Add the next entries before the old ones are removed: a queue that must be swept is always listed.
    await Promise.all([this.#registry.add('due', nextDue), this.#registry.add('tidy', nextTidy)]);
    await Promise.all([this.#registry.remove('due', due), this.#registry.remove('tidy', tidy)]);
    await this.forgetUnused();
    const isFull = due.length >= MAX_QUEUES || tidy.length >= MAX_QUEUES;
    return isFull || [...swept.values()].some(({ more }) => more) ? now : this.#nextAt(now, swept);
  }

  /** The first entries that are due, of this engine's namespaces. */
  async #dueEntries(list: SweepList, now: number): Promise<SweepEntry[]> {
    const found: SweepEntry[] = [];
    for (let skipped = 0; found.length < MAX_QUEUES; skipped += MAX_QUEUES) {
      const entries = await this.#registry.entries(list, '-inf', now, MAX_QUEUES, skipped);
      found.push(...entries.filter((entry) => this.#isOwn(entry)));
      if (entries.length < MAX_QUEUES) break;
    }
    return found;
  }

  /**
   * Engines with other namespaces may share the server and the prefix: those of a node with an older configuration, or
   * with another URL. A sweep without the policy of a namespace would return or remove deliveries that should be dead
   * letters.
   */
  #isOwn({ queue }: SweepEntry): boolean {
    return this.#namespaces.has(queue.ns);
  }

  /**
   * Sweeps each queue once. An unavailable server of a cluster must not delay the others' leases: its queues are swept
   * again later.
   */
  async #sweepAll(entries: readonly SweepEntry[], now: number): Promise<Map<string, SweptQueue>> {
    const queues = new Map(entries.map(({ queue }) => [queueText(queue), queue]));
    const retryAt = now + RETRY_MS;
    const none: Swept = { released: false, ready: false, more: false, nextAt: retryAt, nextTidyAt: retryAt };
    const sweeping = Array.from(queues, async ([text, queue]) => {
      const swept = await this.#sweepQueue(queue).catch(() => none);
      return [text, { queue, ...swept }] as const;
    });
    return new Map(await Promise.all(sweeping));
  }

  /**
   * When the next lease or element expires; null: never. Entries are only lower bounds, as a settled lease leaves its
   * entry. So queues are swept, in the order of their entries, until no other can be due earlier.
   */
  async #nextAt(now: number, swept: ReadonlyMap<string, SweptQueue>): Promise<number | null> {
    let next = Number.POSITIVE_INFINITY;
    for (const { nextAt } of swept.values()) next = Math.min(next, nextAt ?? next);
    const later = await this.#registry.entries('due', `(${now}`, '+inf', MAX_QUEUES);
    const checked = new Set(swept.keys());
    for (let from = 0; from < later.length; from += QUEUES_PER_STEP) {
      const step = later.slice(from, from + QUEUES_PER_STEP);
      if ((step[0]?.at ?? 0) >= next) break;
      const others = step.filter((entry) => this.#isOwn(entry) && !checked.has(queueText(entry.queue)));
      for (const [text, { queue, released, more, nextAt }] of await this.#sweepAll(others, now)) {
        checked.add(text);
        if (released) this.affected.note(queue);
        next = Math.min(next, more ? now : (nextAt ?? next));
      }
    }
    const last = later.at(-1);
    if (later.length === MAX_QUEUES && last !== undefined) next = Math.min(next, last.at);
    return next === Number.POSITIVE_INFINITY ? null : next;
  }

  /**
   * Removes unused queues with their statistics, so that names do not accumulate: one step, if it is time for one.
   * Never rejects: an unavailable server is tried again in the next step.
   *
   * The name and the queue may be on two servers, and other nodes insert at any moment. A node inserts only within
   * twelve hours of registering the name, or of recording its use (`Registry.isDeclared`). So if elements arrive in a
   * queue that was unused for a day, they either arrived before the check, and the queue is not empty; or its use was
   * recorded since, and the name stays. Whichever step fails, no element is in a queue without a name.
   */
  async forgetUnused(): Promise<void> {
    const now = this.#registry.now();
    if (now < this.#forgetAt && now >= this.#forgetAt - CHECK_INTERVAL_MS) return;
    this.#forgetAt = now + CHECK_INTERVAL_MS;
    const steps = this.#context.namespaces.map((policy) => this.#forgetIn(policy).catch(() => false));
    if ((await Promise.all(steps)).includes(true)) this.#forgetAt = now;
  }

  /** Returns whether there may be more. */
  async #forgetIn(policy: NamespacePolicy): Promise<boolean> {
    const names = await this.#registry.unused(policy.name, FORGOTTEN_MS, NAMES_AT_ONCE);
    const outcomes = await Promise.allSettled(names.map((name) => this.#forget(policy, name)));
    return names.length === NAMES_AT_ONCE && outcomes.every(({ status }) => status === 'fulfilled');
  }

  async #forget({ name: ns }: NamespacePolicy, unused: UnusedName): Promise<void> {
    const queue = { ns, name: unused.name };
    // Dead letters are stored in the step in which they die, so their queue's name cannot be registered before.
    const isNeeded = this.#context.policies.isDeadLetterQueue(queue) || (await this.#isConfigured(queue));
    // The sweep removes expired dedup keys, sessions and marks, which keep a queue from being empty.
    if (!isNeeded) await this.#sweepQueue(queue);
    const isForgotten = !isNeeded && (await this.#registry.forget(queue));
    const checkedAgain = this.#registry.now() - FORGOTTEN_MS + NEEDED_MS;
    await this.#registry.unname(ns, unused, isForgotten ? null : checkedAgain);
  }

  /**
   * Whether a definition requires the queue. One that pauses nothing is deleted: a node that changes it at this moment
   * has recorded a use of the queue before.
   */
  async #isConfigured({ ns, name }: QueueKey): Promise<boolean> {
    const key = queueDefinitionKey({ ns, name });
    if ((await this.#definitions.get('queue-options', key)) !== null) return true;
    const definition = await this.#definitions.get('queue', key);
    if (definition === null) return false;
    if ((definition.value as { readonly paused?: unknown }).paused === true) return true;
    await this.#definitions.delete('queue', key, definition.version);
    return false;
  }
}

/** What sweeping one queue found. Moments are by the server's clock; null: never. */
interface Swept {
  /** Leases have ended, and their deliveries wait again. */
  readonly released: boolean;
  /** A delivery can be taken now. */
  readonly ready: boolean;
  readonly more: boolean;
  /** When the next lease or element expires, or retention applies. */
  readonly nextAt: number | null;
  readonly nextTidyAt: number | null;
}

interface SweptQueue extends Swept {
  readonly queue: QueueKey;
}

const SWEEP = single<number, Swept>(
  'sweep',
  (windowMs) => [windowMs],
  ({ text }) => ({
    released: text.readUInt8(0) === 1,
    ready: text.readUInt8(1) === 1,
    more: text.readUInt8(2) === 1,
    nextAt: text.readUIntBE(3, 6) || null,
    nextTidyAt: text.readUIntBE(9, 6) || null,
  }),
  { isRead: true },
);
