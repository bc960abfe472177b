import type { QueuePicture } from './live.ts';

/** What was seen of a queue at a moment. */
export interface DepthSample {
  readonly at: number;
  readonly size: number;
  readonly inserted: number;
  readonly taken: number;
}

/** Samples are as far apart as this. */
const SPACING_MS = 3_000;
/** As far back as is shown. */
export const KEPT_MS = 300_000;
/** Over which rates are measured. */
const WINDOW_MS = 15_000;

/** Adds what is seen now, and drops what is too old. Two changes close together are one sample. */
export function addSample(samples: DepthSample[], at: number, { size, stats }: QueuePicture): void {
  const sample = { at, size, inserted: stats.put, taken: stats.get + stats.reserve };
  const before = samples.at(-2);
  if (before !== undefined && at - before.at < SPACING_MS) samples.pop();
  samples.push(sample);
  // The last one before the time that is shown says what was at its beginning.
  const old = samples.findLastIndex((one) => one.at <= at - KEPT_MS);
  if (old > 0) samples.splice(0, old);
}

/** Whether nothing changed in the time that is shown. */
export function isAtRest(samples: readonly DepthSample[], now: number): boolean {
  return (samples.at(-1)?.at ?? 0) <= now - KEPT_MS;
}

/**
 * Inserted and taken per second, as far as this page saw it.
 * @param since when it began to see each change: what came before, came at moments that it does not know
 */
export function ratesAt(
  samples: readonly DepthSample[] | undefined,
  now: number,
  since: number,
): { in: number; out: number } {
  const last = samples?.at(-1);
  if (samples === undefined || last === undefined || last.at < since) return { in: 0, out: 0 };
  const from = now - WINDOW_MS;
  const first =
    samples.findLast(({ at }) => at <= from && at >= since) ?? samples.find(({ at }) => at >= since) ?? last;
  const seconds = Math.max(1, (now - Math.max(first.at, from)) / 1000);
  // Counters start again with a queue that was deleted.
  return {
    in: Math.max(0, last.inserted - first.inserted) / seconds,
    out: Math.max(0, last.taken - first.taken) / seconds,
  };
}
