import type {
  BrowseOptions,
  BrowsePage,
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  Move,
  OnRepeat,
  QueueSizes,
  RemoveOutcome,
  RollbackItem,
  SettleOutcome,
  Storage,
  StorageCapabilities,
  SweepResult,
  TakeOptions,
  TakeResult,
  Usage,
} from '../../engine/old-port.ts';
import type { ReadySignal } from '../../engine/signaller.ts';
import {
  DELIVERY_STATES,
  type Delivery,
  type DeliveryState,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { type CallKind, Step, type Verb } from './call.ts';
import type { DatabaseClock } from './database-clock.ts';
import type { Housekeeping } from './housekeeping.ts';
import type { Names, Need } from './names.ts';
import type { Pipeline } from './pipeline.ts';
import type { Extended } from './verbs/extend.ts';
import type { Verbs } from './verbs/index.ts';
import { type PurgeState, purgeSteps } from './verbs/purge.ts';
import { nameOfRef, type Part, RACED, type Settled, withoutRepeats } from './verbs/refs.ts';
import { namesOfMove } from './verbs/transfer.ts';

const QUESTION: CallKind = { changes: false, inserts: false, bytes: 0, rows: 1 };
const CHANGE: CallKind = { changes: true, inserts: false, bytes: 0, rows: 1 };

/** What one element or reference weighs beside its body: about its other columns on the wire. */
const ROW_BYTES = 100;

export interface StorageHost {
  readonly pipeline: Pipeline;
  readonly names: Names;
  readonly verbs: Verbs;
  readonly housekeeping: Housekeeping;
  readonly clock: DatabaseClock;
  /** The queues that gained eligible elements since this was last asked. */
  takeTouched(): QueueKey[];
}

/**
 * The Storage port: each verb becomes one or several steps for the pipeline. What the steps do stands in
 * `verbs/`, one file per verb.
 */
export class PostgresStorage implements Storage {
  readonly capabilities: StorageCapabilities = { sched: true, reserve: true, pipeline: true, remove: true };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly carries = null;
  readonly #host: StorageHost;

  constructor(host: StorageHost) {
    this.#host = host;
  }

  now(): number {
    return this.#host.clock.now;
  }

  async declare(queues: readonly QueueKey[]): Promise<void> {
    const needs = queues.map((key) => this.#need(key, [], true));
    await this.#call(CHANGE, this.#host.verbs.nothing, null, needs);
  }

  queues(ns: string): Promise<string[]> {
    return this.#call(QUESTION, this.#host.verbs.queues, ns, []);
  }

  insert(
    key: QueueKey,
    elements: readonly NewElement[],
    _signal?: ReadySignal | null,
    onRepeat: OnRepeat | null = null,
  ): Promise<ElementId[]> {
    const need = this.#need(key, groupsOf(elements), true);
    const kind = { changes: true, inserts: true, bytes: weigh(elements), rows: elements.length };
    const args = { queue: need.queue, elements, onRepeat };
    return this.#call(kind, this.#host.verbs.insert(args), args, [need]);
  }

  take(key: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const need = this.#need(key, [options.group], false, true);
    const args = { queue: need.queue, ...options };
    return this.#call({ ...CHANGE, rows: options.count }, this.#host.verbs.take(args), args, [need]);
  }

  async commit(key: QueueKey, refs: readonly DeliveryRef[]): Promise<SettleOutcome[]> {
    return this.#untilUnraced(refs, (some) => {
      const need = this.#need(key, groupsOfRefs(some), false, true);
      const verb = this.#host.verbs.commit(need.queue);
      return this.#inParts(withoutRepeats(some, nameOfRef), verb, [need], (part) => ({
        queue: need.queue,
        refs: part,
      }));
    });
  }

  async rollback(key: QueueKey, items: readonly RollbackItem[]): Promise<SettleOutcome[]> {
    return this.#untilUnraced(items, (some) => {
      const need = this.#need(key, groupsOfRefs(some), false, true);
      const verb = this.#host.verbs.rollback(need.queue);
      return this.#inParts(withoutRepeats(some, nameOfRef), verb, [need], (part) => ({
        queue: need.queue,
        items: part,
      }));
    });
  }

  async extend(key: QueueKey, items: readonly ExtendItem[]): Promise<ExtendOutcome[]> {
    const need = this.#need(key, groupsOfRefs(items), false, true);
    const parts = withoutRepeats(items, nameOfRef);
    const extended = await this.#inParts(parts, this.#host.verbs.extend, [need], (part) => ({
      queue: need.queue,
      items: part,
    }));
    return extended.map(extendOutcome);
  }

  async putBack(key: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    const need = this.#need(key, [...new Set(deliveries.map(({ group }) => group))], true);
    const kind = { ...CHANGE, bytes: weigh(deliveries), rows: deliveries.length };
    await this.#call(kind, this.#host.verbs.putBack(need.queue), { queue: need.queue, deliveries }, [need]);
  }

  remove(key: QueueKey, ids: readonly ElementId[]): Promise<RemoveOutcome[]> {
    const need = this.#need(key, [], false);
    const args = { queue: need.queue, ids };
    return this.#call(changeOf(ids.length), this.#host.verbs.remove, args, [need]);
  }

  async transfer(moves: readonly Move[]): Promise<SettleOutcome[]> {
    return this.#untilUnraced(moves, (some) => {
      const needs = some.flatMap(({ from, finish, inserts }) => [
        this.#need(from, [finish.group], false, true),
        ...inserts.map(({ queue, element }) => this.#need(queue, element.groups, true)),
      ]);
      const elements = some.flatMap(({ inserts }) => inserts.map(({ element }) => element));
      const kind = {
        changes: true,
        inserts: true,
        bytes: weigh(elements),
        rows: some.length + elements.length,
      };
      return this.#inParts(
        withoutRepeats(some, namesOfMove),
        this.#host.verbs.transfer(some),
        needs,
        (part) => part,
        kind,
      );
    });
  }

  browse(key: QueueKey, options: BrowseOptions): Promise<BrowsePage> {
    const need = this.#need(key, [options.group], false);
    const kind = { ...QUESTION, rows: options.limit };
    return this.#call(kind, this.#host.verbs.browse(options.state), { ...options, queue: need.queue }, [
      need,
    ]);
  }

  /** All or nothing up to ten thousand deliveries; more go in steps, and an error may leave some of them. */
  async purge(key: QueueKey, states: readonly DeliveryState[] = DELIVERY_STATES): Promise<number> {
    const { verbs, pipeline } = this.#host;
    const need = { ...this.#need(key, [], false), all: true };
    const { queue } = need;
    const left = purgeSteps(states);
    const first = left[0];
    if (first === undefined) return 0;
    let gone = 0;
    let upTo: number | null = null;
    const step = (state: PurgeState) => new Step(verbs.purge(state), { queue, upTo }, [need]);
    await pipeline.callUntilDone(CHANGE, step(first), (purged) => {
      gone += purged.gone;
      upTo = purged.upTo;
      if (!purged.isCut) left.shift();
      return left[0] === undefined ? null : step(left[0]);
    });
    return gone;
  }

  async sizes(key: QueueKey, group?: GroupName): Promise<QueueSizes> {
    const { verbs } = this.#host;
    const need = this.#need(key, [], false);
    const { queue } = need;
    if (group === undefined && queue.isStream) {
      return this.#call(QUESTION, verbs.streamSizes, queue, [{ ...need, all: true }]);
    }
    const args = { queue, group: group ?? '' };
    const sizes = await this.#call(QUESTION, verbs.sizes, args, [this.#need(key, [args.group], false)]);
    return { ...sizes, groups: new Map() };
  }

  nextDueAt(key: QueueKey, group: GroupName): Promise<number | null> {
    const need = this.#need(key, [group], false);
    return this.#call(QUESTION, this.#host.verbs.nextDueAt, { queue: need.queue, group }, [need]);
  }

  usage(ns: string): Promise<Usage> {
    return this.#call(QUESTION, this.#host.verbs.usage, ns, []);
  }

  async sweep(): Promise<SweepResult> {
    const { verbs, housekeeping, clock, takeTouched } = this.#host;
    const nextAt = await this.#call(CHANGE, verbs.lapse, null, []);
    const hasMore = await housekeeping.run();
    return { touched: takeTouched(), nextAt: hasMore ? Math.floor(clock.now) : nextAt };
  }

  #need(key: QueueKey, groups: readonly GroupName[], make: boolean, uses = make): Need {
    return { queue: this.#host.names.queue(key), groups, make, uses };
  }

  #call<A, R>(kind: CallKind, verb: Verb<A, R>, args: A, needs: readonly Need[]): Promise<R> {
    return this.#host.pipeline.call(kind, new Step(verb, args, needs));
  }

  /** Runs the parts one after the other in one transaction; answers in the order of the whole. */
  async #inParts<T, A, R>(
    parts: readonly Part<T>[],
    verb: Verb<A, R[]>,
    needs: readonly Need[],
    argsOf: (items: readonly T[]) => A,
    kind: CallKind = changeOf(parts.reduce((rows, { items }) => rows + items.length, 0)),
  ): Promise<R[]> {
    const steps = parts.map(({ items }) => new Step(verb, argsOf(items), needs));
    const answers = await this.#host.pipeline.callAll(kind, steps);
    const whole: R[] = [];
    for (const [index, { places }] of parts.entries()) {
      for (const [at, place] of places.entries()) {
        const answer = answers[index]?.[at];
        if (answer !== undefined) whole[place] = answer;
      }
    }
    return whole;
  }

  /** Asks again for what another node changed at the same moment; rare, and done after a try or two. */
  async #untilUnraced<T>(
    items: readonly T[],
    run: (items: readonly T[]) => Promise<Settled[]>,
  ): Promise<SettleOutcome[]> {
    if (items.length === 0) return [];
    const settled = await run(items);
    if (!settled.includes(RACED)) return settled as SettleOutcome[];
    const raced = items.filter((_, place) => settled[place] === RACED);
    const again = await this.#untilUnraced(raced, run);
    return settled.map((outcome) => (outcome === RACED ? (again.shift() ?? 'not-found') : outcome));
  }
}

function groupsOf(elements: readonly NewElement[]): readonly GroupName[] {
  const [first] = elements;
  if (elements.length <= 1) return first?.groups ?? [];
  return [...new Set(elements.flatMap(({ groups }) => groups))];
}

function groupsOfRefs(refs: readonly DeliveryRef[]): GroupName[] {
  return [...new Set(refs.map(({ group }) => group))];
}

/** A change of so many rows that sends no elements. */
function changeOf(rows: number): CallKind {
  return { changes: true, inserts: false, bytes: rows * ROW_BYTES, rows };
}

function weigh(elements: readonly ElementContent[]): number {
  let bytes = 0;
  for (const { body, headers } of elements) {
    bytes += body.byteLength + ROW_BYTES;
    for (const text of headers) bytes += text.length;
  }
  return bytes;
}

function extendOutcome({ outcome, until }: Extended): ExtendOutcome {
  if (outcome === 'done' && until !== null) return { outcome: 'done', until };
  if (outcome === 'done' || outcome === 'dead-lettered' || outcome === RACED)
    return { outcome: 'lease-lost' };
  return { outcome };
}
