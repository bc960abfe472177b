import type { Batch, Verb } from '../call.ts';
import { numberOrNull, type Query, type Row, type Statement } from '../statement.ts';
import type { SizesArgs } from './sizes.ts';

const NEXT_DUE_AT: Statement = {
  name: 'next due at',
  text: `SELECT due_at FROM delivery WHERE lane = $1::int AND lease_until IS NULL AND (due_at, seq) >= ($2::bigint, $3::bigint)
    ORDER BY due_at, seq LIMIT 1`,
};

/** The earliest maturity of what waits in a lane, due or not. */
export const NEXT_DUE_AT_VERB: Verb<SizesArgs, number | null> = {
  name: NEXT_DUE_AT.name,
  batch: () => new NextDueAtBatch(),
};

class NextDueAtBatch implements Batch<SizesArgs, number | null> {
  #args: SizesArgs | null = null;

  add(args: SizesArgs): boolean {
    if (this.#args !== null) return false;
    this.#args = args;
    return true;
  }

  query(): Query | null {
    const lane = this.#args?.queue.lanes.get(this.#args.group);
    if (lane === undefined) return null;
    const { dueAt, seq } = lane.mark.place;
    return { statement: NEXT_DUE_AT, values: [String(lane.id), String(dueAt), String(seq)] };
  }

  read([row]: readonly Row[]): (number | null)[] {
    return [row === undefined ? null : numberOrNull(row, 0)];
  }
}
