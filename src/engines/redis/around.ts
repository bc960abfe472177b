import { countLetters, type Stats } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import type { FlightReply } from './calls/flight.ts';
import type { Sent } from './calls/lane.ts';
import type { AroundBatches } from './calls/lanes.ts';
import type { Task } from './calls/task.ts';
import type { OutboxRelay } from './outbox-relay.ts';
import type { Policies } from './policies.ts';
import type { Registry } from './registry.ts';
import type { Sweeper } from './sweeper.ts';

interface AroundParts {
  readonly policies: Policies;
  readonly registry: Registry;
  readonly stats: Stats;
  /** Looked at when first needed: they in turn need the lanes. */
  readonly relay: () => OutboxRelay;
  readonly sweeper: () => Sweeper;
}

/** What must be done outside a queue's slot before and after a batch, in the order that loses nothing. */
export class Around implements AroundBatches {
  readonly #parts: AroundParts;

  constructor(parts: AroundParts) {
    this.#parts = parts;
  }

  /** First the name, and the entry by which a sweep finds the queue; then what they are for. */
  before(
    queue: QueueKey,
    targets: readonly QueueKey[],
    tasks: readonly Task[],
    deadlineAt: number,
  ): Promise<void> | null {
    const { registry } = this.#parts;
    const needed: Promise<void>[] = [];
    const makes = tasks.some((task) => task.makes);
    const made = makes ? [queue, ...targets] : targets;
    const unknown = made.filter((each) => !registry.isDeclared(each));
    if (unknown.length > 0) needed.push(registry.declare(unknown, deadlineAt));
    const registerDue = (each: QueueKey, ms: number | null): void => {
      const registering = ms === null ? null : registry.dueIn(each, ms, deadlineAt);
      if (registering !== null) needed.push(registering);
    };
    for (const each of made) registerDue(each, this.#parts.policies.retentionMs(each));
    for (const { dueMs } of tasks) registerDue(queue, dueMs);
    // Answers are kept of calls that are counted; of outbox entries, that they came.
    if (makes || tasks[0]?.kind === 'counted') {
      registry.tidyLater(queue);
      for (const each of [queue, ...made]) if (!unknown.includes(each)) registry.noteUse(each);
    }
    return needed.length === 0 ? null : Promise.all(needed).then(() => {});
  }

  behind(queues: readonly QueueKey[], reply: FlightReply): Sent['after'] {
    const [queue] = queues;
    if (queue === undefined) return null;
    const named = this.#nameMade(queues, reply.made);
    const { parcels, died } = reply;
    const delivered = parcels.length === 0 ? null : this.#parts.relay().deliver(queue, reply);
    if (died.length > 0) this.#noteLetters(queue, died, delivered);
    if (named === null && delivered === null) return null;
    const both = Promise.all([named, delivered]).then(() => {});
    return (task) => (task.moves && delivered !== null ? both : named);
  }

  #noteLetters(queue: QueueKey, died: FlightReply['died'], delivered: Promise<void> | null): void {
    const { policies, stats, sweeper } = this.#parts;
    const target = policies.letterTarget(queue);
    for (const [group, count] of died) countLetters(stats, { queue, group }, target, count);
    if (target === null) return;
    if (delivered === null) sweeper().touch(target.queue);
    else void delivered.then(() => sweeper().touch(target.queue));
  }

  /** Queues that were new to the server: one that we took for known lost its data, and its name perhaps. */
  #nameMade(queues: readonly QueueKey[], made: readonly number[]): Promise<void> | null {
    const { registry } = this.#parts;
    const lost = made
      .filter((number) => number > 1 || (queues[0] !== undefined && registry.isDeclared(queues[0])))
      .flatMap((number) => queues[number - 1] ?? []);
    if (lost.length === 0) return null;
    return registry.declare(lost).catch(() => {
      for (const queue of lost) registry.forgetDeclared(queue);
    });
  }
}
