import { DELIVERY_STATES, type DeliveryState } from '../model/element.ts';

/**
 * With so many bytes of bodies a page of a scan ends, `limit` reached or not. Other calls wait behind a page, and an
 * engine needs up to 10 ms for a MiB: who wants more reads the next page, and lets them go between.
 */
export const SCAN_BYTES = 2 * 1_048_576;

/**
 * A place in the order of a scan: the state, the moment by which its deliveries are sorted, and a number behind that.
 * Pages hold together while elements come and go between them.
 */
export interface ScanPlace {
  readonly state: DeliveryState;
  readonly moment: number;
  /** 0: before all of that moment. */
  readonly seq: number;
}

/** The cursor of a place, as {@link scanStarts} reads it. @param id the number's text; empty for 0 */
export function scanCursor(state: DeliveryState, moment: number | string, id: string): string {
  return `${state}.${moment}.${id}`;
}

/**
 * Where a page begins in each of the states that it may still have something of. A text that is no cursor of the store
 * begins at the start, as a client's bookmark from before a restore would.
 * @param parse returns the number behind its text; null: the store never gave that out
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
  const state = DELIVERY_STATES.find((one) => one === name);
  const moment = Number(digits);
  const seq = id === '' ? 0 : parse(id ?? '');
  return state === undefined || seq === null || !Number.isSafeInteger(moment) ? null : { state, moment, seq };
}
