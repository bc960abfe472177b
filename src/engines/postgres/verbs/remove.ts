import type { RemoveOutcome } from '../../../engine/old-port.ts';
import type { ElementId } from '../../../model/element.ts';
import { int4Array, int8Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { Ids } from '../ids.ts';
import type { Queue } from '../names.ts';
import { flag, number, type Query, type Row, type Statement } from '../statement.ts';
import { CONTENT_BYTES, finishShared, NOW, tally, WENT, withList } from './fragments.ts';

export interface RemoveArgs {
  readonly queue: Queue;
  readonly ids: readonly ElementId[];
}

/** All deliveries of an element are locked before the first one goes, so that it goes wholly or not at all. */
const REMOVE: Statement = {
  name: 'remove',
  text: `${withList(
    NOW,
    'r AS MATERIALIZED (SELECT * FROM unnest($1::int[], $2::bigint[]) WITH ORDINALITY AS r(queue, seq, ord))',
    `f AS MATERIALIZED (SELECT r.ord, d.seq, d.lane, d.lease_until FROM r JOIN lane l ON l.queue = r.queue
      JOIN delivery d ON d.seq = r.seq AND d.lane = l.id ORDER BY d.seq, d.lane FOR UPDATE OF d)`,
    'h AS MATERIALIZED (SELECT f.*, bool_or(f.lease_until IS NOT NULL) OVER (PARTITION BY f.ord) AS held FROM f)',
    `g AS (DELETE FROM delivery d USING h WHERE d.seq = h.seq AND d.lane = h.lane AND NOT h.held
      RETURNING d.seq, d.lane, d.due_at, d.head, ${CONTENT_BYTES})`,
    finishShared('g'),
    tally('gt', 'g', { waiting: '-count(*)', reserved: '0', bytes: WENT }),
  )} SELECT DISTINCT h.ord, h.held FROM h`,
};

export function removeVerb(ids: Ids): Verb<RemoveArgs, RemoveOutcome[]> {
  return { name: REMOVE.name, locksElements: true, batch: () => new RemoveBatch(ids) };
}

class RemoveBatch implements Batch<RemoveArgs, RemoveOutcome[]> {
  readonly #ids: Ids;
  readonly #queues: number[] = [];
  readonly #seqs: number[] = [];
  /** By queue and number: an element that is named again is gone, or reserved, as the first answer says. */
  readonly #named = new Map<string, number>();
  readonly #steps: { readonly place: number | null; readonly isRepeat: boolean }[][] = [];

  constructor(ids: Ids) {
    this.#ids = ids;
  }

  add({ queue, ids }: RemoveArgs): boolean {
    this.#steps.push(ids.map((id) => this.#name(queue, id)));
    return true;
  }

  query(): Query | null {
    if (this.#seqs.length === 0) return null;
    return { statement: REMOVE, values: [int4Array(this.#queues), int8Array(this.#seqs)] };
  }

  read(rows: readonly Row[]): RemoveOutcome[][] {
    const found: RemoveOutcome[] = [];
    for (const row of rows) found[number(row, 0) - 1] = flag(row, 1) ? 'reserved' : 'done';
    return this.#steps.map((step) =>
      step.map(({ place, isRepeat }) => {
        const outcome = (place === null ? null : found[place]) ?? 'not-found';
        return isRepeat && outcome === 'done' ? 'not-found' : outcome;
      }),
    );
  }

  #name(queue: Queue, id: ElementId): { place: number | null; isRepeat: boolean } {
    const seq = this.#ids.parse(id);
    if (seq === null || queue.id === null) return { place: null, isRepeat: false };
    const name = `${queue.id} ${seq}`;
    const named = this.#named.get(name);
    if (named !== undefined) return { place: named, isRepeat: true };
    const place = this.#seqs.push(seq) - 1;
    this.#queues.push(queue.id);
    this.#named.set(name, place);
    return { place, isRepeat: false };
  }
}
