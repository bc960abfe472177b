import type { Definitions } from '../../engine/definitions.ts';
import type { NamespacePolicy } from '../../engine/engine.ts';
import type { SweepResult } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Batchers } from './batcher.ts';
import type { RedisContext } from './context.ts';
import { queueText } from './keys.ts';
import type { Entry, Registry, UnusedName } from './registry.ts';
import { SWEEP, type Swept } from './verbs/read.ts';

/** Queues that one call sweeps, at most. */
const MAX_QUEUES = 500;
/** Queues swept in one go when the next moment is sought. */
const STEP = 50;
/** Queues whose server is unavailable are swept again after this long. */
const AGAIN_MS = 5_000;

const HOUR_MS = 3_600_000;
/** A queue that is empty, not paused and unused for so long is forgotten. Its use is known to the hour. */
const FORGOTTEN_MS = 25 * HOUR_MS;
/** A queue that is unused and needed all the same is checked again after this long. */
const NEEDED_MS = HOUR_MS;
/** Between two checks, and names of a namespace that are checked in one. */
const REST_MS = 600_000;
const NAMES_AT_ONCE = 200;

/** Ends leases and does the housekeeping for all queues of the engine, by the registry's lists; forgets unused queues. */
export class Sweeper {
  readonly #context: RedisContext;
  readonly #batchers: Batchers;
  readonly #registry: Registry;
  readonly #definitions: Definitions;
  /** Queues that gained elements outside a sweep, until one reports them. */
  readonly #affected = new Map<string, QueueKey>();
  /** When unused queues are looked for again. */
  #forgetAt = Number.NEGATIVE_INFINITY;

  constructor(context: RedisContext, batchers: Batchers, registry: Registry, definitions: Definitions) {
    this.#context = context;
    this.#batchers = batchers;
    this.#registry = registry;
    this.#definitions = definitions;
  }

  /** The next sweep names this queue. */
  noteAffected(queue: QueueKey): void {
    this.#affected.set(queueText(queue), queue);
  }

