import type { GroupName } from '../model/element.ts';
import { invalidParameter, malformedRequest } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { parse, wrongMember } from '../model/members.ts';
import { checkGroups, Group, nameSchema } from '../model/names.ts';
import { toMs } from '../util/clock.ts';
import { nearestName } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import { inUnit, refined, type Schema, Type } from '../util/schema.ts';

/** One query parameter: its documentation, for people and OpenAPI, and its parser. */
export interface QueryParameter<T> {
  readonly description: string;
  readonly schema: Schema;
  /** The value for a request that does not have it. */
  readonly fallback: T;
  /** @throws QuaysideError `invalid-parameter` or `invalid-name`, stating what is allowed */
  read(name: string, value: string): T;
}

const FALSE_WORDS: ReadonlySet<string> = new Set(['0', 'false', 'no', 'off']);
const WHOLE_NUMBER = /^[0-9]{1,16}$/;
/** Any number of decimals: a sum of floats may have 17 of them. */
const DECIMAL = /^[0-9]{1,16}(?:\.[0-9]+)?$/;

/**
 * False for `0`, `false`, `no` or `off` in any letter case, else true: the spec says "truthy". An empty value is
 * rejected, since `?reserve` or `?reserve=` must not turn a reserve into a pop.
 */
export function flag(description: string): QueryParameter<boolean> {
  return {
    description,
    schema: Type.Boolean({ default: false }),
    fallback: false,
    read(name, value) {
      const lower = value.trim().toLowerCase();
      if (lower !== '') return !FALSE_WORDS.has(lower);
      throw invalidParameter(name, `${name} has no value; give 1 for yes, or 0, false, no or off for no.`);
    },
  };
}

/** A parameter whose text is converted, and must then have the form of a schema. */
function converted<T, F>(
  description: string,
  schema: Schema<T>,
  fallback: F,
  convert: (text: string) => unknown,
): QueryParameter<T | F> {
  return {
    description,
    schema: withDefault(schema, fallback),
    fallback,
    read: (name, text) => parse(schema, convert(text) as T, name),
  };
}

function withDefault(schema: Schema, fallback: unknown): Schema {
  return fallback === null ? schema : { ...schema, default: fallback };
}

/** A parameter whose value is the text that its schema allows; null if not given. */
export function given<T extends string>(description: string, schema: Schema<T>): QueryParameter<T | null> {
  return converted(description, schema, null, (text) => text);
}

/** The number that a text of this form is; any other text as it is, which no schema of a number allows. */
function numberIn(text: string, form: RegExp): unknown {
  return form.test(text) ? Number(text) : text;
}

interface NumberRange {
  readonly from: number;
  readonly to: number;
  /** For the error message. */
  readonly unit: string;
}

/** A whole number, or `fallback` if it is not given. */
export function wholeNumber<T>(
  description: string,
  { from, to, unit }: NumberRange,
  fallback: T,
): QueryParameter<number | T> {
  const schema = inUnit(unit, Type.Integer({ minimum: from, maximum: to }));
  return converted(description, schema, fallback, (text) => numberIn(text, WHOLE_NUMBER));
}

/** Seconds whose nearest millisecond is in the range from `minMs` to the longest delay. */
export function duration(minMs: number): Schema<number> {
  const maxMs = LIMITS.delayMs;
  const [minimum, maximum] = [minMs / 1000, maxMs / 1000];
  return refined(Type.Number({ minimum, maximum, description: 'Seconds.' }), {
    allowed: `seconds, a number from ${minimum} to ${maximum}`,
    fits: (seconds) => seconds >= 0 && toMs(seconds) >= minMs && toMs(seconds) <= maxMs,
  });
}

/** A moment, in seconds since 1970. */
export const UnixTime = refined(Type.Number({ minimum: 0, description: 'Unix time in seconds.' }), {
  allowed: 'unix time in seconds, a number from 0',
  fits: (seconds) => toMs(seconds) >= 0 && toMs(seconds) <= LIMITS.matureAt,
  error: (path, seconds) =>
    seconds < 0
      ? wrongMember(path, seconds, 'unix time in seconds, a number from 0')
      : invalidParameter(
          path,
          `${path} must be unix time in seconds; ${quote(seconds)} is past the year 5000, so it may be milliseconds.`,
        ),
});

/** Seconds with or without a fraction, read as milliseconds. @param fallback in ms, if not given */
export function seconds<T>(
  description: string,
  schema: Schema<number>,
  fallback: T,
): QueryParameter<number | T> {
  return {
    description,
    schema: withDefault(schema, fallback),
    fallback,
    read: (name, text) => toMs(parse(schema, numberIn(text, DECIMAL) as number, name)),
  };
}

/** A string of 1 to `maxBytes` bytes of UTF-8; null if not given. */
export function limitedString(description: string, maxBytes: number): QueryParameter<string | null> {
  const allowed = `1 to ${maxBytes} bytes of UTF-8`;
  const schema = refined(Type.String({ minLength: 1, description: allowed }), {
    fits: (text) => text !== '' && Buffer.byteLength(text) <= maxBytes,
    error: (path, text) =>
      invalidParameter(
        path,
        `${path} ${quote(text)} has ${Buffer.byteLength(text)} bytes. Allowed: ${allowed}.`,
      ),
  });
  return given(description, schema);
}

/** The name of a queue or a consumer; null if not given. @param kind what it names, for error messages */
export function nameOf(kind: string, description: string): QueryParameter<string | null> {
  return given(description, nameSchema(kind));
}

