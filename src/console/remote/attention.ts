import { duration, several } from '../format.ts';
import { type AlarmPicture, keyOf, type QueuePicture, readyForMs } from './live.ts';
import { type DepthSample, ratesAt } from './series.ts';

/** Why somebody should look at a queue. The lower the rank, the sooner. */
export interface Concern {
  readonly queue: QueuePicture;
  readonly rank: number;
  readonly level: 'bad' | 'warn';
  /** For how long its oldest ready element has been ready; 0 if none is. */
  readonly ageMs: number;
}

/** Ready elements may wait for so long before it is said. */
export const LATE_MS = 60_000;

/** The rule of {@link concerns}, as the overview states it. */
export const RULE = [
  'Dead letters came in the last five minutes.',
  'Paused, with elements that are ready.',
  'Elements have been ready for more than a minute, and none is taken.',
  'Elements have been ready for more than a minute, though some are taken.',
] as const;

/**
 * The queues that need attention, the most urgent first; of the same rank, the one with the oldest ready element. Of 10,000 queues all may
 * need it, twice a second: what is said of one is left to {@link reasonOf}.
 */
export function concerns(
  queues: ReadonlyMap<string, QueuePicture>,
  alarms: Iterable<AlarmPicture>,
  samples: ReadonlyMap<string, readonly DepthSample[]>,
  now: number,
): Concern[] {
  const grew = new Set<string>();
  for (const { alarm, ns, queue } of alarms) {
    if (alarm === 'dead-letters-grew' && ns !== undefined && queue !== undefined)
      grew.add(keyOf({ ns, queue }));
  }
  const found: Concern[] = [];
  for (const [key, queue] of queues) {
    const age = readyForMs(queue, now);
    const rank = rankOf(queue, age, grew.has(key), samples.get(key), now);
    if (rank !== null)
      found.push({ queue, rank, level: rank === 0 || rank === 2 ? 'bad' : 'warn', ageMs: age ?? 0 });
  }
  return found.sort((a, b) => a.rank - b.rank || b.ageMs - a.ageMs || b.queue.size - a.queue.size);
}

/** The place of its reason in {@link RULE}; null: it needs none. */
function rankOf(
  queue: QueuePicture,
  age: number | null,
  hasGrown: boolean,
  samples: readonly DepthSample[] | undefined,
  now: number,
): number | null {
  if (hasGrown) return 0;
  if (age === null) return null;
  if (queue.paused) return 1;
  if (age < LATE_MS || queue.queue.startsWith('__')) return null;
  return ratesAt(samples, now).out > 0 ? 3 : 2;
}

/** In words. */
export function reasonOf({ queue, rank, ageMs }: Concern): string {
  if (rank === 0) return `Dead letters came in the last 5 min; ${several(queue.totalSize, 'is', 'are')} here`;
  if (rank === 1) return `Paused; ${several(queue.size, 'element')} ready`;
  if (rank === 2) return `Nobody takes: oldest ready for ${duration(ageMs)}`;
  return `Consumers are behind: oldest ready for ${duration(ageMs)}`;
}
