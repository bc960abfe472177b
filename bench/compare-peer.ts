import type { LoadResult } from './load/http-load.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Target } from './scenario.ts';

/** The result of a program in `reference/`: the rate of its own load. */
export interface PeerRate {
  readonly jobs: number;
  readonly perSecond: number;
}

/** Two services that store their elements in the same database. */
export interface Peers {
  /** The name of the other service. */
  readonly peer: string;
  readonly database: string;
  /** CPU time that the database has used, µs. */
  databaseCpu(): number;
}

export interface PeerComparison {
  readonly what: string;
  readonly target: Target;
  readonly rounds: number;
  /** Prepares a round before it is timed, for example by storing elements to take. */
  prepare?(round: number): Promise<unknown>;
  own(round: number): Promise<LoadResult>;
  reference(round: number): Promise<PeerRate>;
}

/**
 * Compares throughput in interleaved rounds, and prints the CPU time per element of the database and of this server.
 */
export async function comparePeer(
  { note, quick }: BenchContext,
  peers: Peers,
  { what, target, rounds, prepare, own, reference }: PeerComparison,
): Promise<Finding> {
  if (!quick) {
    await prepare?.(-1);
    await own(-1);
  }
  const pairs = await interleave(
    rounds,
    async (round) => {
      await prepare?.(round);
      return withCpu(peers, () => own(round));
    },
    (round) => withCpu(peers, () => reference(round)),
  );
  const text = (rate: Rate): string => figureOf(rate, peers.database);
  for (const [mine, other] of pairs) {
    const ratio = (mine.perSecond / other.perSecond).toFixed(2);
    note(`${what}: ${text(mine)}; ${peers.peer} ${text(other)}; ratio ${ratio}`);
  }
  return {
    what,
    figure: `${grouped(median(pairs.map(([{ perSecond }]) => perSecond)))}/s`,
    reference: `${grouped(median(pairs.map(([, { perSecond }]) => perSecond)))}/s (${peers.peer})`,
    ratio: median(pairs.map(([mine, other]) => mine.perSecond / other.perSecond)),
    target,
  };
}

interface Rate {
  readonly perSecond: number;
  /** CPU time of the database per element, µs. */
  readonly database: number;
  /** CPU time of the service per element, µs; null for the reference, whose load runs in the same process. */
  readonly service: number | null;
}

async function withCpu({ databaseCpu }: Peers, run: () => Promise<LoadResult | PeerRate>): Promise<Rate> {
  const before = databaseCpu();
  const result = await run();
  const isLoad = 'requests' in result;
  const count = isLoad ? result.requests : result.jobs;
  return {
    perSecond: result.perSecond,
    database: (databaseCpu() - before) / count,
    service: isLoad ? result.cpu.total : null,
  };
}

function figureOf({ perSecond, database, service }: Rate, name: string): string {
  const own = service === null ? '' : `, service ${service.toFixed(0)}`;
  return `${grouped(perSecond)}/s (${name} ${database.toFixed(0)} µs CPU each${own})`;
}
