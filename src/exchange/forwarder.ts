import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue, QueueMove } from '../broker/queue.ts';
import type { Clock } from '../model/clock.ts';
import type { Delivery, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { ExchangeCounters, Faults } from './counters.ts';
import { changed, copyOf, hopsOf, keepable, strayOf } from './forward.ts';
import type { Decided, Stages } from './pipeline.ts';
import type { SelectorProgram, SelectorVerdict } from './sandbox/sandbox.ts';

/** The queues that an exchange works with, resolved once. */
export interface Route {
  readonly id: string;
  readonly source: Queue;
  readonly destinations: readonly { readonly namespace: Namespace; readonly queue: Queue }[];
  readonly noRoute: Queue;
  readonly tooManyHops: Queue;
  readonly maxHops: number;
}

export interface ForwarderParts {
  readonly route: Route;
  readonly program: SelectorProgram;
  readonly counters: ExchangeCounters;
  readonly faults: Faults;
  readonly clock: Clock;
  readonly log: BrokerLog;
  /** Elements overran the sandbox's limits: the exchange decides whether it goes on. Null: one passed. */
  readonly overran: (error: string | null) => void;
}

/** A copy and where it goes; `destination` is null for an element that strayed. */
interface Copy {
  readonly queue: Queue;
  readonly element: NewElement;
  readonly destination: number | null;
}

interface Plan {
  readonly delivery: Delivery;
  readonly copies: readonly Copy[];
  readonly stray: 'no-route' | 'too-many-hops' | null;
}

/** An element that cannot be forwarded now comes back after this long. */
const PUT_OFF_MS = 5_000;

/**
 * Decides and carries out what happens to a batch of elements.
 *
 * Copies within the source's engine are stored in the same atomic step that finishes the element. Copies to
 * other engines are stored before it, under keys derived from element, exchange and destination: if the node
 * dies in between, the next try stores none of them twice. An element that was popped (no lease; its source
 * cannot reserve, or some destination is in another engine and the exchange did not ask for `reserve`) is finished
 * already: its copies are stored as they are, at most once.
 */
export class Forwarder implements Stages {
  readonly #parts: ForwarderParts;

  constructor(parts: ForwarderParts) {
    this.#parts = parts;
  }

  async decide(batch: readonly Delivery[]): Promise<Decided> {
    const { route, program, counters } = this.#parts;
    const lost = batch.filter((delivery) => hopsOf(delivery) >= route.maxHops);
    const asked = lost.length === 0 ? batch : batch.filter((delivery) => hopsOf(delivery) < route.maxHops);
    const startedAt = this.#parts.clock.monotonic();
    const answers = await program.select(asked);
    counters.selectorMs += this.#parts.clock.monotonic() - startedAt;
    const plans: Plan[] = lost.map((delivery) => this.#stray(delivery, 'too-many-hops'));
    const putOff: Delivery[] = [];
    const unasked: Delivery[] = [];
    for (const [i, delivery] of asked.entries()) {
      const answer = answers[i];
      if (answer?.outcome === 'asked') {
        this.#parts.overran(null);
        plans.push(this.#plan(delivery, answer.verdicts));
      } else if (answer?.outcome === 'overrun') {
        this.#parts.overran(answer.error);
        putOff.push(delivery);
      } else unasked.push(delivery);
    }
    return async () => {
      route.source.giveBackAll(unasked);
      return this.#carryOut(plans, putOff);
    };
  }

  #plan(delivery: Delivery, verdicts: readonly SelectorVerdict[]): Plan {
    const copies: Copy[] = [];
    const hops = hopsOf(delivery);
    for (const [destination, verdict] of verdicts.entries()) {
      const copy = this.#copy(delivery, hops, destination, verdict);
      if (copy !== null) copies.push(copy);
    }
    return copies.length === 0 ? this.#stray(delivery, 'no-route') : { delivery, copies, stray: null };
  }

  #copy(delivery: Delivery, hops: number, destination: number, asked: SelectorVerdict): Copy | null {
    const { route, counters, faults, clock, log } = this.#parts;
    const own = counters.destinations[destination];
    const target = route.destinations[destination];
    if (own === undefined || target === undefined) return null;
    const { namespace, queue } = target;
    const verdict = keepable(asked, namespace, clock.now());
    if (!verdict.accepted) {
      if (verdict.error === null) own.skipped += 1;
      else {
        own.failed += 1;
        faults.add(destination, verdict.error, clock.now());
        log.warn({ exchange: route.id, destination, error: verdict.error }, 'a selector failed');
      }
      return null;
    }
    const element = copyOf(changed(delivery, verdict), hops, queue.groups(null), null, verdict);
    return { queue, element, destination };
  }

  #stray(delivery: Delivery, stray: 'no-route' | 'too-many-hops'): Plan {
    const { route } = this.#parts;
    const queue = stray === 'no-route' ? route.noRoute : route.tooManyHops;
    const element = strayOf(delivery, route.id, queue.groups(null), null);
    return { delivery, copies: [{ queue, element, destination: null }], stray };
  }

  /** Everything that can be asked now is asked before the first wait, so that batches keep their order. */
  async #carryOut(plans: readonly Plan[], putOff: readonly Delivery[]): Promise<boolean> {
    // The element may be to blame for what it does to a selector: its tries end in the dead-letter queue.
    const puttingOff = this.#putOff(putOff, true);
    const isLocal = plans.every((plan) => plan.copies.every((copy) => !this.#isRemote(plan, copy)));
    const carriedOut = isLocal ? this.#finish(plans) : this.#storeThenFinish(plans);
    await puttingOff;
    return carriedOut;
  }

  /** Copies to other engines come first: an element is finished when all of its copies are stored. */
  async #storeThenFinish(plans: readonly Plan[]): Promise<boolean> {
    const failed = await this.#storeRemote(plans);
    const ready = failed.size === 0 ? plans : plans.filter((plan) => !failed.has(plan));
    await this.#putOff(
      plans.filter((plan) => failed.has(plan)).map(({ delivery }) => delivery),
      false,
    );
    return (await this.#finish(ready)) && failed.size === 0;
  }

  /** Stores what goes to other engines, one insert per queue. Answers the plans of which a part failed. */
  async #storeRemote(plans: readonly Plan[]): Promise<Set<Plan>> {
    const byQueue = new Map<Queue, (Copy & { plan: Plan })[]>();
    for (const plan of plans) {
      for (const [i, copy] of plan.copies.entries()) {
        if (!this.#isRemote(plan, copy)) continue;
        const element = { ...copy.element, dedupKey: this.#dedupKey(plan, copy.destination ?? -i - 1) };
        const group = byQueue.get(copy.queue);
        if (group === undefined) byQueue.set(copy.queue, [{ ...copy, plan, element }]);
        else group.push({ ...copy, plan, element });
      }
    }
    const failed = new Set<Plan>();
    await Promise.all(
      [...byQueue].map(async ([queue, copies]) => {
        try {
          await queue.insert(copies.map(({ element }) => element));
        } catch (error) {
          const { route, log } = this.#parts;
          log.warn({ err: error, exchange: route.id, queue: queue.key }, 'a destination did not take copies');
          this.#noteFailure(copies, error);
          for (const { plan } of copies) failed.add(plan);
        }
      }),
    );
    return failed;
  }

  /** Finishes the sources, with what goes to their own engine in the same step. */
  async #finish(plans: readonly Plan[]): Promise<boolean> {
    const reserved = plans.filter(({ delivery }) => delivery.lease !== null);
    for (const plan of plans) if (plan.delivery.lease === null) this.#count(plan);
    if (reserved.length === 0) return true;
    const { route, log } = this.#parts;
    try {
      const outcomes = await route.source.transfer(reserved.map((plan) => this.#move(plan)));
      for (const [i, plan] of reserved.entries()) if (outcomes[i] === 'done') this.#count(plan);
      return true;
    } catch (error) {
      log.warn({ err: error, exchange: route.id }, 'elements could not be forwarded; they go back');
      this.#noteFailure(
        reserved.flatMap((plan) => plan.copies.filter((copy) => !this.#isRemote(plan, copy))),
        error,
      );
      await this.#putOff(
        reserved.map(({ delivery }) => delivery),
        false,
      );
      return false;
    }
  }

  /** Counts each copy that was not taken; the record shows what a destination answered last, each destination once. */
  #noteFailure(copies: readonly Copy[], error: unknown): void {
    const { faults, clock, counters } = this.#parts;
    const known = error instanceof QuaysideError ? error : null;
    const message = known === null ? 'internal' : `${known.code}: ${known.message}`;
    for (const { destination } of copies) {
      const own = destination === null ? undefined : counters.destinations[destination];
      if (own !== undefined) own.failed += 1;
    }
    for (const destination of new Set(copies.map((copy) => copy.destination))) {
      if (destination !== null) faults.add(destination, message, clock.now());
    }
  }

  #move(plan: Plan): QueueMove {
    const { id, group, lease } = plan.delivery;
    return {
      finish: { id, group, token: lease?.token ?? null },
      inserts: plan.copies.filter((copy) => !this.#isRemote(plan, copy)),
    };
  }

  /** Of a popped element every copy is stored by an insert: there is no finish that it could share. */
  #isRemote({ delivery }: Plan, { queue }: Copy): boolean {
    return delivery.lease === null || !this.#parts.route.source.sharesEngineWith(queue);
  }

  #dedupKey({ delivery }: Plan, destination: number): string {
    const { route } = this.#parts;
    return JSON.stringify(['exchange', route.id, destination, route.source.key.ns, delivery.id]);
  }

  /**
   * Takes them in their order. An engine that is away is no fault of the element, so that no try is counted then: it
   * would end in the dead-letter queue after `maxTries` times 5 s.
   */
  async #putOff(deliveries: readonly Delivery[], countTry: boolean): Promise<void> {
    if (deliveries.length === 0) return;
    this.#parts.counters.putBack += deliveries.length;
    await this.#parts.route.source.putOff(deliveries, PUT_OFF_MS, countTry);
  }

  #count({ copies, stray }: Plan): void {
    const { counters } = this.#parts;
    if (stray === 'no-route') counters.noRoute += 1;
    if (stray === 'too-many-hops') counters.tooManyHops += 1;
    for (const { destination } of copies) {
      const own = destination === null ? undefined : counters.destinations[destination];
      if (own !== undefined) own.matched += 1;
    }
  }
}
