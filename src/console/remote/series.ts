import type { QueuePicture } from '../../model/records.ts';

/** Depth and counters of a queue at a moment. */
export interface DepthSample {
  readonly at: number;
  readonly size: number;
  readonly inserted: number;
  readonly taken: number;
}

/** Minimum time between samples. */
const SPACING_MS = 3_000;
/** How long samples are kept and shown. */
export const KEPT_MS = 300_000;
/** Time range over which rates are measured. */
const WINDOW_MS = 15_000;

/** Adds a sample, and drops old ones. Two changes close together are one sample. */
export function addSample(samples: DepthSample[], at: number, { size, stats }: QueuePicture): void {
  const sample = { at, size, inserted: stats.put, taken: stats.get + stats.reserve };
  const before = samples.at(-2);
  if (before !== undefined && at - before.at < SPACING_MS) samples.pop();
  samples.push(sample);
  // Keep one sample from before the visible range: it has the depth at its start.
  const old = samples.findLastIndex((one) => one.at <= at - KEPT_MS);
  if (old > 0) samples.splice(0, old);
}

/** Whether nothing changed in the visible range. */
export function isAtRest(samples: readonly DepthSample[], now: number): boolean {
  return (samples.at(-1)?.at ?? 0) <= now - KEPT_MS;
}

/**
 * Returns inserts and takes per second, as far as this page has seen them.
 * @param since when this page started to see each change
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
  // The counters restart at 0 if a queue is deleted.
  return {
    in: Math.max(0, last.inserted - first.inserted) / seconds,
    out: Math.max(0, last.taken - first.taken) / seconds,
  };
}
