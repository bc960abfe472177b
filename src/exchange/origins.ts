import type { Definitions } from '../engine/definitions.ts';

/**
 * Which stores define which exchanges, as far as this node has heard. Where several define one id, the first in the
 * order of the configuration counts, and what the others say is hidden behind it. Two engines may share a store, and
 * then both define the same.
 */
export class Origins {
  readonly #ids: ReadonlyMap<Definitions, Set<string>>;

  constructor(stores: readonly Definitions[]) {
    this.#ids = new Map(stores.map((definitions) => [definitions, new Set()]));
  }

  /** The stores that define an exchange: the one that counts, then those hidden behind it. */
  of(id: string): Definitions[] {
    return [...this.#ids].flatMap(([definitions, ids]) => (ids.has(id) ? [definitions] : []));
  }

  ids(definitions: Definitions): ReadonlySet<string> {
    return this.#ids.get(definitions) ?? new Set();
  }

  note(definitions: Definitions, id: string, isThere: boolean): void {
    const ids = this.#ids.get(definitions);
    if (isThere) ids?.add(id);
    else ids?.delete(id);
  }
}
