import { countLetters, type Stats } from '../../engine/stats.ts';
import type { QueueKey } from '../../model/names.ts';
import type { FlightReply } from './calls/flight.ts';
import type { Lane } from './calls/lane.ts';
import type { AroundFlights } from './calls/lanes.ts';
import type { Task } from './calls/task.ts';
import type { Courier } from './courier.ts';
import type { Policies } from './policies.ts';
import type { Registry } from './registry.ts';
import type { Sweeper } from './sweeper.ts';

interface AroundParts {
  readonly policies: Policies;
  readonly registry: Registry;
  readonly stats: Stats;
  /** Looked at when first needed: they in turn need the lanes. */
  readonly courier: () => Courier;
  readonly sweeper: () => Sweeper;
}

/** What must be done outside a queue's slot before and after a flight, in the order that loses nothing. */
export class Around implements AroundFlights {
  readonly #parts: AroundParts;

  constructor(parts: AroundParts) {
    this.#parts = parts;
  }

  /** First the name, and the entry by which a sweep finds the queue; then what they are for. */
  before(
    lane: Lane,
    others: readonly Lane[],
    tasks: readonly Task[],
    deadlineAt: number,
  ): Promise<void> | null {
    const { registry } = this.#parts;
    const needed: Promise<void>[] = [];
    const makes = tasks.some((task) => task.makes);
    const made = makes ? [lane, ...others] : others;
    const unknown = made.filter(({ queue }) => !registry.isDeclared(queue)).map(({ queue }) => queue);
    if (unknown.length > 0) needed.push(registry.declare(unknown, deadlineAt));
    const registerDue = (each: Lane, ms: number | null): void => {
      const registering = ms === null ? null : registry.dueIn(each.queue, ms, deadlineAt);
      if (registering !== null) needed.push(registering);
    };
    for (const each of made) registerDue(each, this.#parts.policies.retentionMs(each.queue));
    for (const { dueMs } of tasks) registerDue(lane, dueMs);
    // Answers are kept of calls that are counted; of parcels, that they came.
    if (makes || tasks[0]?.kind === 'counted') registry.tidyLater(lane.queue);
    return needed.length === 0 ? null : Promise.all(needed).then(() => {});
  }

  behind(queues: readonly Lane[], held: readonly Lane[], reply: FlightReply): Promise<void> | null {
    const [lane] = queues;
    if (lane === undefined) return null;
    const needed: Promise<void>[] = [];
    for (const number of reply.made) this.#nameMade(queues[number - 1], number === 1, needed);
    if (reply.died.length > 0) this.#noteLetters(lane.queue, reply.died);
    if (reply.parcels.length > 0) needed.push(this.#parts.courier().deliver(lane, reply, held));
    return needed.length === 0 ? null : Promise.all(needed).then(() => {});
  }

  #noteLetters(queue: QueueKey, died: FlightReply['died']): void {
    const { policies, stats, sweeper } = this.#parts;
    const target = policies.letterTarget(queue);
    for (const [group, count] of died) countLetters(stats, { queue, group }, target, count);
    if (target !== null) sweeper().touch(target.queue);
  }

  /** A queue that was new to the server: one that we took for known lost its data, and its name perhaps. */
  #nameMade(lane: Lane | undefined, isOwn: boolean, needed: Promise<void>[]): void {
    const { registry } = this.#parts;
    if (lane === undefined || (isOwn && !registry.isDeclared(lane.queue))) return;
    needed.push(registry.declare([lane.queue]).catch(() => registry.forgetDeclared(lane.queue)));
  }
}
