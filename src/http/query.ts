import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { Parameter } from './parameters.ts';

/** The parameters of a route, by name. */
export type Parameters<Q> = { readonly [Name in keyof Q]: Parameter<Q[Name]> };

/**
 * Reads the query strings of one route, prepared once. Strict where a mistake would be silent otherwise: a
 * known parameter that comes twice, is not well encoded or is not what it should be is refused. Unknown
 * ones are ignored.
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
      if (name === null)
        throw new QuaysideError('malformed-request', 'A parameter name is not well encoded.');
      const parameter = this.#byName.get(name);
      if (parameter !== undefined) {
        // Known names have no space, so this says exactly whether the name was there before.
        if (given.includes(` ${name} `)) {
          throw invalidParameter(name, `${name} was given twice; give it once.`);
        }
        given += ` ${name} `;
        const value = decoded(search.slice(Math.min(nameEnd + 1, end), end));
        if (value === null) throw invalidParameter(name, `The value of ${name} is not well encoded.`);
        values[name] = parameter.read(name, value);
      }
      from = end + 1;
    }
    return values as Q;
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
