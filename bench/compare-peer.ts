import type { LoadResult } from './load/http-load.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Target } from './scenario.ts';

/** What a program of `reference/` answers: its own load's rate. */
export interface PeerRate {
  readonly jobs: number;
  readonly perSecond: number;
}

/** Two services that keep their elements in the same database. */
export interface Peers {
  /** The other service's name. */
  readonly peer: string;
  readonly database: string;
  /** CPU time that the database has used, microseconds. */
  databaseCpu(): number;
}

export interface PeerComparison {
  readonly what: string;
  readonly target: Target;
  readonly rounds: number;
  /** What a round needs before it is timed, such as elements to take. */
  prepare?(round: number): Promise<unknown>;
  own(round: number): Promise<LoadResult>;
  reference(round: number): Promise<PeerRate>;
}

/** Throughput in interleaved rounds. The CPU time for each, of the database and of this server, is printed with it. */
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
  /** The database's CPU time for each, microseconds. */
  readonly database: number;
  /** The service's CPU time for each, microseconds; null for the reference, whose load is in the same process. */
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
