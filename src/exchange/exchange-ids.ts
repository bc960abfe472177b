import type { Broker } from '../broker/broker.ts';
import type { Asker } from './asker.ts';
import type { Follower } from './follower.ts';
import { idsOf, scopedKey } from './ids.ts';
import type { KnownExchanges } from './known.ts';

/** Finds the exchange that somebody means by an id, among those whose source namespace they may see. */
export class ExchangeIds {
  readonly #broker: Broker;
  readonly #known: KnownExchanges;
  readonly #follower: Follower;

  constructor(broker: Broker, known: KnownExchanges, follower: Follower) {
    this.#broker = broker;
    this.#known = known;
    this.#follower = follower;
  }

  /** The exchanges that the asker may see: ids, sorted, and keys. */
  visible(asker: Asker): [id: string, key: string][] {
    return [...this.#visible(asker)].sort(([a], [b]) => (a < b ? -1 : 1));
  }

  /**
   * The key of the exchange that the asker means, see `ids.ts`. An id that no visible exchange has is its own key:
   * another node may have created it just now.
   */
  async keyOf(id: string, asker: Asker): Promise<string> {
    if (this.#isVisible(id, asker)) return id;
    const known = this.#visible(asker).get(id);
    if (known !== undefined || this.#known.get(id) === null) return known ?? id;
    // As for an id that is unknown here, the engines are asked: it takes as long, and finds what is new.
    const namespaces = this.#broker.namespaces().filter(({ name }) => asker.maySee(name));
    const keys = namespaces.map(({ name }) => scopedKey(id, name));
    const found = await Promise.allSettled(keys.map((key) => this.#follower.find(key)));
    return keys.find((_, i) => found[i]?.status === 'fulfilled') ?? id;
  }

  #visible(asker: Asker): Map<string, string> {
    return idsOf(this.#known.ids().filter((key) => this.#isVisible(key, asker)));
  }

  #isVisible(key: string, asker: Asker): boolean {
    const known = this.#known.get(key);
    return known !== null && asker.maySee(known.exchange.declaration.src.ns);
  }
}
