import { zone } from './preferences.ts';

/** `10,412`. Written by hand: creating the formatters of `Intl` took 40 % of the script time of the overview. */
export function count(value: number): string {
  const [whole = '', fraction] = String(Math.round(value * 1000) / 1000).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return fraction === undefined ? grouped : `${grouped}.${fraction}`;
}

const SCALES = ['', 'K', 'M', 'B', 'T'] as const;

/** `10.4K`, for narrow places. */
export function shortCount(value: number): string {
  if (value < 10_000) return count(value);
  let scaled = value;
  let at = 0;
  // A value that would be rounded to 1000 takes the next unit.
  while (scaled >= 999.95 && at < SCALES.length - 1) {
    scaled /= 1000;
    at += 1;
  }
  return `${count(Math.round(scaled * 10) / 10)}${SCALES[at]}`;
}

/** `1 queue`, `2 queues` */
export function several(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Control characters that change the direction of the following text, even of the surrounding sentence. */
const DIRECTION_CONTROLS = /[\u061C\u200E\u200F\u202A-\u202E\u2066-\u2069]/g;
const RIGHT_TO_LEFT = /[\u0590-\u08FF\uFB1D-\uFDFF\uFE70-\uFEFC]/;

/**
 * A name for use in a sentence, which must stay readable: `Delete [U+202E]x and 3 elements`. Where a name stands alone,
 * its HTML element isolates it.
 */
export function named(name: string): string {
  const shown = name.replace(
    DIRECTION_CONTROLS,
    (one) => `[U+${one.charCodeAt(0).toString(16).toUpperCase().padStart(4, '0')}]`,
  );
  return RIGHT_TO_LEFT.test(shown) ? `\u2068${shown}\u2069` : shown;
}

/** Text as one word of a POSIX shell, whatever characters it has. */
export function shellWord(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A rate per second. */
export function rate(value: number): string {
  if (value === 0) return '0';
  if (value < 0.1) return '<0.1';
  return value < 100 ? value.toFixed(1) : shortCount(Math.round(value));
}

export function bytes(value: number): string {
  if (value < 1024) return `${value} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB'];
  let left = value / 1024;
  let at = 0;
  while (left >= 1024 && at < units.length - 1) {
    left /= 1024;
    at += 1;
  }
  return `${left < 10 ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
}

const STEPS = [
  ['d', 86_400],
  ['h', 3_600],
  ['min', 60],
  ['s', 1],
] as const;

/** `3 h 12 min`: a duration in its two largest units. */
export function duration(ms: number): string {
  const seconds = Math.round(Math.abs(ms) / 1000);
  const at = STEPS.findIndex(([, size]) => seconds >= size);
  const step = STEPS[at];
  if (step === undefined) return '0 s';
  const [unit, size] = step;
  const next = STEPS[at + 1];
  const whole = Math.floor(seconds / size);
  const rest = next === undefined ? 0 : Math.floor((seconds % size) / next[1]);
  return rest === 0 || whole >= 10 ? `${whole} ${unit}` : `${whole} ${unit} ${rest} ${next?.[0]}`;
}

/** `in 4 min`, `3 h 12 min ago` */
export function relative(at: number, now: number): string {
  const ms = at - now;
  if (Math.abs(ms) < 1000) return 'now';
  return ms > 0 ? `in ${duration(ms)}` : `${duration(ms)} ago`;
}

/** The exact time, in the chosen time zone. */
export function exact(at: number): string {
  const offset = zone.value === 'utc' ? 0 : -new Date(at).getTimezoneOffset();
  const local = new Date(at + offset * 60_000);
  if (Number.isNaN(local.getTime())) return 'unknown';
  const shown = local.toISOString().replace('T', ' ').replace('Z', '');
  if (zone.value === 'utc') return `${shown} UTC`;
  const hours = new Date(Math.abs(offset) * 60_000).toISOString().slice(11, 16);
  return `${shown} ${offset < 0 ? '−' : '+'}${hours}`;
}

/** The start of a moment's day in the chosen time zone, ms since 1970. */
export function startOfDay(at: number): number {
  const date = new Date(at);
  return zone.value === 'utc' ? date.setUTCHours(0, 0, 0, 0) : date.setHours(0, 0, 0, 0);
}
