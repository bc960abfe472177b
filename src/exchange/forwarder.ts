import { isFullError } from '../broker/capacity.ts';
import type { Queue, QueueMove } from '../broker/queue.ts';
import { contentBytes, type Delivery, type ElementId, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { type SelectorAnswer, type SelectorVerdict, writtenBytes } from '../sandbox/sandbox.ts';
import { putLast } from '../util/put-last.ts';
import { copiesBack, copyOf, type History, historyOf, type Returning, unroutable } from './copies.ts';
import { idOf } from './declaration.ts';
import type { Exchange } from './exchange.ts';

/** A copy and its target. `destination` is its index in the declaration; null for an unroutable element. */
interface Copy {
  readonly queue: Queue;
  readonly element: NewElement;
  readonly destination: number | null;
}

/** An element that several destinations of a plan may get. */
interface BuiltCopy {
  readonly element: NewElement;
  readonly verdict: SelectorVerdict;
  readonly copies: number;
  readonly bytes: number;
}

interface Plan {
  readonly delivery: Delivery;
  /** Of the selectors, by destination; empty if they did not run. */
  readonly verdicts: readonly SelectorVerdict[];
  readonly copies: readonly Copy[];
  /** Whether the copies have too many bytes for one call. */
  readonly isLarge: boolean;
  readonly unroutable: Unroutable | null;
}

/**
 * Stores the copies of a batch and settles its elements. Calls the engines synchronously unless the batch is large, so
 * that batches keep their order. Resolves with false if the loop should slow down.
 */
type StoreBatch = () => Promise<boolean>;

/** The result of running the selectors for a batch. */
export interface Decision {
  readonly store: StoreBatch;
  /** Whether some copies are stored only after others: later batches must wait for that. */
  readonly isLarge: boolean;
  /** Bytes that selectors wrote. */
  readonly written: number;
  /** The last elements, if the selectors wrote so much that they did not run for these. They are decided later. */
  readonly undecided: readonly Delivery[];
}

/** An element whose selectors exceeded a limit, and the error. */
interface Requeued {
  readonly delivery: Delivery;
  readonly reason: string;
}

/** Whether a copy is stored by a separate insert, before the element is finished. */
type IsRemote = (copy: Copy, plan: Plan) => boolean;

const NO_VERDICTS: readonly SelectorVerdict[] = [];

type Unroutable = 'no-route' | 'too-many-hops';
type OverrunAnswer = Extract<SelectorAnswer, { outcome: 'overrun' }>;

/** How long an element that cannot be forwarded now is delayed. */
const REQUEUE_MS = 5_000;
/** Bytes of copies above which they are not stored in one call: other users wait for it, and it may exceed its time. */
const MAX_BYTES_OF_STEP = 16 * 1_048_576;
/** The share of its lease after which the lease of a large element is extended, while its copies are being stored. */
const EXTENSION_SHARE = 0.25;

/**
 * Decides what happens to a batch of elements, and carries it out.
 *
 * Copies within the source's engine are stored in the same atomic step that finishes the element. Copies to other
 * engines, and all copies of an element if they are large together, are stored before it, under keys derived from
 * element, exchange and destination: if the node crashes in between, the next try stores none of them twice. An element
 * that was popped is already finished. It returns to its place if a copy could not be stored, so its copies have such
 * keys, too. Elements are popped (have no lease) if the source cannot reserve, or if a destination is in another engine
 * and the exchange was declared without `reserve`.
 */
export class Forwarder {
  readonly #exchange: Exchange;
  readonly #overruns = new Overruns();

  constructor(exchange: Exchange) {
    this.#exchange = exchange;
  }

  /** Forgets earlier overruns, since the exchange was restarted. */
  restart(): void {
    this.#overruns.clear();
  }

  /**
   * Runs the selectors, possibly while earlier batches are being stored. Resolves with null if the batch was returned
   * in the meantime, so that the results must not be counted.
   */
  async decide(batch: readonly Delivery[], isReturned: () => boolean): Promise<Decision | null> {
    const { key, route, program, counters, context } = this.#exchange;
    const { clock } = context;
    const plans: Plan[] = [];
    const toEvaluate: Delivery[] = [];
    const histories: History[] = [];
    for (const delivery of batch) {
      const history = historyOf(delivery);
      if (history.hops >= route.maxHops) plans.push(this.#unroutable(delivery, 'too-many-hops', NO_VERDICTS));
      else {
        toEvaluate.push(delivery);
        histories.push(history);
      }
    }
    const startedAt = clock.monotonic();
    const answers = await program.select(toEvaluate);
    if (isReturned()) return null;
    counters.totals.selectorMs += clock.monotonic() - startedAt;
    const requeued: Requeued[] = [];
    const notEvaluated: Delivery[] = [];
    const returning = context.returning(key);
    const undecided = toEvaluate.slice(answers.length);
    let written = 0;
    for (const [i, answer] of answers.entries()) {
      const delivery = toEvaluate[i] as Delivery;
      if (answer.outcome === 'evaluated') {
        written += writtenBytes(answer.verdicts);
        this.#overruns.passed(delivery.id);
        plans.push(this.#plan(delivery, histories[i] as History, answer.verdicts, returning));
      } else if (answer.outcome === 'overrun') {
        if (this.#noteOverrun(delivery, answer))
          plans.push(this.#unroutable(delivery, 'no-route', NO_VERDICTS, answer.error));
        else requeued.push({ delivery, reason: answer.error });
      } else notEvaluated.push(delivery);
    }
    this.#exchange.sightings.add(plans, batch.length - toEvaluate.length);
    const store = async (): Promise<boolean> => {
      if (notEvaluated.length > 0) route.source.returnAllUndelivered(notEvaluated);
      return this.#execute(plans, requeued);
    };
    return { store, isLarge: plans.some(({ isLarge }) => isLarge), written, undecided };
  }

  /**
   * Counts an overrun, and notes it as an error of the first selector: which one was too slow is not known. Returns
   * whether it was the element's last try.
   */
  #noteOverrun({ id }: Delivery, { error, inPayload }: OverrunAnswer): boolean {
    const { declaration, errors, context } = this.#exchange;
    const first = declaration.dst.findIndex(({ selector }) => selector !== undefined);
    errors.add(first, `overrun: ${error}`, context.clock.now());
    const { isLast, mustStop } = this.#overruns.failed(id, inPayload);
    if (mustStop) context.onRepeatedOverruns(this.#exchange, error);
    return isLast;
  }

  #plan(
    delivery: Delivery,
    { hops, copies }: History,
    verdicts: readonly SelectorVerdict[],
    returning: Returning,
  ): Plan {
    const { route } = this.#exchange;
    const accepted: number[] = [];
    for (let destination = 0; destination < verdicts.length; destination += 1) {
      const verdict = verdicts[destination];
      if (verdict === undefined) continue;
      if (verdict.accepted) accepted.push(destination);
      else if (verdict.error !== null) this.#noteSelectorError(destination, verdict.error, verdict.place);
    }
    if (accepted.length === 0) return this.#unroutable(delivery, 'no-route', verdicts);
    const back = copiesBack(copies, accepted, { returning, maxCopies: route.maxCopies });
    if (back.isTooMany) return this.#unroutable(delivery, 'too-many-hops', verdicts);
    let last = null as BuiltCopy | null;
    const planned: Copy[] = [];
    let bytes = 0;
    for (const destination of accepted) {
      const verdict = verdicts[destination] as SelectorVerdict;
      const queue = route.destinations[destination]?.queue as Queue;
      const groups = queue.namespace.defaultGroups;
      const ownCopies = returning?.[destination] ? back.count : copies;
      // Most destinations get the same element, which is built once.
      if (last?.verdict !== verdict || last.copies !== ownCopies || last.element.groups !== groups) {
        const element = copyOf(delivery, verdict, { hops, copies: ownCopies }, groups);
        last = { element, verdict, copies: ownCopies, bytes: contentBytes(element) };
      }
      planned.push({ queue, element: last.element, destination });
      bytes += last.bytes;
    }
    const isLarge = planned.length > 1 && bytes > MAX_BYTES_OF_STEP;
    return { delivery, verdicts, copies: planned, isLarge, unroutable: null };
  }

  #noteSelectorError(destination: number, error: string, place: SelectorVerdict['place']): void {
    const { key, counters, errors, context } = this.#exchange;
    const { clock, log } = context;
    const counter = counters.destinations[destination];
    if (counter === undefined) return;
    counter.failed += 1;
    errors.add(destination, error, clock.now(), place);
    if (!this.#isLogged(`selector of destination ${destination}`)) return;
    log.warn({ exchange: key, destination, error }, 'a selector failed');
  }

  /** Whether to log a failure: one line a minute per cause, since any user who may insert can make selectors fail. */
  #isLogged(cause: string): boolean {
    const { key, context } = this.#exchange;
    return context.lineLimit.admit(`${key}: ${cause}`);
  }

  #unroutable(
    delivery: Delivery,
    why: Unroutable,
    verdicts: readonly SelectorVerdict[],
    error: string | null = null,
  ): Plan {
    const { key, route } = this.#exchange;
    const queue = why === 'no-route' ? route.noRoute : route.tooManyHops;
    const isBack = queue.key.name === route.source.key.name;
    const element = unroutable(
      delivery,
      { exchange: idOf(key), error, isBack },
      queue.namespace.defaultGroups,
    );
    const copies = [{ queue, element, destination: null }];
    return { delivery, verdicts, copies, isLarge: false, unroutable: why };
  }

  /** Makes all calls that are possible now before the first `await`, so that batches keep their order. */
  async #execute(plans: readonly Plan[], requeued: readonly Requeued[]): Promise<boolean> {
    // Count the try: the element itself may cause the overrun, and then belongs in the dead-letter queue.
    const byReason = Map.groupBy(requeued, ({ reason }) => reason);
    const requeuing = Promise.all([...byReason].map(([reason, some]) => this.#requeue(some, reason)));
    const isRemote = this.#remoteCopies(plans);
    const carriedOut = isRemote === null ? this.#finish(plans, null) : this.#storeThenFinish(plans, isRemote);
    await requeuing;
    return carriedOut;
  }

  /**
   * Returns which copies are stored by separate inserts; null: none. All copies of popped elements are, since there is
   * no finish to combine them with. Evaluated per batch, as a migration to another engine may start at any time.
   */
  #remoteCopies(plans: readonly Plan[]): IsRemote | null {
    const { route, reserves } = this.#exchange;
    if (!reserves) return () => true;
    const remote = new Set<Queue>();
    for (const { queue } of route.destinations) {
      if (!queue.sharesEngineWith(route.source)) remote.add(queue);
    }
    if (remote.size === 0 && !plans.some(({ isLarge }) => isLarge)) return null;
    return ({ queue }, { isLarge }) => isLarge || remote.has(queue);
  }

  /** Stores remote copies first: an element may only be finished after all of its copies are stored. */
  async #storeThenFinish(plans: readonly Plan[], isRemote: IsRemote): Promise<boolean> {
    const failed = await this.#storeRemote(plans, isRemote);
    if (failed.size === 0) return this.#finish(plans, isRemote);
    await this.#requeue([...failed]);
    await this.#finish(
      plans.filter((plan) => !failed.has(plan)),
      isRemote,
    );
    return false;
  }

  /** Stores remote copies, one insert per queue, or several if large. Returns the plans of which a copy failed. */
  async #storeRemote(plans: readonly Plan[], isRemote: IsRemote): Promise<Set<Plan>> {
    const byQueue = new Map<Queue, (Copy & { plan: Plan })[]>();
    for (const plan of plans) {
      for (const copy of plan.copies) {
        if (!isRemote(copy, plan)) continue;
        const element = { ...copy.element, dedupKey: this.#dedupKey(plan, copy) };
        const group = byQueue.get(copy.queue);
        if (group === undefined) byQueue.set(copy.queue, [{ ...copy, plan, element }]);
        else group.push({ ...copy, plan, element });
      }
    }
    const { key, owner, route, context } = this.#exchange;
    const failed = new Set<Plan>();
    const fail = (queue: Queue, copies: readonly (Copy & { plan: Plan })[], error: unknown): void => {
      if (this.#isLogged(`copies for queue ${queue.key.name} of ${queue.key.ns}`)) {
        context.log.warn(
          { err: error, exchange: key, queue: queue.key },
          'a destination did not store copies',
        );
      }
      this.#countFailed(copies, error);
      for (const { plan } of copies) failed.add(plan);
    };
    /** Resolves with the error; null: there was none. */
    const storeIn = async (queue: Queue, copies: readonly (Copy & { plan: Plan })[]): Promise<unknown> => {
      const { items, error } = await storeWhatFits(copies, (some) =>
        queue.insert(
          some.map(({ element }) => element),
          { user: owner },
        ),
      );
      if (items.length > 0) fail(queue, items, error);
      return error;
    };
    if (!plans.some(({ isLarge }) => isLarge)) {
      await Promise.all([...byQueue].map(([queue, copies]) => storeIn(queue, copies)));
      return failed;
    }
    // Concurrent large inserts would wait for each other, and be rejected as overloaded.
    const failures: { readonly queue: Queue; readonly error: unknown }[] = [];
    let extendedAt = Number.NEGATIVE_INFINITY;
    for (const [queue, all] of byQueue) {
      for (const copies of steps(all)) {
        const now = context.clock.monotonic();
        if (now - extendedAt > EXTENSION_SHARE * route.source.settings.leaseMs) {
          extendedAt = now;
          await this.#extend(plans);
        }
        // If an engine does not respond, one wait after the other could take longer than the lease.
        const earlier = failures.find((one) => queue.sharesEngineWith(one.queue));
        if (earlier !== undefined) fail(queue, copies, earlier.error);
        else {
          const error = await storeIn(queue, copies);
          if (error !== null && !isFullError(error)) failures.push({ queue, error });
        }
      }
    }
    return failed;
  }

  /** Extends the leases of elements whose copies take long to store. Never rejects: without it, they may be enough. */
  async #extend(plans: readonly Plan[]): Promise<void> {
    const { source } = this.#exchange.route;
    const { leaseMs } = source.settings;
    const items = plans.flatMap(({ delivery: { id, group, lease } }) =>
      lease === null ? [] : [source.item({ id, group, token: lease.token }, { kind: 'extend', leaseMs })],
    );
    if (items.length > 0) await source.settleAll(items).catch(() => {});
  }

  /**
   * Finishes elements, and stores copies within their engine in the same step. If one destination has no capacity for a
   * batch, elements for other destinations are still forwarded. Resolves with false if no element could be forwarded,
   * and the loop should slow down.
   */
  async #finish(plans: readonly Plan[], isRemote: IsRemote | null): Promise<boolean> {
    const { key, reserves, context } = this.#exchange;
    if (!reserves || plans.length === 0) {
      for (const plan of plans) this.#count(plan);
      return true;
    }
    const inserts = (plan: Plan): readonly Copy[] =>
      isRemote === null ? plan.copies : plan.copies.filter((copy) => !isRemote(copy, plan));
    const transfer = (some: readonly Plan[]): Promise<void> => this.#transfer(some, inserts);
    try {
      await transfer(plans);
      return true;
    } catch (error) {
      const byTargets = Map.groupBy(plans, (plan) =>
        inserts(plan)
          .map(({ destination }) => destination)
          .join(),
      );
      const failures = isFullError(error)
        ? await Promise.all([...byTargets.values()].map((some) => storeWhatFits(some, transfer)))
        : [{ items: plans, error }];
      const failed = failures.flatMap(({ items }) => items);
      for (const { items, error: cause } of failures) {
        if (items.length === 0) continue;
        if (this.#isLogged('step of its source')) {
          context.log.warn(
            { err: cause, exchange: key },
            'elements could not be forwarded; they are requeued',
          );
        }
        this.#countFailed(items.flatMap(inserts), cause);
      }
      await this.#requeue(failed);
      return failed.length < plans.length;
    }
  }

  /** Transfers elements, and counts those that were still reserved. */
  async #transfer(plans: readonly Plan[], inserts: (plan: Plan) => readonly Copy[]): Promise<void> {
    const moves = plans.map((plan): QueueMove => {
      const { id, group, lease } = plan.delivery;
      return { finish: { id, group, token: lease?.token ?? null }, inserts: inserts(plan) };
    });
    const { route, owner } = this.#exchange;
    const results = await route.source.transfer(moves, owner);
    for (const [i, plan] of plans.entries()) if (results[i]?.outcome === 'done') this.#count(plan);
  }

  /** Counts each copy that was not stored, and notes the error once per destination. */
  #countFailed(copies: readonly Copy[], error: unknown): void {
    const { errors, counters, context } = this.#exchange;
    const known = error instanceof QuaysideError ? error : null;
    const message = known === null ? 'internal' : `${known.code}: ${known.message}`;
    for (const { destination } of copies) {
      const counter = destination === null ? undefined : counters.destinations[destination];
      if (counter !== undefined) counter.failed += 1;
    }
    for (const destination of new Set(copies.map((copy) => copy.destination))) {
      if (destination !== null) errors.add(destination, message, context.clock.now());
    }
  }

  /** The key of a copy. It lacks the destination's index, since the declaration may have changed since the last try. */
  #dedupKey({ delivery }: Plan, { destination }: Copy): string {
    const { key, route } = this.#exchange;
    const place = destination === null ? -1 : (route.destinations[destination]?.place ?? 0);
    return JSON.stringify(['exchange', key, place, route.source.key.ns, delivery.id]);
  }

  /**
   * Requeues elements in their order, with a failed try if there is a reason. Pass none if an engine is unavailable:
   * otherwise the elements would be in the dead-letter queue after `maxTries` times 5 s.
   */
  async #requeue(items: readonly Pick<Plan, 'delivery'>[], reason: string | null = null): Promise<void> {
    const { counters, route } = this.#exchange;
    counters.totals.requeued += items.length;
    const deliveries = items.map(({ delivery }) => delivery);
    await route.source.requeue(deliveries, REQUEUE_MS, reason);
  }

  /** Counts an element when it was forwarded, so that the tries of a requeued one count once. */
  #count({ copies, verdicts, unroutable }: Plan): void {
    const { counters } = this.#exchange;
    if (unroutable === 'no-route') counters.totals.noRoute += 1;
    if (unroutable === 'too-many-hops') counters.totals.tooManyHops += 1;
    for (const { destination } of copies) {
      const counter = destination === null ? undefined : counters.destinations[destination];
      if (counter !== undefined) counter.matched += 1;
    }
    for (let destination = 0; destination < verdicts.length; destination += 1) {
      const verdict = verdicts[destination];
      const counter = counters.destinations[destination];
      if (verdict?.accepted === false && verdict.error === null && counter !== undefined)
        counter.skipped += 1;
    }
  }
}

