import type { Engine } from '../engine/engine.ts';
import type { ReadyReport } from '../http/options.ts';
import type { Clock } from '../model/clock.ts';

/** An engine that has not answered after this long is taken to be away. */
const PING_MS = 2_000;

/** Whether this node should get requests: it has started, does not stop, and its engines answer. */
export class Readiness {
  readonly #clock: Clock;
  readonly #engines = new Map<string, Engine>();
  #state: 'starting' | 'open' | 'draining' = 'starting';

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param name what the report shows; no secret in it */
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
    const engines = [...this.#engines].map(async ([name, engine]) => [name, await this.#ask(engine)]);
    const checks: Record<string, string> = Object.fromEntries([
      ['node', node],
      ...(await Promise.all(engines)),
    ]);
    return { ready: Object.values(checks).every((check) => check === 'ok'), checks };
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
