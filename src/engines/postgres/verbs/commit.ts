import type { DeliveryRef } from '../../../engine/old-port.ts';
import type { Batch, Verb } from '../call.ts';
import type { Ids } from '../ids.ts';
import type { Queue } from '../names.ts';
import type { Query, Row, Statement } from '../statement.ts';
import { CONTENT_BYTES, finishShared, NOW, ONE_LESS_OF_EITHER, tally, withList } from './fragments.ts';
import {
  IS_HOLDER,
  outcomeRows,
  parseRef,
  placeOf,
  RefColumns,
  refs,
  refusal,
  type Settled,
  wasChanged,
} from './refs.ts';

export interface CommitArgs {
  readonly queue: Queue;
  /** None named twice. */
  readonly refs: readonly DeliveryRef[];
}

type CommitVerb = Verb<CommitArgs, Settled[]>;

/** The entry `g`: deliveries that the references `r` hold, which it deletes. A lease that ended still holds. */
export const FINISHED = `g AS (DELETE FROM delivery d USING r WHERE d.seq = r.seq AND d.lane = r.lane
    AND d.token IS NOT NULL AND ${IS_HOLDER}
    RETURNING r.ord, d.seq, d.lane, d.due_at, d.lease_until, d.head, ${CONTENT_BYTES})`;

function commitStatement(shared: boolean): Statement {
  return {
    name: `commit${shared ? ' shared' : ''}`,
    text: `${withList(
      NOW,
      refs(),
      FINISHED,
      shared && finishShared('g'),
      tally('gt', 'g', ONE_LESS_OF_EITHER),
    )} ${outcomeRows('')}`,
  };
}

export function commitVerbs(ids: Ids): (queue: Queue) => CommitVerb {
  const verb = (shared: boolean): CommitVerb => {
    const statement = commitStatement(shared);
    return {
      name: statement.name,
      locksElements: shared,
      batch: () => new CommitBatch(ids, statement),
    };
  };
  const [plain, stream] = [verb(false), verb(true)];
  return ({ isStream }) => (isStream ? stream : plain);
}

class CommitBatch implements Batch<CommitArgs, Settled[]> {
  readonly #ids: Ids;
  readonly #statement: Statement;
  readonly #refs = new RefColumns();
  readonly #steps: (number | null)[][] = [];

  constructor(ids: Ids, statement: Statement) {
    this.#ids = ids;
    this.#statement = statement;
  }

  add({ queue, refs }: CommitArgs): boolean {
    const parsed = refs.map((ref) => parseRef(this.#ids, queue, ref));
    if (!this.#refs.hasRoomFor(parsed)) return false;
    this.#steps.push(parsed.map((ref) => this.#refs.add(ref)));
    return true;
  }

  query(): Query | null {
    return this.#refs.count === 0 ? null : { statement: this.#statement, values: this.#refs.values() };
  }

  read(rows: readonly Row[]): Settled[][] {
    const outcomes: Settled[] = [];
    for (const row of rows) {
      const place = placeOf(row);
      outcomes[place] = wasChanged(row) ? 'done' : refusal(row, this.#refs.at(place), 'commit');
    }
    return this.#steps.map((places) =>
      places.map((place) => (place === null ? 'not-found' : (outcomes[place] ?? 'not-found'))),
    );
  }
}