/** Splits copies for one queue, which may be several destinations, so that no call has too many bytes. */
function steps<T extends Pick<Copy, 'element'>>(copies: readonly T[]): T[][] {
  const all: T[][] = [];
  let bytes = Number.POSITIVE_INFINITY;
  for (const copy of copies) {
    const more = contentBytes(copy.element);
    bytes += more;
    if (bytes <= MAX_BYTES_OF_STEP) all.at(-1)?.push(copy);
    else {
      all.push([copy]);
      bytes = more;
    }
  }
  return all;
}

/** Stores as many items, in order, as there is capacity for, by bisection. Returns the others, and the error. */
async function storeWhatFits<T>(
  items: readonly T[],
  store: (items: readonly T[]) => Promise<unknown>,
): Promise<{ readonly items: readonly T[]; readonly error: unknown }> {
  try {
    await store(items);
    return { items: [], error: null };
  } catch (error) {
    if (!isFullError(error) || items.length === 1) return { items, error };
    const middle = items.length >> 1;
    const first = await storeWhatFits(items.slice(0, middle), store);
    const secondHalf = items.slice(middle);
    if (first.items.length === 0) return storeWhatFits(secondHalf, store);
    return { items: [...first.items, ...secondHalf], error: first.error };
  }
}

/** An element is unroutable after this many overruns. */
const MAX_OVERRUNS_OF_ELEMENT = 3;
/** The exchange is stopped after this many different elements in a row whose selectors overran. */
const MAX_OVERRUNS_IN_A_ROW = 3;
/** Bound on the elements whose overruns are counted. If there are more, the counts of the oldest are dropped. */
const MAX_ELEMENTS = 10_000;

