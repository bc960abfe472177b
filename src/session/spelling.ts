import { invalidParameter } from '../model/errors.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { nearestName } from '../util/did-you-mean.ts';

/** Other protocols and older documentation write the same name with or without `ks-`. */
const PREFIX = /^x-(?:ks-)?/;
/** Shorter names are not compared: too many of them differ in one character only. */
const MIN_LENGTH = 4;
const EXTENSION = /^x-/i;

interface KnownNames {
  /** What the names are, in the singular, for errors. */
  readonly kind: string;
  /** `x-` names that have a meaning; only names that start with `x-` are compared, since clients choose other ones. */
  readonly known: readonly string[];
  /** Names that are ignored on purpose. */
  readonly ignored?: Iterable<string>;
  /** Names without `x-` that do harm if they are misspelt. */
  readonly plain?: readonly string[];
}

/** Rejects names in a client's message or frame that are probably misspelt, since they would have no effect. */
export class NameSpelling {
  readonly #kind: string;
  readonly #exact: ReadonlySet<string>;
  /** The known `x-` names, by name without prefix. */
  readonly #bare: ReadonlyMap<string, string>;
  readonly #plain: readonly string[];

  constructor({ kind, known, ignored = [], plain = [] }: KnownNames) {
    this.#kind = kind;
    this.#exact = new Set([...known, ...ignored, ...plain]);
    this.#bare = new Map(known.map((name) => [name.replace(PREFIX, ''), name]));
    this.#plain = plain;
  }

  /** @throws QuaysideError `invalid-parameter` if a known name was probably meant */
  check(name: string): void {
    if (this.#exact.has(name)) return;
    const meant = EXTENSION.test(name) ? this.#extensionMeant(name) : nearestName(name, this.#plain);
    if (meant === null) return;
    throw invalidParameter(name, `Unknown ${this.#kind} ${quoteBytes(name)}. Did you mean "${meant}"?`);
  }

  #extensionMeant(name: string): string | null {
    const bare = name.toLowerCase().replace(PREFIX, '');
    const nearest = nearestName(bare, this.#bare.keys(), MIN_LENGTH);
    return nearest === null ? null : (this.#bare.get(nearest) ?? null);
  }
}
