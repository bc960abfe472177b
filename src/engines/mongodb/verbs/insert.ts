import { type ClientSession, MongoBulkWriteError } from 'mongodb';
import type { ElementId } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { InsertCall } from '../call.ts';
import { deliveryId } from '../documents.ts';
import { DUPLICATE_KEY, fromDriver, Refused } from '../errors.ts';
import type { Parts } from '../parts.ts';
import { MAX_TIME_MS } from '../settings.ts';
import { type CommitSteps, transact } from '../transaction.ts';
import { documentsOf, keyOf, seenKeys, storeWithin, type Wanted } from './elements.ts';

/** How often an element is stored whose key was there, and then was not. */
const MOST_ATTEMPTS = 3;

interface Inserting {
  readonly call: InsertCall;
  readonly wanted: readonly Wanted[];
}

/**
 * Inserts. Calls of one document, by far the most, are one command, in which each document is stored by itself, and
 * which the driver may repeat without storing one twice; no two documents have the same dedup key. Calls of several are
 * a transaction.
 */
export class Insert {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Answers the `_id`s of deliveries that were stored, each with the order of its call. */
  async run(all: readonly InsertCall[]): Promise<Map<string, number>> {
    const ids = new Map<string, number>();
    const calls = await this.#admitted(all.filter((call) => !call.isSettled));
    if (calls.length === 0) return ids;
    let now: number;
    try {
      const { store, known } = this.#parts;
      store.assertUp();
      const [time] = await Promise.all([
        store.time.recent(),
        known.make(calls.map(({ args }) => args.queue)),
      ]);
      now = time.getTime();
    } catch (error) {
      const fault = fromDriver(error);
      for (const call of calls) call.failBy(fault);
      return ids;
    }
    const inserting = calls.filter((call) => !call.isSettled).map((call) => this.#number(call, now));
    for (const { call, wanted } of inserting) {
      for (const { id, element } of wanted) {
        for (const group of element.groups) ids.set(deliveryId(id, group), call.order);
      }
    }
    await Promise.all([
      this.#storeSingles(inserting.filter(isSingle), now),
      this.#storeTogether(
        inserting.filter((one) => !isSingle(one)),
        now,
      ),
    ]);
    return ids;
  }

  /** Those whose groups fit; the others are answered. */
  async #admitted(all: readonly InsertCall[]): Promise<InsertCall[]> {
    const calls: InsertCall[] = [];
    for (const call of all) {
      const { queue, elements } = call.args;
      try {
        this.#parts.store.assertUp();
        const asking = this.#parts.groupRoom.admit(queue, elements);
        if (asking !== null) await asking;
        calls.push(call);
      } catch (error) {
        if (error instanceof QuaysideError) call.fail(error);
        else call.failBy(fromDriver(error));
      }
    }
    return calls;
  }

  /** All ids of a round are made in the order of the calls, whichever way each is stored. */
  #number(call: InsertCall, now: number): Inserting {
    const { queue, elements } = call.args;
    return { call, wanted: elements.map((element) => ({ queue, element, id: this.#parts.ids.next(now) })) };
  }

  async #storeSingles(inserting: readonly Inserting[], now: number, attempt = 1): Promise<void> {
    if (inserting.length === 0) return;
    const { store } = this.#parts;
    for (const { call } of inserting) call.begin();
    const documents = inserting.flatMap(({ wanted }) =>
      wanted.flatMap((one) => documentsOf(this.#parts, one, now)),
    );
    let faults: ReadonlyMap<number, Refused> = new Map();
    try {
      await store.collections.elements.insertMany(documents, {
        ordered: false,
        writeConcern: store.settings.writeConcern,
        maxTimeMS: MAX_TIME_MS,
      });
    } catch (error) {
      const refused = refusedOf(error);
      if (refused === null) {
        const fault = fromDriver(error);
        for (const { call } of inserting) call.failBy(fault);
        return;
      }
      faults = refused;
    }
    const repeats: Inserting[] = [];
    for (const [index, { call, wanted }] of inserting.entries()) {
      const fault = faults.get(index);
      if (fault === undefined) call.succeed(wanted.map(({ id }) => id));
      else if (fault.code === DUPLICATE_KEY && hasKey(wanted)) repeats.push({ call, wanted });
      else call.failBy(fault);
    }
    await this.#answerRepeats(repeats, now, attempt);
  }

  /** Their keys were there already: the first element's id is the answer, unless its key has been forgotten since. */
  async #answerRepeats(repeats: readonly Inserting[], now: number, attempt: number): Promise<void> {
    if (repeats.length === 0) return;
    let seen: ReadonlyMap<string, ElementId>;
    try {
      const wanted = repeats.flatMap((one) => one.wanted);
      seen = await seenKeys(this.#parts, wanted, now);
    } catch (error) {
      const fault = fromDriver(error);
      for (const { call } of repeats) call.failBy(fault);
      return;
    }
    const again = repeats.filter(({ call, wanted: [only] }) => {
      const first = only === undefined ? undefined : seen.get(keyOf(only) ?? '');
      if (first !== undefined) call.succeed([first]);
      return first === undefined && !call.isSettled;
    });
    if (attempt < MOST_ATTEMPTS) {
      await this.#storeSingles(again, now, attempt + 1);
      return;
    }
    for (const { call } of again) call.failBy(new Refused(DUPLICATE_KEY, 'A key comes and goes.'));
  }

  /** One transaction for all; where MongoDB refuses it, one for each, so that nobody pays for another's element. */
  async #storeTogether(all: readonly Inserting[], now: number): Promise<void> {
    const inserting = all.filter(({ call }) => !call.isSettled);
    if (inserting.length === 0) return;
    const { store, clock } = this.#parts;
    const wanted = inserting.flatMap((one) => one.wanted);
    const steps: CommitSteps = {
      begin() {
        // Whoever was told meanwhile that nothing was stored must be right: the others go on without them.
        if (inserting.some(({ call }) => call.isSettled)) throw new Refused(0, 'A caller has given up.');
        for (const { call } of inserting) call.begin();
      },
      undone() {
        for (const { call } of inserting) call.undone();
      },
    };
    try {
      const storeAll = (session: ClientSession) => storeWithin(session, this.#parts, wanted, now);
      const ids = await transact(store, clock, storeAll, steps);
      let from = 0;
      for (const { call, wanted: own } of inserting) {
        call.succeed(ids.slice(from, from + own.length));
        from += own.length;
      }
    } catch (error) {
      const fault = fromDriver(error);
      if (fault instanceof Refused && inserting.length > 1) {
        for (const one of inserting) await this.#storeTogether([one], now);
        return;
      }
      for (const { call } of inserting) call.failBy(fault);
    }
  }
}

/** Whether the call is one document, and its being stored depends on nothing else. */
function isSingle({ wanted: [first, second] }: Inserting): boolean {
  if (first === undefined || second !== undefined) return false;
  return new Set(first.element.groups).size === 1;
}

function hasKey(wanted: readonly Wanted[]): boolean {
  return wanted.some(({ element }) => element.dedupKey !== null);
}

/** Of an unordered command, the documents that the server refused; null where more is open than that. */
function refusedOf(error: unknown): Map<number, Refused> | null {
  if (!(error instanceof MongoBulkWriteError) || error.result.getWriteConcernError() !== undefined)
    return null;
  const faults = new Map<number, Refused>();
  for (const { index, code } of error.result.getWriteErrors()) {
    faults.set(index, new Refused(code, `MongoDB error ${code}`));
  }
  return faults.size === 0 ? null : faults;
}
