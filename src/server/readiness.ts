import type { Engine } from '../engine/engine.ts';
import { NODE_CHECK, type ReadyReport } from '../http/options.ts';
import type { Clock } from '../model/clock.ts';

/** An engine that has not answered after this long is taken to be away. */
const PING_MS = 2_000;

/**
 * Whether this node should get requests: it has started, does not stop, and an engine answers. One of several
 * that is away is reported and no more: whoever is sent to another node finds it away there, too, and the
 * namespaces of the others would be cut off for nothing.
 */
export class Readiness {
  readonly #clock: Clock;
  readonly #engines = new Map<string, Engine>();
  #state: 'starting' | 'open' | 'draining' = 'starting';

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param name what the report shows, as namespaces name the engine: its masked URL */
  watch(name: string, engine: Engine): void {
    this.#engines.set(name, engine);
  }

  open(): void {
    if (this.#state === 'starting') this.#state = 'open';
  }

  drain(): void {
    this.#state = 'draining';
  }

  async report(): Promise<ReadyReport> {
    const node = this.#state === 'open' ? 'ok' : this.#state;
    const engines = await Promise.all(
      Array.from(this.#engines, async ([name, engine]) => [name, await this.#ask(engine)] as const),
    );
    const answers = engines.length === 0 || engines.some(([, check]) => check === 'ok');
    return { ready: node === 'ok' && answers, checks: Object.fromEntries([[NODE_CHECK, node], ...engines]) };
  }

  async #ask(engine: Engine): Promise<string> {
    const { promise: late, resolve } = Promise.withResolvers<string>();
    const cancel = this.#clock.after(PING_MS, () => resolve('does not answer'));
    const answered = engine.ping().then(
      () => 'ok',
      () => 'away',
    );
    try {
      return await Promise.race([answered, late]);
    } finally {
      cancel();
    }
  }
}