/** A value that this server generated earlier, such as an id or a token. */
function generated(maxLength: number): Schema<string> {
  return refined(Type.String({ minLength: 1, maxLength }), {
    allowed: `1 to ${maxLength} visible ASCII characters, as in the response that named it`,
    fits: (value) => value.length <= maxLength && VISIBLE.test(value),
  });
}

const VISIBLE = /^[\x21-\x7e]+$/;
const GeneratedId = generated(LIMITS.idLength);

/** A value that this server generated earlier; null if not given. */
export function opaque(
  description: string,
  maxLength: number = LIMITS.idLength,
): QueryParameter<string | null> {
  return given(description, generated(maxLength));
}

/** Whether a string can be an id or a token. */
export function isOpaque(value: string): boolean {
  return value.length <= LIMITS.idLength && VISIBLE.test(value);
}

/** @throws QuaysideError `invalid-parameter` for a string that cannot be an id */
export function checkOpaque(name: string, value: string): string {
  return parse(GeneratedId, value, name);
}

export function group(description: string): QueryParameter<GroupName | null> {
  return converted(description, Group, null, (text) => text.trim());
}

/** Group names, separated by commas, trimmed, without duplicates. */
export function groups(description: string): QueryParameter<readonly GroupName[] | null> {
  return {
    description,
    schema: Type.String({ description: `1 to ${LIMITS.groups} names, separated by commas` }),
    fallback: null,
    read: (name, value) => checkGroups(name, value.split(',')),
  };
}

/** One of a few words; null if not given. */
export function oneOf<T extends string>(description: string, words: readonly T[]): QueryParameter<T | null> {
  return given(description, Type.Enum(words));
}

/** The parameters of a route, by name. */
export type Parameters<Q> = { readonly [Name in keyof Q]: QueryParameter<Q[Name]> };

/** Shorter names get no suggestion: they are one edit away from too many others. */
const MIN_SUGGESTED_LENGTH = 3;

/**
 * Parses the query strings of one route. Rejects mistakes that would otherwise go unnoticed: a known parameter that is
 * repeated, not well encoded or has a wrong value, and a name that is probably a misspelled one. Ignores other unknown
 * parameters.
 */
export class QueryReader<Q extends object> {
  readonly parameters: Parameters<Q>;
  readonly #byName: ReadonlyMap<string, QueryParameter<unknown>>;
  readonly #fallbacks: Readonly<Q>;
  /** The last query string and its values, cached because a consumer sends the same one each time. */
  #lastSearch = '';
  #lastValues: Readonly<Q>;

  constructor(parameters: Parameters<Q>) {
    this.parameters = parameters;
    const entries = Object.entries<QueryParameter<unknown>>(parameters);
    this.#byName = new Map(entries);
    this.#fallbacks = Object.freeze(
      Object.fromEntries(entries.map(([name, { fallback }]) => [name, fallback])),
    ) as Q;
    this.#lastValues = this.#fallbacks;
  }

  /**
   * Parses a query string, which has no `?`.
   * @throws QuaysideError `invalid-parameter`, `invalid-name`, `malformed-request`
   */
  read(search: string): Readonly<Q> {
    if (search === '') return this.#fallbacks;
    if (search !== this.#lastSearch) {
      this.#lastValues = this.#parse(search);
      this.#lastSearch = search;
    }
    return this.#lastValues;
  }

  #parse(search: string): Readonly<Q> {
    const values: Record<string, unknown> = { ...this.#fallbacks };
    const seenNames: string[] = [];
    for (let from = 0; from <= search.length; ) {
      let end = search.indexOf('&', from);
      if (end === -1) end = search.length;
      const equals = search.indexOf('=', from);
      const nameEnd = equals === -1 || equals > end ? end : equals;
      const name = decodePart(search.slice(from, nameEnd));
      if (name === null) {
        const sent = quote(search.slice(from, nameEnd));
        throw malformedRequest(`The parameter name ${sent} is not percent-encoded UTF-8.`);
      }
      const parameter = this.#byName.get(name);
      if (parameter !== undefined) {
        if (seenNames.includes(name)) {
          throw invalidParameter(
            name,
            `Parameter ${name} was given more than once, again as ${quote(search.slice(nameEnd + 1, end))}. Give it once.`,
          );
        }
        seenNames.push(name);
        const value = decodePart(search.slice(Math.min(nameEnd + 1, end), end));
        if (value === null) {
          const sent = quote(search.slice(nameEnd + 1, end));
          throw invalidParameter(name, `The value of ${name}, ${sent}, is not percent-encoded UTF-8.`);
        }
        values[name] = parameter.read(name, value);
      } else if (name !== '') this.#rejectMisspelt(name);
      from = end + 1;
    }
    return values as Q;
  }

  #rejectMisspelt(name: string): void {
    const meant = nearestName(name, this.#byName.keys(), MIN_SUGGESTED_LENGTH);
    if (meant === null) return;
    throw invalidParameter(name, `Unknown parameter ${quote(name)}. Did you mean "${meant}"?`);
  }
}

/** Decodes a part of a query string; null if it is not percent-encoded UTF-8. */
function decodePart(part: string): string | null {
  if (!NEEDS_DECODING.test(part)) return part;
  try {
    return decodeURIComponent(part.replaceAll('+', ' '));
  } catch {
    return null;
  }
}

const NEEDS_DECODING = /[%+]/;
