import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue, QueueMove } from '../broker/queue.ts';
import type { Delivery, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorAnswer, SelectorProgram, SelectorVerdict } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import type { ExchangeCounters, Faults } from './counters.ts';
import { changed, copiesOf, copyOf, hopsOf, keepable, unroutable } from './forward.ts';
import { Overruns } from './overruns.ts';
import type { Decided, Stages } from './pipeline.ts';
import type { Sightings } from './sightings.ts';

/** The queues that an exchange works with, resolved once. */
export interface Route {
  readonly id: string;
  /** The id that people know. */
  readonly name: string;
  readonly source: Queue;
  readonly destinations: readonly { readonly namespace: Namespace; readonly queue: Queue }[];
  readonly noRoute: Queue;
  readonly tooManyHops: Queue;
  readonly maxHops: number;
  readonly maxCopies: number;
}

export interface ForwarderParts {
  readonly route: Route;
  readonly program: SelectorProgram;
  readonly counters: ExchangeCounters;
  readonly faults: Faults;
  readonly clock: Clock;
  readonly log: BrokerLog;
  readonly sightings: Sightings;
  /** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
  readonly returning: () => readonly boolean[] | null;
  /** Three different elements in a row overran the sandbox's limits, and not for their payloads. */
  readonly onStrikes: (error: string) => void;
}

/** A copy and where it goes; `destination` is null for an element that no destination gets. */
interface Copy {
  readonly queue: Queue;
  readonly element: NewElement;
  readonly destination: number | null;
}

interface Plan {
  readonly delivery: Delivery;
  readonly copies: readonly Copy[];
  readonly unroutable: Unroutable | null;
}

type Unroutable = 'no-route' | 'too-many-hops';
type Overrun = Extract<SelectorAnswer, { outcome: 'overrun' }>;

