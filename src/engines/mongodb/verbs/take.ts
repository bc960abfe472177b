import type { AnyBulkWriteOperation } from 'mongodb';
import type { Delivery, GroupName } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { TakeCall } from '../call.ts';
import { REPEATED, send, sendTwice } from '../changes.ts';
import { delivery, deliveryId, type ElementDocument, queueText } from '../documents.ts';
import { fromDriver, Refused } from '../errors.ts';
import type { Parts } from '../parts.ts';
import { IN_ORDER } from '../schema.ts';
import { MAX_TIME_MS } from '../settings.ts';

/**
 * One round hands out no more bytes of bodies than this, however many deliveries were asked for. Whoever gets too few
 * sees a `nextDueAt` that has passed and asks again.
 */
const MOST_BYTES = 16 * 1024 * 1024;
/** How many waiting deliveries are looked at for one queue and group. */
const MOST_LOOKED_AT = 2000;
/** How often somebody looks again who found only what other nodes took first. */
const MOST_ATTEMPTS = 5;
/**
 * A server that was frozen does what it had received when it thaws, and whoever asked is long gone. A claim takes
 * nothing after this long, by the server's clock.
 */
const CLAIM_WITHIN_MS = 4000;

/** A waiting delivery, as the index shows it. */
interface Candidate {
  readonly id: string;
  readonly at: Date;
  readonly bytes: number;
  readonly now: Date;
}

/** Calls for the same queue and group, which share what is found in their order. */
interface Lane {
  readonly queue: QueueKey;
  readonly group: GroupName;
  readonly calls: readonly TakeCall[];
}

/** What a call tries to get. */
interface Claim {
  readonly call: TakeCall;
  readonly op: string;
  readonly ids: readonly string[];
  /** The server's time when it was read, ms. */
  readonly now: number;
  /** The maturity of what waits next; null where none does. */
  readonly nextDueAt: number | null;
  /** Whether something eligible was left behind because of its size. */
  readonly isCut: boolean;
}

/** What claims have got. */
interface Claimed {
  readonly documents: readonly ElementDocument[];
  /** Whether they were sent twice, since the first answer was lost. */
  readonly isRepeated: boolean;
}

/**
 * Pops and reserves. The index shows what waits, in the order of hand-out; a claim changes each delivery that is still
 * waiting, under a name of its own; what bears that name is handed out. So no two takers get the same one, a claim
 * that is sent twice takes once, and nothing is read that somebody else gets.
 */
export class Take {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /**
   * @param later `_id`s of deliveries that calls of this round made eligible, with the order of these calls: a take
   *   that was called before does not see them
   */
  async run(calls: readonly TakeCall[], later: ReadonlyMap<string, number>): Promise<void> {
    let left = calls.filter(({ isSettled }) => !isSettled);
    for (let attempt = 1; left.length > 0; attempt++) {
      const claims = await this.#choose(left, later);
      left = await this.#claim(claims, attempt < MOST_ATTEMPTS);
    }
  }

