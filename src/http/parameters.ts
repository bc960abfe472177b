import { type TSchema, Type } from 'typebox';
import type { GroupName } from '../model/element.ts';
import { invalidParameter } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { checkGroup, checkGroups, checkName } from '../model/names.ts';
import { quote } from '../util/quote.ts';

/** One query parameter: what it means, for people and OpenAPI, and how it is read. */
export interface Parameter<T> {
  readonly description: string;
  readonly schema: TSchema;
  /** What a request without it means. */
  readonly fallback: T;
  /** @throws QuaysideError `invalid-parameter` or `invalid-name`, saying what would be right */
  read(name: string, value: string): T;
}

const NO: ReadonlySet<string> = new Set(['0', 'false', 'no', 'off']);
const WHOLE = /^[0-9]{1,16}$/;
const DECIMAL = /^[0-9]{1,16}(?:\.[0-9]{1,9})?$/;

/**
 * False as `0 false no off` in any case, else true: the spec says "truthy". An empty one is rejected, since
 * `?reserve` or `?reserve=` must not turn a reserve into a pop.
 */
export function flag(description: string): Parameter<boolean> {
  return {
    description,
    schema: Type.Boolean({ default: false }),
    fallback: false,
    read(name, value) {
      const lower = value.trim().toLowerCase();
      if (lower !== '') return !NO.has(lower);
      throw invalidParameter(name, `${name} has no value; give 1 for yes, or 0, false, no or off for no.`);
    },
  };
}

interface Range {
  readonly from: number;
  readonly to: number;
  /** As the message says it. */
  readonly unit: string;
}

/** A whole number, or `fallback` where it is not given. */
export function whole<T>(description: string, range: Range, fallback: T): Parameter<number | T> {
  const { from, to, unit } = range;
  return {
    description,
    schema: Type.Integer({ minimum: from, maximum: to, ...shown(fallback) }),
    fallback,
    read(name, value) {
      const number = WHOLE.test(value) ? Number(value) : Number.NaN;
      if (number >= from && number <= to) return number;
      throw wrongValue(name, value, `${unit}, a whole number from ${from} to ${to}`);
    },
  };
}

/** Seconds with or without a fraction, read as milliseconds; `fallback` (ms) where not given. */
export function seconds<T>(description: string, mostMs: number, fallback: T): Parameter<number | T> {
  return {
    description,
    schema: Type.Number({ minimum: 0, maximum: mostMs / 1000, ...shown(fallback) }),
    fallback,
    read(name, value) {
      const ms = DECIMAL.test(value) ? Math.round(Number(value) * 1000) : Number.NaN;
      if (ms <= mostMs) return ms;
      throw wrongValue(name, value, `seconds from 0 to ${mostMs / 1000}, fractions allowed`);
    },
  };
}

/** Seconds that something lasts, more than 0, read as milliseconds; null if not given. */
export function duration(description: string, maxMs: number): Parameter<number | null> {
  const anyLength = seconds(description, maxMs, null);
  return {
    ...anyLength,
    schema: Type.Number({ minimum: 0.001, maximum: maxMs / 1000 }),
    read(name, value) {
      const ms = anyLength.read(name, value);
      if (ms === null || ms > 0) return ms;
      throw wrongValue(name, value, `seconds from 0.001 to ${maxMs / 1000}, fractions allowed`);
    },
  };
}

/** Text of 1 to so many bytes of UTF-8; null if not given. */
export function text(description: string, maxBytes: number): Parameter<string | null> {
  return {
    description,
    schema: Type.String({ minLength: 1, description: `1 to ${maxBytes} bytes of UTF-8` }),
    fallback: null,
    read(name, value) {
      const bytes = Buffer.byteLength(value);
      if (bytes >= 1 && bytes <= maxBytes) return value;
      throw invalidParameter(name, `${name} has ${bytes} bytes. Allowed: 1 to ${maxBytes} bytes of UTF-8.`);
    },
  };
}

/** Unix time in seconds, read as milliseconds; null where not given. */
export function unixTime(description: string): Parameter<number | null> {
  return {
    description,
    schema: Type.Number({ minimum: 0, maximum: LIMITS.matureAt / 1000 }),
    fallback: null,
    read(name, value) {
      const ms = DECIMAL.test(value) ? Math.round(Number(value) * 1000) : Number.NaN;
      if (ms <= LIMITS.matureAt) return ms;
      if (Number.isNaN(ms)) throw wrongValue(name, value, 'unix time in seconds, fractions allowed');
      throw wrongValue(
        name,
        value,
        'unix time in seconds; this is past the year 5000, so it may be milliseconds',
      );
    },
  };
}

/** A name as queues and consumers have them; null where not given. */
export function nameOf(kind: string, description: string): Parameter<string | null> {
  return {
    description,
    schema: Type.String({ minLength: 1, description: `1 to ${LIMITS.nameBytes} bytes of UTF-8` }),
    fallback: null,
    read: (_name, value) => checkName(kind, value),
  };
}

/** What this server made earlier: an id or a token. Null where not given. */
export function opaque(description: string): Parameter<string | null> {
  return {
    description,
    schema: Type.String({ minLength: 1, maxLength: LIMITS.idLength }),
    fallback: null,
    read: checkOpaque,
  };
}

/** @throws QuaysideError `invalid-parameter` */
export function checkOpaque(name: string, value: string): string {
  if (OPAQUE.test(value)) return value;
  throw wrongValue(name, value, `1 to ${LIMITS.idLength} visible ASCII characters, as an answer gave them`);
}

const OPAQUE = new RegExp(`^[\\x21-\\x7e]{1,${LIMITS.idLength}}$`);

export function group(description: string): Parameter<GroupName | null> {
  return {
    description,
    schema: Type.String({ minLength: 1, maxLength: LIMITS.groupLength }),
    fallback: null,
    read: (name, value) => checkGroup(name, value.trim()),
  };
}

/** Groups with commas between them, trimmed, each once. */
export function groups(description: string): Parameter<readonly GroupName[] | null> {
  return {
    description,
    schema: Type.String({ description: `1 to ${LIMITS.groups} names, separated by commas` }),
    fallback: null,
    read: checkGroups,
  };
}

function shown(fallback: unknown): { default?: unknown } {
  return fallback === null ? {} : { default: fallback };
}

function wrongValue(name: string, value: string, allowed: string): Error {
  return invalidParameter(name, `${name} cannot be ${quote(value)}; give ${allowed}.`);
}