/** An element that cannot be forwarded now comes back after this long. */
const REQUEUE_MS = 5_000;

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
  readonly #overruns = new Overruns();

  constructor(parts: ForwarderParts) {
    this.#parts = parts;
  }

  /** Forgets the overruns of before: the exchange was started again. */
  restart(): void {
    this.#overruns.clear();
  }

  async decide(batch: readonly Delivery[]): Promise<Decided> {
    const { route, program, counters } = this.#parts;
    const lost = batch.filter((delivery) => hopsOf(delivery) >= route.maxHops);
    const asked = lost.length === 0 ? batch : batch.filter((delivery) => hopsOf(delivery) < route.maxHops);
    const startedAt = this.#parts.clock.monotonic();
    const answers = await program.select(asked);
    counters.totals.selectorMs += this.#parts.clock.monotonic() - startedAt;
    const plans: Plan[] = lost.map((delivery) => this.#unroutable(delivery, 'too-many-hops'));
    const requeued: Delivery[] = [];
    const returning = this.#parts.returning();
    const unasked: Delivery[] = [];
    for (const [i, delivery] of asked.entries()) {
      const answer = answers[i];
      if (answer?.outcome === 'asked') {
        this.#overruns.passed(delivery.id);
        plans.push(this.#plan(delivery, answer.verdicts, returning));
      } else if (answer?.outcome === 'overrun') {
        if (this.#gaveUp(delivery, answer)) plans.push(this.#unroutable(delivery, 'no-route', answer.error));
        else requeued.push(delivery);
      } else unasked.push(delivery);
    }
    this.#parts.sightings.add(plans.slice(lost.length));
    return async () => {
      route.source.returnAllUndelivered(unasked);
      return this.#carryOut(plans, requeued);
    };
  }

  /** Whether an element has failed for good. */
  #gaveUp({ id }: Delivery, { error, inPayload }: Overrun): boolean {
    const { isLast, isStrike } = this.#overruns.failed(id, inPayload);
    if (isStrike) this.#parts.onStrikes(error);
    return isLast;
  }

  #plan(
    delivery: Delivery,
    verdicts: readonly SelectorVerdict[],
    returning: readonly boolean[] | null,
  ): Plan {
    const accepted = verdicts.flatMap((asked, destination) => {
      const verdict = this.#accepted(destination, asked);
      return verdict === null ? [] : [{ destination, verdict }];
    });
    if (accepted.length === 0) return this.#unroutable(delivery, 'no-route');
    const hops = hopsOf(delivery);
    const copies = copiesOf(delivery);
    const { route } = this.#parts;
    const back = returning === null ? [] : accepted.filter(({ destination }) => returning[destination]);
    const copiesBack = copies * Math.max(1, back.length);
    if (back.length > 0 && copiesBack > route.maxCopies) return this.#unroutable(delivery, 'too-many-hops');
    return {
      delivery,
      copies: accepted.flatMap(({ destination, verdict }) => {
        const queue = route.destinations[destination]?.queue;
        if (queue === undefined) return [];
        const history = { hops, copies: returning?.[destination] ? copiesBack : copies };
        const element = copyOf(changed(delivery, verdict), history, queue.groups(null), null, verdict);
        return [{ queue, element, destination }];
      }),
      unroutable: null,
    };
  }

  /** What the selector of a destination said, if that is a yes that the destination can keep; else it is counted. */
  #accepted(destination: number, asked: SelectorVerdict): SelectorVerdict | null {
    const { route, counters, faults, clock, log } = this.#parts;
    const own = counters.destinations[destination];
    const target = route.destinations[destination];
    if (own === undefined || target === undefined) return null;
    const verdict = keepable(asked, target.namespace, clock.now());
    if (verdict.accepted) return verdict;
    if (verdict.error === null) own.skipped += 1;
    else {
      own.failed += 1;
      faults.add(destination, verdict.error, clock.now(), verdict.place);
      log.warn({ exchange: route.id, destination, error: verdict.error }, 'a selector failed');
    }
    return null;
  }

  #unroutable(delivery: Delivery, why: Unroutable, error: string | null = null): Plan {
    const { route } = this.#parts;
    const queue = why === 'no-route' ? route.noRoute : route.tooManyHops;
    const element = unroutable(delivery, route.name, queue.groups(null), error);
    return { delivery, copies: [{ queue, element, destination: null }], unroutable: why };
  }

  /** Everything that can be asked now is asked before the first wait, so that batches keep their order. */
  async #carryOut(plans: readonly Plan[], requeued: readonly Delivery[]): Promise<boolean> {
    // The element may be to blame for what it does to a selector: its tries end in the dead-letter queue.
    const requeuing = this.#requeue(requeued, true);
    const isLocal = plans.every((plan) => plan.copies.every((copy) => !this.#isRemote(plan, copy)));
    const carriedOut = isLocal ? this.#finish(plans) : this.#storeThenFinish(plans);
    await requeuing;
    return carriedOut;
  }

  /** Copies to other engines come first: an element is finished when all of its copies are stored. */
  async #storeThenFinish(plans: readonly Plan[]): Promise<boolean> {
    const failed = await this.#storeRemote(plans);
    const ready = failed.size === 0 ? plans : plans.filter((plan) => !failed.has(plan));
    await this.#requeue(
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
      const results = await route.source.transfer(reserved.map((plan) => this.#move(plan)));
      for (const [i, plan] of reserved.entries()) if (results[i]?.outcome === 'done') this.#count(plan);
      return true;
    } catch (error) {
      log.warn({ err: error, exchange: route.id }, 'elements could not be forwarded; they go back');
      this.#noteFailure(
        reserved.flatMap((plan) => plan.copies.filter((copy) => !this.#isRemote(plan, copy))),
        error,
      );
      await this.#requeue(
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
  async #requeue(deliveries: readonly Delivery[], countTry: boolean): Promise<void> {
    if (deliveries.length === 0) return;
    this.#parts.counters.totals.requeued += deliveries.length;
    await this.#parts.route.source.requeue(deliveries, REQUEUE_MS, countTry);
  }

  #count({ copies, unroutable }: Plan): void {
    const { counters } = this.#parts;
    if (unroutable === 'no-route') counters.totals.noRoute += 1;
    if (unroutable === 'too-many-hops') counters.totals.tooManyHops += 1;
    for (const { destination } of copies) {
      const own = destination === null ? undefined : counters.destinations[destination];
      if (own !== undefined) own.matched += 1;
    }
  }
}
