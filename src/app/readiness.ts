import type { Engine } from '../engine/engine.ts';
import { NODE_CHECK, type ReadyReport } from '../http/options.ts';
import type { Clock } from '../util/clock.ts';

/** An engine that has not replied after this long is reported as unavailable. Probes wait for a second, by default. */
const PING_MS = 800;

const OK = 'ok';

/**
 * Whether this node should get requests: it has started, does not stop, and an engine answers. One of several
 * that is unavailable is reported and no more: it is most likely unavailable to other nodes, too, and the
 * namespaces of the others would be cut off for nothing.
 */
export class Readiness {
  readonly #clock: Clock;
  /** Several may have one name, as secrets and variants do not show in it. */
  readonly #engines: { readonly name: string; readonly engine: Engine }[] = [];
  #state: 'starting' | 'open' | 'draining' = 'starting';

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param name what the report shows, as namespaces name the engine: its masked URL */
  watch(name: string, engine: Engine): void {
    this.#engines.push({ name, engine });
  }

  open(): void {
    if (this.#state === 'starting') this.#state = 'open';
  }

  drain(): void {
    this.#state = 'draining';
  }

  async report(): Promise<ReadyReport> {
    const node = this.#state === 'open' ? OK : this.#state;
    const asked = await Promise.all(
      this.#engines.map(async ({ name, engine }) => ({ name, check: await this.#ask(engine) })),
    );
    const answers = asked.length === 0 || asked.some(({ check }) => check === OK);
    const checks: Record<string, string> = { [NODE_CHECK]: node };
    // Of those with one name the worst is shown.
    for (const { name, check } of asked) if ((checks[name] ?? OK) === OK) checks[name] = check;
    return { ready: node === OK && answers, checks };
  }

  async #ask(engine: Engine): Promise<string> {
    const { promise: late, resolve } = Promise.withResolvers<string>();
    const cancel = this.#clock.after(PING_MS, () => resolve('does not answer'));
    const answered = engine.ping().then(
      () => OK,
      () => 'away',
    );
    try {
      return await Promise.race([answered, late]);
    } finally {
      cancel();
    }
  }
}
