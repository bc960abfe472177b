import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue, QueueMove } from '../broker/queue.ts';
import type { Delivery, ElementId, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { SelectorAnswer, SelectorProgram, SelectorVerdict } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import type { DestinationErrors, ExchangeCounters, Sightings } from './activity.ts';
import { changed, copiesOf, copyOf, hopsOf, keepable, unroutable } from './forward.ts';

/** The queues that an exchange works with, resolved once. */
export interface Route {
  readonly id: string;
  /** The id that users know. */
  readonly name: string;
  readonly source: Queue;
  readonly destinations: readonly { readonly namespace: Namespace; readonly queue: Queue }[];
  readonly noRoute: Queue;
  readonly tooManyHops: Queue;
  readonly maxHops: number;
  readonly maxCopies: number;
}

interface ForwarderOptions {
  readonly route: Route;
  readonly program: SelectorProgram;
  readonly counters: ExchangeCounters;
  readonly errors: DestinationErrors;
  readonly clock: Clock;
  readonly log: BrokerLog;
  readonly sightings: Sightings;
  /** Per destination, whether elements can come back from it by declared exchanges. Null: from none. */
  readonly returning: () => readonly boolean[] | null;
  /** Three different elements in a row overran the sandbox's limits, and not for their payloads. */
  readonly onStrikes: (error: string) => void;
}

/** A copy and where it goes; `destination` is null for an unroutable element. */
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

/**
 * Stores what was decided and settles the sources. Its calls to the source's engine are made before it returns, so that batches
 * keep their order. Resolves with false if a destination was unavailable.
 */
export type Decided = () => Promise<boolean>;

type Unroutable = 'no-route' | 'too-many-hops';
type Overrun = Extract<SelectorAnswer, { outcome: 'overrun' }>;

/** An element that cannot be forwarded now becomes ready again after this long. */
const REQUEUE_MS = 5_000;

/**
 * Decides what happens to a batch of elements, and does it.
 *
 * Copies within the source's engine are stored in the same atomic step that finishes the element. Copies to
 * other engines are stored before it, under keys derived from element, exchange and destination: if the node
 * dies in between, the next try stores none of them twice. An element that was popped (no lease; its source
 * cannot reserve, or some destination is in another engine and the exchange was declared without `reserve`) is finished
 * already: its copies are stored as they are, at most once.
 */
export class Forwarder {
  readonly #options: ForwarderOptions;
  readonly #overruns = new Overruns();

  constructor(options: ForwarderOptions) {
    this.#options = options;
  }

  /** Forgets earlier overruns: the exchange was restarted. */
  restart(): void {
    this.#overruns.clear();
  }

  /** Runs the selectors. May run while an earlier batch is still being stored. */
  async decide(batch: readonly Delivery[]): Promise<Decided> {
    const { route, program, counters } = this.#options;
    const lost = batch.filter((delivery) => hopsOf(delivery) >= route.maxHops);
    const asked = lost.length === 0 ? batch : batch.filter((delivery) => hopsOf(delivery) < route.maxHops);
    const startedAt = this.#options.clock.monotonic();
    const answers = await program.select(asked);
    counters.totals.selectorMs += this.#options.clock.monotonic() - startedAt;
    const plans: Plan[] = lost.map((delivery) => this.#unroutable(delivery, 'too-many-hops'));
    const requeued: Delivery[] = [];
    const returning = this.#options.returning();
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
    this.#options.sightings.add(plans.slice(lost.length));
    return async () => {
      if (unasked.length > 0) route.source.returnAllUndelivered(unasked);
      return this.#carryOut(plans, requeued);
    };
  }

  /** Whether an element has failed for good. */
  #gaveUp({ id }: Delivery, { error, inPayload }: Overrun): boolean {
    const { isLast, isStrike } = this.#overruns.failed(id, inPayload);
    if (isStrike) this.#options.onStrikes(error);
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
    const { route } = this.#options;
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

  /** The verdict of a destination's selector if it accepts and the destination can keep the copy; otherwise it is counted. */
  #accepted(destination: number, asked: SelectorVerdict): SelectorVerdict | null {
    const { route, counters, errors, clock, log } = this.#options;
    const own = counters.destinations[destination];
    const target = route.destinations[destination];
    if (own === undefined || target === undefined) return null;
    const verdict = keepable(asked, target.namespace, clock.now());
    if (verdict.accepted) return verdict;
    if (verdict.error === null) own.skipped += 1;
    else {
      own.failed += 1;
      errors.add(destination, verdict.error, clock.now(), verdict.place);
      log.warn({ exchange: route.id, destination, error: verdict.error }, 'a selector failed');
    }
    return null;
  }

  #unroutable(delivery: Delivery, why: Unroutable, error: string | null = null): Plan {
    const { route } = this.#options;
    const queue = why === 'no-route' ? route.noRoute : route.tooManyHops;
    const element = unroutable(delivery, route.name, queue.groups(null), error);
    return { delivery, copies: [{ queue, element, destination: null }], unroutable: why };
  }

  /** All calls that can be made now are made before the first wait, so that batches keep their order. */
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

  /** Stores what goes to other engines, one insert per queue. Returns the plans of which a part failed. */
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
          const { route, log } = this.#options;
          log.warn(
            { err: error, exchange: route.id, queue: queue.key },
            'a destination did not store copies',
          );
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
    const { route, log } = this.#options;
    try {
      const results = await route.source.transfer(reserved.map((plan) => this.#move(plan)));
      for (const [i, plan] of reserved.entries()) if (results[i]?.outcome === 'done') this.#count(plan);
      return true;
    } catch (error) {
      log.warn({ err: error, exchange: route.id }, 'elements could not be forwarded; they are requeued');
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

  /** Counts each copy that was not taken; the record shows the last error of a destination, each destination once. */
  #noteFailure(copies: readonly Copy[], error: unknown): void {
    const { errors, clock, counters } = this.#options;
    const known = error instanceof QuaysideError ? error : null;
    const message = known === null ? 'internal' : `${known.code}: ${known.message}`;
    for (const { destination } of copies) {
      const own = destination === null ? undefined : counters.destinations[destination];
      if (own !== undefined) own.failed += 1;
    }
    for (const destination of new Set(copies.map((copy) => copy.destination))) {
      if (destination !== null) errors.add(destination, message, clock.now());
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
    return delivery.lease === null || !this.#options.route.source.sharesEngineWith(queue);
  }

  #dedupKey({ delivery }: Plan, destination: number): string {
    const { route } = this.#options;
    return JSON.stringify(['exchange', route.id, destination, route.source.key.ns, delivery.id]);
  }

  /**
   * Keeps their order. An unavailable engine is no fault of the element, so that no try is counted then: it would end in the
   * dead-letter queue after `maxTries` times 5 s.
   */
  async #requeue(deliveries: readonly Delivery[], countTry: boolean): Promise<void> {
    if (deliveries.length === 0) return;
    this.#options.counters.totals.requeued += deliveries.length;
    await this.#options.route.source.requeue(deliveries, REQUEUE_MS, countTry);
  }

  #count({ copies, unroutable }: Plan): void {
    const { counters } = this.#options;
    if (unroutable === 'no-route') counters.totals.noRoute += 1;
    if (unroutable === 'too-many-hops') counters.totals.tooManyHops += 1;
    for (const { destination } of copies) {
      const own = destination === null ? undefined : counters.destinations[destination];
      if (own !== undefined) own.matched += 1;
    }
  }
}

