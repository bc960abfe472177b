import type { LoadResult } from './load/http-load.ts';
import { type BenchContext, type Finding, grouped, interleave, median, type Target } from './scenario.ts';

export interface Comparison {
  readonly what: string;
  readonly target: Target;
  readonly rounds: number;
  measure(round: number): Promise<LoadResult>;
  reference(round: number): Promise<LoadResult>;
}

/**
 * Compares throughput with a reference in interleaved rounds; the median of the ratios per round decides. The CPU time
 * per request is printed as well, because neighbors on the machine disturb it least.
 */
export async function compareThroughput(context: BenchContext, comparison: Comparison): Promise<Finding> {
  const { what, target, rounds } = comparison;
  const pairs = await interleave(rounds, comparison.measure, comparison.reference);
  for (const [own, other] of pairs) {
    const ratio = own.perSecond / other.perSecond;
    context.note(
      `${what}: ${figureOf(own)}; reference ${figureOf(other)}; ratio ${ratio.toFixed(3)}, of CPU ${cpuRatio(own, other).toFixed(3)}`,
    );
  }
  const own = middleOf(pairs.map(([result]) => result));
  const other = middleOf(pairs.map(([, result]) => result));
  const ratio = median(pairs.map(([a, b]) => a.perSecond / b.perSecond));
  const share = median(pairs.map(([a, b]) => cpuRatio(a, b)));
  const reference = `${figureOf(other)}, ratio of main-thread CPU ${share.toFixed(2)}`;
  return { what, figure: figureOf(own), reference, ratio, target };
}

/** The ratio of throughputs that results if only the main thread's CPU limits both. */
function cpuRatio(own: LoadResult, other: LoadResult): number {
  return other.cpu.mainThread / own.cpu.mainThread;
}

function middleOf(results: readonly LoadResult[]): LoadResult {
  return {
    requests: median(results.map(({ requests }) => requests)),
    perSecond: median(results.map(({ perSecond }) => perSecond)),
    cpu: {
      total: median(results.map(({ cpu }) => cpu.total)),
      mainThread: median(results.map(({ cpu }) => cpu.mainThread)),
    },
  };
}

function figureOf({ perSecond, cpu }: LoadResult): string {
  return `${grouped(perSecond)}/s (CPU ${cpu.total.toFixed(1)} µs each, main thread ${cpu.mainThread.toFixed(1)})`;
}
