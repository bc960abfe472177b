import type { Engine } from '../engine/engine.ts';
import { type EngineReport, NODE_CHECK, type ReadyReport } from '../http/options.ts';
import type { Clock } from '../util/clock.ts';

/** An engine that has not replied after this long is reported as unavailable. Probes wait for a second, by default. */
const PING_MS = 800;

/** An engine in good health replies within milliseconds; one that takes longer delays every request. */
const SLOW_MS = 200;

const OK = 'ok';
/** The worst first. */
const STATES = ['unavailable', 'slow', 'healthy'] as const;

/** What an engine replied to a ping. */
interface PingReply {
  /** `ok`, or what is wrong. */
  readonly check: string;
  readonly tookMs: number;
}

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
      this.#engines.map(async ({ name, engine }) => ({ name, check: (await this.#ping(engine)).check })),
    );
    const answers = asked.length === 0 || asked.some(({ check }) => check === OK);
    const checks: Record<string, string> = { [NODE_CHECK]: node };
    // Of those with one name the worst is shown.
    for (const { name, check } of asked) if ((checks[name] ?? OK) === OK) checks[name] = check;
    return { ready: node === OK && answers, checks };
  }

  /** Each engine, how it replies, and what its files take. Of those with one name the worst is shown. */
  async engines(): Promise<EngineReport[]> {
    const reports = await Promise.all(this.#engines.map(({ name, engine }) => this.#describe(name, engine)));
    reports.sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state));
    return [...Map.groupBy(reports, ({ engine }) => engine).values()].flatMap((same) => same.slice(0, 1));
  }

  async #describe(name: string, engine: Engine): Promise<EngineReport> {
    const [{ check, tookMs }, disk] = await Promise.all([
      this.#ping(engine),
      engine.disk?.().catch(() => null) ?? null,
    ]);
    const isThere = check === OK;
    return {
      engine: name,
      type: engine.type,
      state: !isThere ? 'unavailable' : tookMs > SLOW_MS ? 'slow' : 'healthy',
      pingMs: isThere ? Math.round(tookMs) : null,
      disk,
    };
  }

  async #ping(engine: Engine): Promise<PingReply> {
    const { promise: late, resolve } = Promise.withResolvers<string>();
    const cancel = this.#clock.after(PING_MS, () => resolve('does not answer'));
    const startedAt = this.#clock.monotonic();
    const answered = engine.ping().then(
      () => OK,
      () => 'away',
    );
    try {
      const check = await Promise.race([answered, late]);
      return { check, tookMs: this.#clock.monotonic() - startedAt };
    } finally {
      cancel();
    }
  }
}
