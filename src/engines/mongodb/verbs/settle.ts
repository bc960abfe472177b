import type { SettleCall, Settled, SettleItem } from '../call.ts';
import { applyChanges, type Change } from '../changes.ts';
import { type DeliveryHead, deliveryId, HEAD_FIELDS } from '../documents.ts';
import { fromDriver, Lost, type Refused } from '../errors.ts';
import type { Parts } from '../parts.ts';
import { MAX_TIME_MS } from '../settings.ts';
import type { Store } from '../store.ts';
import { type Decision, decide } from './decide.ts';

/** How often a delivery is looked at again that somebody else changed between the look and the change. */
const MOST_LOOKS = 10;

/** One item on its way. */
interface Pending {
  readonly of: Settling;
  readonly place: number;
  readonly item: SettleItem;
  readonly _id: string;
}

/** A settling call with the outcomes that it has so far. */
interface Settling {
  readonly call: SettleCall;
  readonly outcomes: (Settled | null)[];
}

type Decided = readonly [Pending, DeliveryHead, Decision];

/** What a pass over some calls has changed. */
export interface SettlePass {
  /** Calls with outcomes that something called for earlier may still change. */
  readonly again: readonly SettleCall[];
  /** The `_id`s of deliveries that wait again, each with the order of the call that gave it back. */
  readonly returned: ReadonlyMap<string, number>;
}

/**
 * Commits, rolls back, extends and removes. Each delivery is read, decided about, and changed if it is still as it was
 * read; what two items name is decided about in their order.
 */
export class Settle {
  readonly #parts: Parts;
  /** Outcomes of calls that are asked again. */
  readonly #kept = new Map<SettleCall, (Settled | null)[]>();

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** @param mayAskAgain whether a refusal of this call is not final yet */
  async run(calls: readonly SettleCall[], mayAskAgain: (call: SettleCall) => boolean): Promise<SettlePass> {
    const returned = new Map<string, number>();
    const settlings = calls.map((call) => this.#settling(call)).filter(({ call }) => !call.isSettled);
    let left = settlings.flatMap((settling) => pendingOf(settling));
    for (let look = 1; left.length > 0 && look <= MOST_LOOKS; look++) {
      const { wave, later } = firstOfEach(left);
      const raced = await this.#settleWave(wave, mayAskAgain, returned);
      left = [...raced, ...later].filter(({ of: { call } }) => !call.isSettled);
      if (raced.length === 0) look = 0;
    }
    return { again: this.#answer(settlings, left), returned };
  }

  #settling(call: SettleCall): Settling {
    const kept = this.#kept.get(call);
    this.#kept.delete(call);
    return { call, outcomes: kept ?? call.args.items.map(() => null) };
  }

  #answer(settlings: readonly Settling[], raced: readonly Pending[]): SettleCall[] {
    for (const { of } of raced) {
      of.call.failBy(new Lost('A delivery was changed by others again and again.'));
    }
    return settlings.flatMap(({ call, outcomes }) => {
      if (call.isSettled) return [];
      if (outcomes.includes(null)) {
        this.#kept.set(call, outcomes);
        return [call];
      }
      call.succeed(outcomes as Settled[]);
      return [];
    });
  }

