import type { ClientSession } from 'mongodb';
import type { Move, SettleOutcome } from '../../../engine/storage.ts';
import type { Sending } from '../call.ts';
import { discard } from '../discard.ts';
import { deliveryId } from '../documents.ts';
import type { Parts } from '../parts.ts';
import { MAX_TIME_MS } from '../settings.ts';
import { transact } from '../transaction.ts';
import { decide } from './decide.ts';
import { storeWithin, type Wanted } from './elements.ts';
import { readHeads } from './settle.ts';

/** Finishes deliveries and inserts elements elsewhere: all moves of a call are one transaction. */
export class Transfer {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** @throws CommitUnknown, Lost, Refused, or what the driver throws */
  async run(call: Sending, moves: readonly Move[]): Promise<SettleOutcome[]> {
    const { store, clock, known } = this.#parts;
    store.assertUp();
    for (const { queue, element } of moves.flatMap(({ inserts }) => inserts)) {
      await this.#parts.groupRoom.admit(queue, [element]);
    }
    await known.make(moves.flatMap(({ inserts }) => inserts.map(({ queue }) => queue)));
    const moveAll = (session: ClientSession) => this.#moveAll(session, moves);
    return transact(store, clock, moveAll, call);
  }

  async #moveAll(session: ClientSession, moves: readonly Move[]): Promise<SettleOutcome[]> {
    const { store, policies, ids } = this.#parts;
    const options = { session, maxTimeMS: MAX_TIME_MS };
    const named = moves.map(({ finish }) => deliveryId(finish.id, finish.group));
    const { byId, now } = await readHeads(store, named, { session });
    const finished = new Set<string>();
    const wanted: Wanted[] = [];
    const outcomes = moves.map(({ from, finish, inserts }, index): SettleOutcome => {
      const _id = named[index] ?? '';
      const head = finished.has(_id) ? null : (byId.get(_id) ?? null);
      const decision = decide(head, from, { ...finish, verb: 'commit' }, now, policies);
      if (decision.kind === 'refuse') return decision.settled as SettleOutcome;
      finished.add(_id);
      for (const { queue, element } of inserts) wanted.push({ queue, element, id: ids.next(now) });
      return 'done';
    });
    if (finished.size === 0) return outcomes;
    const gone = [...finished];
    const mayHaveKeys = gone.some((_id) => byId.get(_id)?.key !== undefined);
    await discard(this.#parts, { ids: gone, mayHaveKeys, now: new Date(now) }, options);
    await storeWithin(session, this.#parts, wanted, now);
    return outcomes;
  }
}