  async #choose(calls: readonly TakeCall[], later: ReadonlyMap<string, number>): Promise<Claim[]> {
    const budget = { bytes: MOST_BYTES };
    const chosen = await Promise.all(
      lanesOf(calls).map(async (lane) => {
        try {
          const found = await this.#look(lane, later.size);
          return this.#share(lane, found, later, budget);
        } catch (error) {
          const fault = fromDriver(error);
          for (const call of lane.calls) call.failBy(fault);
          return [];
        }
      }),
    );
    return chosen.flat();
  }

  /** Answered by the index alone. @throws what the driver throws */
  #look({ queue, group, calls }: Lane, extra: number): Promise<Candidate[]> {
    const { store } = this.#parts;
    store.assertUp();
    let count = extra + 1;
    for (const { args } of calls) count += args.count;
    return store.collections.elements
      .aggregate<Candidate>(
        [
          { $match: { ns: queue.ns, queue: queue.name, group, state: 'waiting' } },
          { $sort: { at: 1, id: 1 } },
          { $limit: Math.min(count, MOST_LOOKED_AT) },
          { $project: { _id: 0, id: 1, at: 1, bytes: 1, now: store.time.expression } },
        ],
        { hint: IN_ORDER, maxTimeMS: MAX_TIME_MS },
      )
      .toArray();
  }

  #share(
    { group, calls }: Lane,
    found: readonly Candidate[],
    later: ReadonlyMap<string, number>,
    budget: { bytes: number },
  ): Claim[] {
    const [first] = found;
    const { store, ops } = this.#parts;
    if (first !== undefined) store.time.saw(first.now);
    const now = first?.now.getTime() ?? 0;
    let left = found.filter(({ at }) => at.getTime() <= now);
    const nextDueAt = found.find(({ at }) => at.getTime() > now)?.at.getTime() ?? null;
    return calls.map((call) => {
      const ids: string[] = [];
      let isCut = false;
      left = left.filter(({ id, bytes }) => {
        const _id = deliveryId(id, group);
        if (ids.length >= call.args.count || isCut || (later.get(_id) ?? 0) > call.order) return true;
        isCut = budget.bytes < bytes && budget.bytes < MOST_BYTES;
        if (isCut) return true;
        budget.bytes -= bytes;
        ids.push(_id);
        return false;
      });
      return { call, op: ops.next(), ids, now, nextDueAt, isCut };
    });
  }

  /** Answers the calls that found only what others took first, if they may look again. */
  async #claim(claims: readonly Claim[], mayLookAgain: boolean): Promise<TakeCall[]> {
    const wanting = claims.filter(({ ids, call }) => ids.length > 0 && !call.isSettled);
    for (const claim of claims) if (claim.ids.length === 0) this.#answer(claim, []);
    if (wanting.length === 0) return [];
    for (const { call } of wanting) call.begin();
    let claimed: Claimed;
    try {
      claimed = await this.#send(wanting);
    } catch (error) {
      const fault = fromDriver(error);
      for (const { call, op, ids } of wanting) {
        call.failBy(fault);
        this.#parts.undo.add(call.args.queue, op, ids);
      }
      return [];
    }
    const byId = new Map(claimed.documents.map((document) => [document._id, document]));
    const again: TakeCall[] = [];
    for (const claim of wanting) {
      const got = claim.ids.flatMap((id) => {
        const document = byId.get(id);
        return document?.op === claim.op ? [document] : [];
      });
      if (claimed.isRepeated) this.#undoMissing(claim, got);
      if (got.length === 0 && mayLookAgain && !claim.call.isSettled) again.push(claim.call);
      else this.#answer(claim, got);
    }
    return again;
  }

  /** The first of two attempts may still be on its way, and take what the second one did not get. */
  #undoMissing({ call, op, ids }: Claim, got: readonly ElementDocument[]): void {
    const known = new Set(got.map(({ _id }) => _id));
    const missing = ids.filter((id) => !known.has(id));
    if (missing.length > 0) this.#parts.undo.add(call.args.queue, op, missing);
  }

  async #send(claims: readonly Claim[]): Promise<Claimed> {
    const { store, leases } = this.#parts;
    for (const { now, call } of claims) {
      if (call.args.leaseMs !== null) leases.endsAt(leaseEnd(now, call.args.leaseMs).getTime());
    }
    const sent = await sendTwice(() => send(store, claims.map(this.#statement, this)));
    if (sent instanceof Refused) throw sent;
    const ids = claims.flatMap((claim) => claim.ids);
    const ops = claims.map(({ op }) => op);
    const documents = await store.collections.elements
      .find({ _id: { $in: ids }, op: { $in: ops } }, { maxTimeMS: MAX_TIME_MS })
      .toArray();
    return { documents, isRepeated: sent === REPEATED };
  }

  #statement({ call, op, ids, now }: Claim): AnyBulkWriteOperation<ElementDocument> {
    const { leaseMs } = call.args;
    const update =
      leaseMs === null
        ? { $set: { state: 'gone', op } as const, $max: { deleteAfter: new Date(now) } }
        : { $set: { state: 'reserved', until: leaseEnd(now, leaseMs), token: op, op } as const };
    const { expression } = this.#parts.store.time;
    const filter = {
      _id: { $in: [...ids] },
      state: 'waiting',
      at: { $lte: new Date(now) },
      $expr: { $lte: [expression, new Date(now + CLAIM_WITHIN_MS)] },
    } as const;
    return { updateMany: { filter, update } };
  }

  #answer({ call, op, now, nextDueAt, isCut, ids }: Claim, documents: readonly ElementDocument[]): void {
    const { leaseMs, count } = call.args;
    if (call.isSettled) {
      // Whoever asked was told that nobody knows: then it is better that it did not happen.
      this.#parts.undo.add(call.args.queue, op, ids);
      return;
    }
    const until = leaseMs === null ? null : leaseEnd(now, leaseMs).getTime();
    if (until === null) this.#parts.reaper.add(op, documents);
    const lease = until === null ? null : { token: op, until };
    const deliveries: Delivery[] = documents.map((document) => delivery(document, lease));
    const wasLate = isCut || deliveries.length < ids.length;
    const next = wasLate ? now : nextDueAt;
    call.succeed({ deliveries, nextDueAt: deliveries.length < count ? next : null });
  }
}

/** By queue and group, in the order of the calls. */
function lanesOf(calls: readonly TakeCall[]): Lane[] {
  const lanes = new Map<string, TakeCall[]>();
  for (const call of calls) {
    const { queue, group } = call.args;
    const name = JSON.stringify([queueText(queue), group]);
    lanes.set(name, [...(lanes.get(name) ?? []), call]);
  }
  return [...lanes.values()].flatMap((of) => {
    const [first] = of;
    return first === undefined ? [] : [{ queue: first.args.queue, group: first.args.group, calls: of }];
  });
}

function leaseEnd(now: number, leaseMs: number): Date {
  return new Date(now + Math.ceil(leaseMs));
}