/** Overruns after which an element is given up. */
const MAX_OF_ELEMENT = 3;
/** Different elements in a row that overran for their selectors before the exchange is stopped. */
const STRIKES = 3;
/** Elements remembered; of more, those that overran longest ago start at zero again. */
const MAX_ELEMENTS = 10_000;

/** Counts the elements of an exchange that use more of the sandbox than they may, on this node. */
class Overruns {
  /** By element, the one that overran last at the end. */
  readonly #byElement = new Map<ElementId, number>();
  readonly #inARow = new Set<ElementId>();

  clear(): void {
    this.#byElement.clear();
    this.#inARow.clear();
  }

  passed(id: ElementId): void {
    this.#inARow.clear();
    if (this.#byElement.size > 0) this.#byElement.delete(id);
  }

  /**
   * An element overran: whether that was its last try, and whether it completes the strikes against the selectors.
   * @param inPayload its payload is to blame, and not a selector
   */
  failed(id: ElementId, inPayload: boolean): { readonly isLast: boolean; readonly isStrike: boolean } {
    const count = (this.#byElement.get(id) ?? 0) + 1;
    const isLast = count >= MAX_OF_ELEMENT;
    this.#byElement.delete(id);
    if (!isLast) this.#byElement.set(id, count);
    const [oldest] = this.#byElement.keys();
    if (this.#byElement.size > MAX_ELEMENTS && oldest !== undefined) this.#byElement.delete(oldest);
    if (inPayload || this.#inARow.has(id)) return { isLast, isStrike: false };
    this.#inARow.add(id);
    return { isLast, isStrike: this.#inARow.size === STRIKES };
  }
}