  /** Answers those that have to be looked at again. */
  async #settleWave(
    wave: readonly Pending[],
    mayAskAgain: (call: SettleCall) => boolean,
    returned: Map<string, number>,
  ): Promise<Pending[]> {
    let heads: Heads;
    try {
      heads = await readHeads(
        this.#parts.store,
        wave.map(({ _id }) => _id),
      );
    } catch (error) {
      failAll(wave, fromDriver(error));
      return [];
    }
    const decided: Decided[] = [];
    for (const pending of wave) {
      const { of, item, _id } = pending;
      const head = heads.byId.get(_id) ?? null;
      const decision = decide(head, of.call.args.queue, item, heads.now, this.#parts.policies);
      if (decision.kind !== 'refuse' && head !== null) decided.push([pending, head, decision]);
      else if (decision.kind === 'refuse' && !mayAskAgain(of.call)) {
        of.outcomes[pending.place] = decision.settled;
      }
    }
    const raced = await Promise.all([this.#change(decided, returned), this.#letters(decided, heads.now)]);
    return raced.flat();
  }

  async #change(decided: readonly Decided[], returned: Map<string, number>): Promise<Pending[]> {
    const changing = decided.flatMap(([pending, head, decision]) =>
      decision.kind === 'change' && !pending.of.call.isSettled ? [{ pending, head, ...decision }] : [],
    );
    for (const { pending } of changing) pending.of.call.begin();
    const { store, ops, reaper, leases } = this.#parts;
    const raced: Pending[] = [];
    const gone: DeliveryHead[] = [];
    const op = ops.next();
    try {
      const changes: Change[] = changing.map(({ change }) => change);
      const { ids, refused } = await applyChanges(store, op, changes);
      for (const { pending, head, change, settled } of changing) {
        const { of, place, _id } = pending;
        if (!ids.has(_id)) {
          if (refused === null) raced.push(pending);
          else of.call.failBy(refused);
          continue;
        }
        of.outcomes[place] = settled;
        if (change.set.state === 'gone') gone.push(head);
        if (change.set.state === 'waiting') returned.set(_id, of.call.order);
        if (change.set.until !== undefined) leases.endsAt(change.set.until.getTime());
      }
    } catch (error) {
      failAll(
        changing.map(({ pending }) => pending),
        fromDriver(error),
      );
    }
    reaper.add(op, gone);
    return raced;
  }

  async #letters(decided: readonly Decided[], now: number): Promise<Pending[]> {
    const dying = decided.filter(([{ of }, , { kind }]) => kind === 'letter' && !of.call.isSettled);
    if (dying.length === 0) return [];
    for (const [{ of }] of dying) of.call.begin();
    try {
      const moved = await this.#parts.deadLetters.move(
        dying.map(([, head]) => head),
        now,
      );
      const raced: Pending[] = [];
      for (const [pending] of dying) {
        if (moved.has(pending._id)) pending.of.outcomes[pending.place] = 'dead-lettered';
        else raced.push(pending);
      }
      return raced;
    } catch (error) {
      failAll(
        dying.map(([pending]) => pending),
        fromDriver(error),
      );
      return [];
    }
  }
}

/** What was read of some deliveries at one moment. */
export interface Heads {
  readonly byId: ReadonlyMap<string, DeliveryHead>;
  /** The server's time, ms. */
  readonly now: number;
}

/** @throws what the driver throws, or Lost where there is no primary */
export async function readHeads(store: Store, ids: readonly string[], options: object = {}): Promise<Heads> {
  store.assertUp();
  const found = await store.collections.elements
    .aggregate<DeliveryHead & { now: Date }>(
      [
        { $match: { _id: { $in: [...new Set(ids)] } } },
        { $project: { ...HEAD_FIELDS, now: store.time.expression } },
      ],
      { maxTimeMS: MAX_TIME_MS, ...options },
    )
    .toArray();
  const [first] = found;
  if (first !== undefined) store.time.saw(first.now);
  return { byId: new Map(found.map((head) => [head._id, head])), now: first?.now.getTime() ?? 0 };
}

function pendingOf(of: Settling): Pending[] {
  return of.call.args.items.flatMap((item, place) =>
    of.outcomes[place] === null ? [{ of, place, item, _id: deliveryId(item.id, item.group) }] : [],
  );
}

/** Of each delivery the item that comes first; the others have to wait for what becomes of it. */
function firstOfEach(left: readonly Pending[]): { wave: Pending[]; later: Pending[] } {
  const seen = new Set<string>();
  const [wave, later]: [Pending[], Pending[]] = [[], []];
  for (const pending of left) {
    if (seen.has(pending._id)) later.push(pending);
    else wave.push(pending);
    seen.add(pending._id);
  }
  return { wave, later };
}

function failAll(pending: readonly Pending[], fault: Lost | Refused): void {
  for (const { of } of pending) of.call.failBy(fault);
}
