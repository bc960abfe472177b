import { invalidParameter } from '../model/errors.ts';
import { quoteBytes } from '../model/quote.ts';
import { nearestName } from '../model/slip.ts';

/** Other protocols and older pages write the same header with or without `ks-`. */
const PREFIX = /^x-(?:ks-)?/;
/** Names that are shorter differ by one letter from too much. */
const MIN_LENGTH = 4;

/** Finds headers of one command that are probably misspelt: ignored, they would have no effect. */
export class HeaderSlips {
  readonly #exact: ReadonlySet<string>;
  /** Names without prefix, with the header that each stands for. */
  readonly #bare: ReadonlyMap<string, string>;

  /** @param known headers that the command reads @param ignored headers that it passes over on purpose */
  constructor(known: readonly string[], ignored: Iterable<string> = []) {
    this.#exact = new Set([...known, ...ignored]);
    this.#bare = new Map(known.map((name) => [name.replace(PREFIX, ''), name]));
  }

  /** @throws QuaysideError `invalid-parameter` if a known header was probably meant */
  check(name: string): void {
    if (this.#exact.has(name)) return;
    const bare = name.toLowerCase().replace(PREFIX, '');
    const meant = this.#bare.get(bare) ?? this.#bare.get(this.#nearest(bare) ?? '');
    if (meant === undefined) return;
    throw invalidParameter(name, `Unknown header ${quoteBytes(name)}. Did you mean "${meant}"?`);
  }

  #nearest(bare: string): string | null {
    const nearest = nearestName(bare, this.#bare.keys());
    return nearest === null || nearest.length < MIN_LENGTH ? null : nearest;
  }
}
