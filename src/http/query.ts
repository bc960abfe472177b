import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { nearestName } from '../util/did-you-mean.ts';
import { quote } from '../util/quote.ts';
import type { Parameter } from './parameters.ts';

/** The parameters of a route, by name. */
export type Parameters<Q> = { readonly [Name in keyof Q]: Parameter<Q[Name]> };

/** A shorter name is one edit away from too many others. */
const MIN_EDITED_NAME = 4;

/**
 * Reads the query strings of one route, prepared once. A mistake that would otherwise go unnoticed is rejected: a
 * known parameter that comes twice, is not well encoded or has a wrong value, and a name that differs from a
 * known one by a slip. Other unknown ones are ignored.
 */
export class QueryReader<Q extends object> {
  readonly parameters: Parameters<Q>;
  readonly #byName: ReadonlyMap<string, Parameter<unknown>>;
  readonly #fallbacks: Readonly<Q>;

  constructor(parameters: Parameters<Q>) {
    this.parameters = parameters;
    const entries = Object.entries<Parameter<unknown>>(parameters);
    this.#byName = new Map(entries);
    this.#fallbacks = Object.freeze(
      Object.fromEntries(entries.map(([name, { fallback }]) => [name, fallback])),
    ) as Q;
  }

  /**
   * The values of a query string, that is, what follows the `?`.
   * @throws QuaysideError `invalid-parameter`, `invalid-name`, `malformed-request`
   */
  read(search: string): Readonly<Q> {
    if (search === '') return this.#fallbacks;
    const values: Record<string, unknown> = { ...this.#fallbacks };
    let given = '';
    for (let from = 0; from <= search.length; ) {
      let end = search.indexOf('&', from);
      if (end === -1) end = search.length;
      const equals = search.indexOf('=', from);
      const nameEnd = equals === -1 || equals > end ? end : equals;
      const name = decoded(search.slice(from, nameEnd));
      if (name === null) {
        const sent = quote(search.slice(from, nameEnd));
        throw new QuaysideError(
          'malformed-request',
          `The parameter name ${sent} is not percent-encoded UTF-8.`,
        );
      }
      const parameter = this.#byName.get(name);
      if (parameter !== undefined) {
        // Known names have no space, so this says exactly whether the name was there before.
        if (given.includes(` ${name} `)) {
          throw invalidParameter(
            name,
            `Parameter ${name} was given more than once, again as ${quote(search.slice(nameEnd + 1, end))}. Give it once.`,
          );
        }
        given += ` ${name} `;
        const value = decoded(search.slice(Math.min(nameEnd + 1, end), end));
        if (value === null) {
          const sent = quote(search.slice(nameEnd + 1, end));
          throw invalidParameter(name, `The value of ${name}, ${sent}, is not percent-encoded UTF-8.`);
        }
        values[name] = parameter.read(name, value);
      } else if (name !== '') this.#rejectSlip(name);
      from = end + 1;
    }
    return values as Q;
  }

  #rejectSlip(name: string): void {
    const meant = nearestName(name, this.#byName.keys(), MIN_EDITED_NAME);
    if (meant === null) return;
    throw invalidParameter(name, `Unknown parameter ${quote(name)}. Did you mean "${meant}"?`);
  }
}

/** A part of a query string as it was before it was encoded; null where it is no encoding of UTF-8. */
function decoded(part: string): string | null {
  if (!ENCODED.test(part)) return part;
  try {
    return decodeURIComponent(part.replaceAll('+', ' '));
  } catch {
    return null;
  }
}

const ENCODED = /[%+]/;
