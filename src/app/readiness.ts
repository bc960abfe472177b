import { inTime } from '../engine/calls.ts';
import type { Engine } from '../engine/engine.ts';
import { NODE_CHECK, type ReadyReport } from '../http/options.ts';
import type { EngineHealth } from '../model/records.ts';
import type { Clock } from '../util/clock.ts';

/** Time limit for a ping. Below one second, the usual time limit of readiness probes. */
const PING_MS = 800;

/** Pings that take longer are reported as slow. A healthy engine replies within milliseconds. */
const SLOW_MS = 200;

const OK = 'ok';
/** Worst first. */
const STATES = ['unavailable', 'slow', 'healthy'] as const;

/** The outcome of a ping. */
interface PingReply {
  /** `ok`, or the problem. */
  readonly check: string;
  readonly tookMs: number;
}

interface WatchedEngine {
  readonly name: string;
  readonly engine: Engine;
  /** The ping in progress, which concurrent callers share: `/readyz` needs no credentials and has no rate limit. */
  ping: Promise<PingReply> | null;
}

/**
 * Whether this node should receive requests: it has started, is not stopping, and at least one engine responds. A
 * single unavailable engine is only reported: it is probably unavailable to other nodes as well, and taking this node
 * out of service would cut off the namespaces of the other engines for nothing.
 */
export class Readiness {
  readonly #clock: Clock;
  /** Names may repeat, because they contain neither secrets nor variants. */
  readonly #engines: WatchedEngine[] = [];
  #state: 'starting' | 'open' | 'draining' = 'starting';

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @param name the engine's masked URL, as shown in the reports */
  watch(name: string, engine: Engine): void {
    this.#engines.push({ name, engine, ping: null });
  }

  open(): void {
    if (this.#state === 'starting') this.#state = 'open';
  }

  drain(): void {
    this.#state = 'draining';
  }

  async report(): Promise<ReadyReport> {
    const node = this.#state === 'open' ? OK : this.#state;
    const pings = await Promise.all(
      this.#engines.map(async (watched) => ({
        name: watched.name,
        check: (await this.#ping(watched)).check,
      })),
    );
    const isAnyAvailable = pings.length === 0 || pings.some(({ check }) => check === OK);
    const checks: Record<string, string> = { [NODE_CHECK]: node };
    // Of engines with the same name, report the worst.
    for (const { name, check } of pings) if ((checks[name] ?? OK) === OK) checks[name] = check;
    return { ready: node === OK && isAnyAvailable, checks };
  }

  /** State, ping time and disk usage of each engine, worst first. Of engines with the same name, only the worst. */
  async engines(): Promise<EngineHealth[]> {
    const reports = await Promise.all(this.#engines.map((watched) => this.#describe(watched)));
    reports.sort((a, b) => STATES.indexOf(a.state) - STATES.indexOf(b.state));
    return [...Map.groupBy(reports, ({ engine }) => engine).values()].flatMap((sameName) =>
      sameName.slice(0, 1),
    );
  }

  async #describe(watched: WatchedEngine): Promise<EngineHealth> {
    const { name, engine } = watched;
    const [{ check, tookMs }, disk] = await Promise.all([
      this.#ping(watched),
      engine.disk?.().catch(() => null) ?? null,
    ]);
    const isAvailable = check === OK;
    return {
      engine: name,
      type: engine.type,
      state: !isAvailable ? 'unavailable' : tookMs > SLOW_MS ? 'slow' : 'healthy',
      pingMs: isAvailable ? Math.round(tookMs) : null,
      disk,
      check,
    };
  }

  #ping(watched: WatchedEngine): Promise<PingReply> {
    watched.ping ??= this.#pingOnce(watched.engine).finally(() => {
      watched.ping = null;
    });
    return watched.ping;
  }

  /** Resolves within `PING_MS`; never rejects. */
  async #pingOnce(engine: Engine): Promise<PingReply> {
    const startedAt = this.#clock.monotonic();
    const answered = engine.ping().then(
      () => OK,
      () => 'away',
    );
    const late = (): Error => new Error('The ping took too long.');
    const check = await inTime(this.#clock, answered, late, PING_MS).catch(() => 'does not answer');
    return { check, tookMs: this.#clock.monotonic() - startedAt };
  }
}