/** Counts overruns of the sandbox's limits, by element of an exchange, on this node. */
class Overruns {
  /** Overruns by element; the latest one is last. */
  readonly #byElement = new Map<ElementId, number>();
  readonly #inARow = new Set<ElementId>();

  clear(): void {
    this.#byElement.clear();
    this.#inARow.clear();
  }

  passed(id: ElementId): void {
    // Clearing an empty set allocates.
    if (this.#inARow.size > 0) this.#inARow.clear();
    if (this.#byElement.size > 0) this.#byElement.delete(id);
  }

  /**
   * Counts an overrun. Returns whether it was the element's last try, and whether the exchange must be stopped now.
   * @param inPayload whether the time was spent on its payload, which is not the selectors' fault
   */
  failed(id: ElementId, inPayload: boolean): { readonly isLast: boolean; readonly mustStop: boolean } {
    const count = (this.#byElement.get(id) ?? 0) + 1;
    const isLast = count >= MAX_OVERRUNS_OF_ELEMENT;
    if (isLast) this.#byElement.delete(id);
    else putLast(this.#byElement, id, count, MAX_ELEMENTS);
    if (inPayload || this.#inARow.has(id)) return { isLast, mustStop: false };
    this.#inARow.add(id);
    const mustStop = this.#inARow.size === MAX_OVERRUNS_IN_A_ROW;
    // If the stop cannot be stored, the next such elements request it again.
    if (mustStop) this.#inARow.clear();
    return { isLast, mustStop };
  }
}
