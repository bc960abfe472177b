import type { Name } from '../client/index.ts';
import { monotonic } from '../client/time.ts';
import type { CommandContext } from './context.ts';
import { EXIT_CODES } from './output.ts';

interface BenchFlags {
  readonly count: number;
  readonly callers: number;
}

/** Measures inserts of small elements, then reserves with commits. The queue should be empty. */
export async function bench(
  context: CommandContext,
  name: Name,
  { count, callers }: BenchFlags,
): Promise<number> {
  const queue = context.client.queue(name);
  const insert = await measure(count, callers, async () => {
    await queue.insert({ order: 123_456, item: 'q-0042' });
  });
  const work = await measure(count, callers, async () => {
    const job = await queue.reserve({ leaseMs: 60_000 });
    await job?.commit();
  });
  const rows = [
    { what: 'insert', ...insert },
    { what: 'reserve and commit', ...work },
  ];
  await context.printRows(rows, '');
  return EXIT_CODES.done;
}

interface BenchResult {
  readonly count: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

async function measure(count: number, callers: number, call: () => Promise<void>): Promise<BenchResult> {
  const times: number[] = [];
  let remaining = count;
  const from = monotonic();
  const caller = async (): Promise<void> => {
    while (remaining > 0) {
      remaining -= 1;
      const startedAt = monotonic();
      await call();
      times.push(monotonic() - startedAt);
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  const seconds = (monotonic() - from) / 1000;
  times.sort((a, b) => a - b);
  const at = (quantile: number): number =>
    Number((times[Math.floor((times.length - 1) * quantile)] ?? 0).toFixed(2));
  return { count, perSecond: Math.round(count / seconds), p50Ms: at(0.5), p99Ms: at(0.99) };
}
