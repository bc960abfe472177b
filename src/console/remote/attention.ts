import { duration, several } from '../format.ts';
import { type AlarmPicture, keyOf, type QueuePicture, readyForMs } from './live.ts';
import { type DepthSample, ratesAt } from './series.ts';

/** Why somebody should look at a queue. The lower the rank, the sooner. */
export interface Concern {
  readonly queue: QueuePicture;
  readonly rank: number;
  readonly level: 'bad' | 'warn';
  readonly reason: string;
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

/** The queues that need attention, the most urgent first; of the same rank, the one with the oldest ready element. */
export function concerns(
  queues: Iterable<QueuePicture>,
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
  for (const queue of queues) {
    const concern = concernOf(queue, grew, samples, now);
    if (concern !== null) found.push(concern);
  }
  const age = ({ queue }: Concern): number => readyForMs(queue, now) ?? 0;
  return found.sort((a, b) => a.rank - b.rank || age(b) - age(a) || b.queue.size - a.queue.size);
}

function concernOf(
  queue: QueuePicture,
  grew: ReadonlySet<string>,
  samples: ReadonlyMap<string, readonly DepthSample[]>,
  now: number,
): Concern | null {
  const key = keyOf(queue);
  if (grew.has(key)) {
    const reason = `Dead letters came in the last 5 min; ${several(queue.totalSize, 'is', 'are')} here`;
    return { queue, rank: 0, level: 'bad', reason };
  }
  const age = readyForMs(queue, now);
  if (age === null) return null;
  if (queue.paused) {
    return { queue, rank: 1, level: 'warn', reason: `Paused; ${several(queue.size, 'element')} ready` };
  }
  if (age < LATE_MS || queue.queue.startsWith('__')) return null;
  const taken = ratesAt(samples.get(key), now).out > 0;
  return taken
    ? { queue, rank: 3, level: 'warn', reason: `Consumers are behind: oldest ready for ${duration(age)}` }
    : { queue, rank: 2, level: 'bad', reason: `Nobody takes: oldest ready for ${duration(age)}` };
}
