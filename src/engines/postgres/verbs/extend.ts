import type { ExtendItem } from '../../../engine/old-port.ts';
import { int8Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { Ids } from '../ids.ts';
import type { Leases } from '../leases.ts';
import type { Queue } from '../names.ts';
import { number, type Query, type Row, type Statement } from '../statement.ts';
import { NOW, withList } from './fragments.ts';
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

export interface ExtendArgs {
  readonly queue: Queue;
  /** None named twice. */
  readonly items: readonly ExtendItem[];
}

/** `until` is null where the outcome is not `done`. */
export interface Extended {
  readonly outcome: Settled;
  readonly until: number | null;
}

const EXTEND: Statement = {
  name: 'extend',
  text: `${withList(
    NOW,
    refs(['lease', 'bigint']),
    `g AS (UPDATE delivery d SET lease_until = t.now + r.lease FROM r, t
      WHERE d.seq = r.seq AND d.lane = r.lane AND d.lease_until > t.now AND ${IS_HOLDER}
      RETURNING r.ord, d.lease_until)`,
  )} ${outcomeRows(', g.lease_until')}`,
};

export function extendVerb(host: { ids: Ids; leases: Leases }): Verb<ExtendArgs, Extended[]> {
  return { name: EXTEND.name, batch: () => new ExtendBatch(host.ids, host.leases) };
}

class ExtendBatch implements Batch<ExtendArgs, Extended[]> {
  readonly #ids: Ids;
  readonly #leases: Leases;
  readonly #refs = new RefColumns();
  readonly #leaseMs: number[] = [];
  readonly #steps: (number | null)[][] = [];

  constructor(ids: Ids, leases: Leases) {
    this.#ids = ids;
    this.#leases = leases;
  }

  add({ queue, items }: ExtendArgs): boolean {
    const parsed = items.map((item) => parseRef(this.#ids, queue, item));
    if (!this.#refs.hasRoomFor(parsed)) return false;
    const places = parsed.map((ref, index) => {
      if (ref !== null) this.#leaseMs.push(Math.ceil(items[index]?.leaseMs ?? 0));
      return this.#refs.add(ref);
    });
    this.#steps.push(places);
    return true;
  }

  query(): Query | null {
    if (this.#refs.count === 0) return null;
    return { statement: EXTEND, values: [...this.#refs.values(), int8Array(this.#leaseMs)] };
  }

  read(rows: readonly Row[]): Extended[][] {
    const extended: Extended[] = [];
    for (const row of rows) {
      const place = placeOf(row);
      extended[place] = wasChanged(row)
        ? this.#started(number(row, 6))
        : { outcome: refusal(row, this.#refs.at(place), 'other'), until: null };
    }
    const missing: Extended = { outcome: 'not-found', until: null };
    return this.#steps.map((places) =>
      places.map((place) => (place === null ? missing : (extended[place] ?? missing))),
    );
  }

  #started(until: number): Extended {
    this.#leases.started(until);
    return { outcome: 'done', until };
  }
}
