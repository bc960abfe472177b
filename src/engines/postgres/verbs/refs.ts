import type { DeliveryRef, SettleOutcome } from '../../../engine/old-port.ts';
import { ownerNumber } from '../../../model/owner.ts';
import { byteaArray, int4Array, int8Array } from '../arrays.ts';
import { type Ids, parseToken, type Token } from '../ids.ts';
import type { Lane, Queue } from '../names.ts';
import { flag, number, numberOrNull, type Parameter, type Row } from '../statement.ts';

/** A reference as the database knows it; null where it can name nothing here. */
export interface ParsedRef {
  readonly lane: Lane;
  readonly seq: number;
  readonly token: Token | null;
  /** Who settles without a token; 0: the service itself. */
  readonly owner: number;
}

export function parseRef(ids: Ids, queue: Queue, { id, group, token, owner }: DeliveryRef): ParsedRef | null {
  const seq = ids.parse(id);
  const lane = queue.lanes.get(group);
  if (seq === null || lane === undefined) return null;
  const parsed = token === null ? null : parseToken(token);
  return { lane, seq, token: parsed, owner: parsed === null ? ownerNumber(owner) : 0 };
}

/**
 * References as columns. One statement changes a row once, so a reference to a delivery that the columns
 * name already has to wait for the next statement.
 */
export class RefColumns {
  readonly #refs: ParsedRef[] = [];
  readonly #named = new Set<string>();

  get count(): number {
    return this.#refs.length;
  }

  /** Whether none of these deliveries is named yet, neither before nor twice among them. */
  hasRoomFor(refs: readonly (ParsedRef | null)[]): boolean {
    const adding = new Set<string>();
    for (const ref of refs) {
      if (ref === null) continue;
      const name = nameOf(ref);
      if (this.#named.has(name) || adding.has(name)) return false;
      adding.add(name);
    }
    return true;
  }

  /** Answers the place of the reference; null for one that can name nothing. */
  add(ref: ParsedRef | null): number | null {
    if (ref === null) return null;
    this.#named.add(nameOf(ref));
    return this.#refs.push(ref) - 1;
  }

  at(place: number): ParsedRef {
    const ref = this.#refs[place];
    if (ref === undefined) throw new Error('the database answered for a reference that was not sent');
    return ref;
  }

  /** Parameters 1 to 5: see {@link refs}. */
  values(): Parameter[] {
    return [
      int4Array(this.#refs.map(({ lane }) => lane.id)),
      int8Array(this.#refs.map(({ seq }) => seq)),
      int8Array(this.#refs.map(({ token }) => token?.number ?? null)),
      byteaArray(this.#refs.map(({ token }) => secretBytes(token))),
      int8Array(this.#refs.map(({ owner }) => owner)),
    ];
  }
}

function secretBytes(token: Token | null): Buffer | null {
  return token === null || token.secret === null ? null : Buffer.from(token.secret, 'hex');
}

function nameOf({ lane, seq }: ParsedRef): string {
  return `${lane.id} ${seq}`;
}

/** A part of a batch, with the places that its items have in the whole. */
export interface Part<T> {
  readonly items: readonly T[];
  readonly places: readonly number[];
}

export function nameOfRef({ id, group }: DeliveryRef): string[] {
  return [`${group} ${id}`];
}

/**
 * Splits a batch into parts in which no name comes twice, since one statement changes a row once. Items
 * that share a name keep their order from part to part.
 */
export function withoutRepeats<T>(items: readonly T[], namesOf: (item: T) => readonly string[]): Part<T>[] {
  if (items.length === 1) return [{ items, places: [0] }];
  const parts: { items: T[]; places: number[] }[] = [];
  /** By name, the first part that is free of it. */
  const freeFrom = new Map<string, number>();
  for (const [place, item] of items.entries()) {
    const names = namesOf(item);
    let at = 0;
    for (const name of names) at = Math.max(at, freeFrom.get(name) ?? 0);
    for (const name of names) freeFrom.set(name, at + 1);
    let part = parts[at];
    if (part === undefined) {
      part = { items: [], places: [] };
      parts[at] = part;
    }
    part.items.push(item);
    part.places.push(place);
  }
  return parts;
}

/**
 * What a settling statement answers for each reference, after its `WITH` list with an entry `g` of those
 * that were changed: place, whether it was changed, and else what stands there now.
 */
export function outcomeRows(changed: string): string {
  return `SELECT g.ord, true, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bool${changed} FROM g
    UNION ALL
    SELECT r.ord, false, d.seq, d.token, d.lease_until - t.now, ${IS_HOLDER}${changed === '' ? '' : ', NULL'} FROM t CROSS JOIN r
    LEFT JOIN delivery d ON d.seq = r.seq AND d.lane = r.lane WHERE (r.ord IN (SELECT g.ord FROM g)) IS NOT TRUE`;
}

const REF_TYPES = '$1::int[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[]';
const REF_NAMES = 'lane, seq, token, secret, owner';

/** How many parameters references have. */
export const REF_PARAMETERS = 5;

/**
 * The entry `r`: the references, and what a verb adds to each.
 * @param more names and types of arrays, which are the parameters from {@link REF_PARAMETERS} + 1 on
 */
export function refs(...more: readonly (readonly [name: string, type: string])[]): string {
  const types = more.map(([, type], index) => `, $${REF_PARAMETERS + 1 + index}::${type}[]`).join('');
  const names = more.map(([name]) => `, ${name}`).join('');
  return `r AS MATERIALIZED (SELECT * FROM unnest(${REF_TYPES}${types}) WITH ORDINALITY AS r(${REF_NAMES}${names}, ord))`;
}

/** Whether a reference `r` names the reservation that stands in `d`: by its token, or as its owner or one who may be any. */
export const IS_HOLDER = `(CASE WHEN r.token IS NULL THEN r.owner = 0 OR coalesce(d.owner, 0) IN (0, r.owner)
  ELSE d.token = r.token AND d.secret IS NOT DISTINCT FROM r.secret END)`;

/** Another node changed the delivery at the same time: what stands there now is known when asked again. */
export const RACED = 'raced';
export type Settled = SettleOutcome | typeof RACED;

/** How the row of a reference that was not committed, rolled back or extended explains itself. */
export function refusal(row: Row, ref: ParsedRef, verb: 'commit' | 'other'): Settled {
  const seq = numberOrNull(row, 2);
  const token = numberOrNull(row, 3);
  const leftMs = numberOrNull(row, 4);
  if (seq === null) return 'not-found';
  // A commit is accepted after the end of the lease, while the token still stands there.
  const isHeld = verb === 'commit' ? token !== null : leftMs !== null && leftMs > 0;
  const isHolder = flag(row, 5);
  if (ref.token !== null && !(isHolder && isHeld)) return 'lease-lost';
  if (!isHeld) return 'not-reserved';
  return isHolder ? RACED : 'token-required';
}

export function wasChanged(row: Row): boolean {
  return flag(row, 1);
}

export function placeOf(row: Row): number {
  return number(row, 0) - 1;
}
