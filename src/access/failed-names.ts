import type { Clock } from '../util/clock.ts';

export interface FailedNamesOptions {
  readonly clock: Clock;
  /** How long a name counts after its last failure. */
  readonly windowMs: number;
  /** Names that may fail in one network within that time. */
  readonly maxNames: number;
  /** Networks remembered at most; the one that failed longest ago is forgotten first. */
  readonly maxNetworks: number;
}

/**
 * How many names failed lately in each network. Names are counted, not failures: a program that retries with a
 * stale password is one name for ever, and a guesser that tries one password with many names is many.
 */
export class FailedNames {
  readonly #options: FailedNamesOptions;
  /** By network: moments of the last failure by name. Both maps have the oldest first. */
  readonly #networks = new Map<string, Map<string, number>>();

  constructor(options: FailedNamesOptions) {
    this.#options = options;
  }

  /** 0 if the name may fail in this network; otherwise how long until one more name may. */
  waitMs(network: string, name: string): number {
    const names = this.#recent(network);
    const { maxNames, windowMs, clock } = this.#options;
    if (names === undefined || names.size < maxNames || names.has(name)) return 0;
    const [oldest = 0] = names.values();
    return Math.max(1, Math.ceil(oldest + windowMs - clock.monotonic()));
  }

  add(network: string, name: string): void {
    const names = this.#recent(network) ?? new Map<string, number>();
    names.delete(name);
    names.set(name, this.#options.clock.monotonic());
    this.#networks.delete(network);
    this.#networks.set(network, names);
    if (this.#networks.size <= this.#options.maxNetworks) return;
    const [oldest = ''] = this.#networks.keys();
    this.#networks.delete(oldest);
  }

  remove(network: string, name: string): void {
    const names = this.#networks.get(network);
    names?.delete(name);
    if (names?.size === 0) this.#networks.delete(network);
  }

  #recent(network: string): Map<string, number> | undefined {
    const names = this.#networks.get(network);
    if (names === undefined) return undefined;
    const since = this.#options.clock.monotonic() - this.#options.windowMs;
    for (const [name, at] of names) {
      if (at > since) return names;
      names.delete(name);
    }
    this.#networks.delete(network);
    return undefined;
  }
}
