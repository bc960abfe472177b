import { DELIVERY_STATES, type DeliveryState } from '../model/element.ts';

/**
 * A page of a scan ends after this many bytes of bodies, even below `limit`. Other calls wait behind a page, and an
 * engine needs up to 10 ms per MiB; between pages they get their turn.
 */
export const SCAN_BYTES = 2 * 1_048_576;

/**
 * A place in the order of a scan: the state, the moment by which deliveries in that state are sorted, and a sequence
 * number that breaks ties. Does not depend on which elements come or go between two pages.
 */
export interface ScanPlace {
  readonly state: DeliveryState;
  readonly moment: number;
  /** 0: before all deliveries of that moment. */
  readonly seq: number;
}

/** Encodes a place for {@link scanStarts}. @param id encodes the sequence number; empty for 0 */
export function scanCursor(state: DeliveryState, moment: number | string, id: string): string {
  return `${state}.${moment}.${id}`;
}

/**
 * Where a page begins in each state that it may still contain. An `after` that is not a cursor of this store, such as a
 * client's bookmark from before a restore, begins at the start.
 * @param parse decodes the sequence number; null: the store never issued this one
 */
export function scanStarts(
  states: readonly string[],
  after: string | null,
  parse: (id: string) => number | null,
): ScanPlace[] {
  const cursor = readCursor(after, parse);
  const wanted = DELIVERY_STATES.filter((state) => states.includes(state));
  if (cursor === null) return wanted.map(startOf);
  const first = DELIVERY_STATES.indexOf(cursor.state);
  return wanted
    .filter((state) => DELIVERY_STATES.indexOf(state) >= first)
    .map((state) => (state === cursor.state ? cursor : startOf(state)));
}

function startOf(state: DeliveryState): ScanPlace {
  return { state, moment: Number.MIN_SAFE_INTEGER, seq: 0 };
}

function readCursor(after: string | null, parse: (id: string) => number | null): ScanPlace | null {
  const [, name, digits, id] = /^(\w+)\.(-?\d{1,16})\.(.*)$/.exec(after ?? '') ?? [];
  const state = DELIVERY_STATES.find((known) => known === name);
  const moment = Number(digits);
  const seq = id === '' ? 0 : parse(id ?? '');
  return state === undefined || seq === null || !Number.isSafeInteger(moment) ? null : { state, moment, seq };
}