  #sweepQueue(queue: QueueKey): Promise<Swept> {
    const options = { isFree: true, moves: true };
    return this.#batchers.call(queue, SWEEP, this.#context.dedupWindowMs, options);
  }

  /** See `Storage.sweep`. @throws ExecutionError */
  async sweep(): Promise<SweepResult> {
    const now = this.#registry.now();
    const [due, tidy] = await Promise.all([
      this.#registry.entries('due', '-inf', now, MAX_QUEUES),
      this.#registry.entries('tidy', '-inf', now, MAX_QUEUES),
    ]);
    const { swept, silent } = await this.#sweepAll([...due, ...tidy]);
    const isSilent = ({ queue }: Entry): boolean => silent.has(queueText(queue));
    const dueTexts = new Set(due.map(({ queue }) => queueText(queue)));
    for (const [text, { queue, found }] of swept) {
      if (found.released || (found.ready && dueTexts.has(text))) this.noteAffected(queue);
    }
    const again = now + AGAIN_MS;
    await Promise.all([
      this.#registerNext(swept, now + 1),
      ...due.filter(isSilent).map(({ queue }) => this.#registry.addDue(queue, again)),
      ...tidy.filter(isSilent).map(({ queue }) => this.#registry.addTidy(queue, again)),
    ]);
    await Promise.all([this.#registry.remove('due', due), this.#registry.remove('tidy', tidy)]);
    await this.forgetUnused();
    const more = due.length === MAX_QUEUES || [...swept.values()].some(({ found }) => found.more);
    const nextAt = more ? now : await this.#nextAt(now, { swept, silent });
    const affected = [...this.#affected.values()];
    this.#affected.clear();
    return { affected, nextAt };
  }

  /** An unavailable server of a cluster must not keep the others' leases from ending. */
  async #sweepAll(entries: readonly Entry[]): Promise<SweptQueues> {
    const queues = new Map(entries.map(({ queue }) => [queueText(queue), queue]));
    const swept = new Map<string, SweptQueue>();
    const silent = new Set<string>();
    await Promise.all(
      Array.from(queues, async ([text, queue]) => {
        try {
          swept.set(text, { queue, found: await this.#sweepQueue(queue) });
        } catch {
          silent.add(text);
        }
      }),
    );
    return { swept, silent };
  }

  /**
   * Before the old entries are removed: a queue that must be swept is in a list at any moment.
   * @param earliest later than all of those, so that no new entry is one of them: a server whose clock is behind the
   *   registry's may return a moment that the registry has reached
   */
  async #registerNext(swept: ReadonlyMap<string, SweptQueue>, earliest: number): Promise<void> {
    const adding: Promise<void>[] = [];
    for (const { queue, found } of swept.values()) {
      const { nextTidyAt } = found;
      const nextAt = found.more ? earliest : found.nextAt;
      if (nextAt !== null) adding.push(this.#registry.addDue(queue, Math.max(nextAt, earliest)));
      if (nextTidyAt !== null) adding.push(this.#registry.addTidy(queue, Math.max(nextTidyAt, earliest)));
    }
    await Promise.all(adding);
  }

  /**
   * The moment at which the next lease ends. Entries only say not before when: a lease that was settled leaves
   * its entry, so the queues themselves are swept, in the order of their entries, until none can be earlier.
   */
  async #nextAt(now: number, { swept, silent }: SweptQueues): Promise<number | null> {
    let next = silent.size > 0 ? now + AGAIN_MS : Number.POSITIVE_INFINITY;
    for (const { found } of swept.values()) next = Math.min(next, found.nextAt ?? next);
    const later = await this.#registry.entries('due', `(${now}`, '+inf', MAX_QUEUES);
    const asked = new Set([...swept.keys(), ...silent]);
    for (let from = 0; from < later.length; from += STEP) {
      const step = later.slice(from, from + STEP);
      if ((step[0]?.at ?? 0) >= next) break;
      const found = await this.#sweepAll(step.filter(({ queue }) => !asked.has(queueText(queue))));
      for (const text of [...found.swept.keys(), ...found.silent]) asked.add(text);
      for (const { queue, found: each } of found.swept.values()) {
        if (each.released) this.noteAffected(queue);
        next = Math.min(next, each.more ? now : (each.nextAt ?? next));
      }
      for (const { queue, at } of step) if (found.silent.has(queueText(queue))) next = Math.min(next, at);
    }
    const last = later.at(-1);
    if (later.length === MAX_QUEUES && last !== undefined) next = Math.min(next, last.at);
    return next === Number.POSITIVE_INFINITY ? null : next;
  }

  /**
   * Forgets queues that are no longer needed, with their statistics: names must not pile up. One step, if it is time for one.
   * Never rejects: an unavailable server is asked again at the next.
   *
   * The name and the queue may be on two servers, and other nodes insert at any moment. A node inserts only within twelve
   * hours of a moment at which it made the name known, or noted its use (`Registry.isDeclared`). So what comes to a queue
   * that was unused for a day either came before it was checked, and then the queue is not empty; or its use was noted
   * since, and then the name stays. Whatever breaks between two steps, no element is in a queue without a name.
   */
  async forgetUnused(): Promise<void> {
    const now = this.#registry.now();
    if (now < this.#forgetAt && now >= this.#forgetAt - REST_MS) return;
    this.#forgetAt = now + REST_MS;
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
    // Dead letters come in the same step in which they die: there is no moment before it to make their queue known.
    const isNeeded = this.#context.policies.isDeadLetterQueue(queue) || (await this.#isConfigured(queue));
    // What it remembers for a while is removed first.
    if (!isNeeded) await this.#sweepQueue(queue);
    const isForgotten = !isNeeded && (await this.#registry.forget(queue));
    await this.#registry.unname(ns, unused, isForgotten ? null : NEEDED_MS);
  }

  /** A definition that pauses nothing is deleted. One that changes at this moment is a use, which is noted before. */
  async #isConfigured({ ns, name }: QueueKey): Promise<boolean> {
    // As the broker writes it (`broker/namespace.ts`).
    const key = JSON.stringify([ns, name]);
    if ((await this.#definitions.get('queue-options', key)) !== null) return true;
    const definition = await this.#definitions.get('queue', key);
    if (definition === null) return false;
    if ((definition.value as { readonly paused?: unknown }).paused === true) return true;
    await this.#definitions.delete('queue', key, definition.version);
    return false;
  }
}

interface SweptQueue {
  readonly queue: QueueKey;
  readonly found: Swept;
}

interface SweptQueues {
  /** By their names. */
  readonly swept: ReadonlyMap<string, SweptQueue>;
  /** Those whose server did not reply. */
  readonly silent: ReadonlySet<string>;
}
