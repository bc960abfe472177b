import type { Definitions } from '../../engine/definitions.ts';
import type { NamespacePolicy } from '../../engine/engine.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Registry, UnusedName } from './registry.ts';

const HOUR_MS = 3_600_000;
/** A queue that is empty, not paused and unused for so long is forgotten. Its use is known to the hour. */
const FORGOTTEN_MS = 25 * HOUR_MS;
/** A queue that is unused and needed all the same is checked again after this long. */
const NEEDED_MS = HOUR_MS;
/** Between two checks, and names of a namespace that are checked in one. */
const REST_MS = 600_000;
const AT_ONCE = 200;

interface ForgetterParts {
  readonly namespaces: readonly NamespacePolicy[];
  readonly registry: Registry;
  readonly definitions: Definitions;
  /** Housekeeping of one queue: what it remembers for a while is removed first. */
  readonly sweepQueue: (queue: QueueKey) => Promise<unknown>;
}

/**
 * Forgets queues that are no longer needed, with their statistics: names must not pile up.
 *
 * The name and the queue may be on two servers, and other nodes insert at any moment. A node inserts only within twelve
 * hours of a moment at which it made the name known, or noted its use (`Registry.isDeclared`). So what comes to a queue
 * that was unused for a day either came before it was checked, and then the queue is not empty; or its use was noted
 * since, and then the name stays. Whatever breaks between two steps, no element is in a queue without a name.
 */
export class Forgetter {
  readonly #parts: ForgetterParts;
  /** By namespace: where the scan for names of older versions continues. */
  readonly #cursors = new Map<string, string>();
  #nextAt = Number.NEGATIVE_INFINITY;

  constructor(parts: ForgetterParts) {
    this.#parts = parts;
  }

  /** One step, if it is time for one. Never rejects: an unavailable server is asked again at the next. */
  async step(): Promise<void> {
    const now = this.#parts.registry.now();
    if (now < this.#nextAt && now >= this.#nextAt - REST_MS) return;
    this.#nextAt = now + REST_MS;
    const steps = this.#parts.namespaces.map((policy) => this.#stepIn(policy).catch(() => false));
    if ((await Promise.all(steps)).includes(true)) this.#nextAt = now;
  }

  /** Returns whether there may be more. */
  async #stepIn(policy: NamespacePolicy): Promise<boolean> {
    const { registry } = this.#parts;
    const options = { ageMs: FORGOTTEN_MS, limit: AT_ONCE, cursor: this.#cursors.get(policy.name) ?? '' };
    const { names, cursor } = await registry.unused(policy.name, options);
    this.#cursors.set(policy.name, cursor);
    const outcomes = await Promise.allSettled(names.map((name) => this.#forget(policy, name)));
    return names.length === AT_ONCE && outcomes.every(({ status }) => status === 'fulfilled');
  }

  async #forget({ name: ns, deadLetter }: NamespacePolicy, unused: UnusedName): Promise<void> {
    const { registry, sweepQueue } = this.#parts;
    const queue = { ns, name: unused.name };
    // Dead letters come in the same step in which they die: there is no moment before it to make their queue known.
    const isNeeded = unused.name === deadLetter?.queue || (await this.#isPaused(queue));
    if (!isNeeded) await sweepQueue(queue);
    if (!isNeeded && (await registry.forget(queue))) await registry.removeName(ns, unused);
    else await registry.keepName(ns, unused, NEEDED_MS);
  }

  /** A definition that pauses nothing is deleted. One that changes at this moment is a use, which is noted before. */
  async #isPaused({ ns, name }: QueueKey): Promise<boolean> {
    const { definitions } = this.#parts;
    // As the broker writes it (`broker/namespace.ts`).
    const key = JSON.stringify([ns, name]);
    const definition = await definitions.get('queue', key);
    if (definition === null) return false;
    if ((definition.value as { readonly paused?: unknown }).paused === true) return true;
    await definitions.delete('queue', key, definition.version);
    return false;
  }
}
