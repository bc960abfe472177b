import type { AlarmPicture, QueuePicture } from '../../model/records.ts';
import { count, duration, several } from '../format.ts';
import { followedSince, keyOf, readyForMs, readySince } from './live.ts';
import { type DepthSample, ratesAt } from './series.ts';

/** A queue that needs attention, and why. A lower rank is more urgent. */
export interface Concern {
  readonly queue: QueuePicture;
  /** Index of the reason in {@link RULE}. */
  readonly rank: number;
}

/** How long ready elements may wait before the queue is listed. */
const LATE_MS = 60_000;

/** The reasons of {@link concerns}, as shown on the overview, most urgent first. */
export const RULE = [
  'Dead letters arrived in the last five minutes.',
  'Paused with ready elements.',
  'Elements have been ready for more than a minute, and none are taken.',
  'Elements have been ready for more than a minute, although some are taken.',
] as const;

/**
 * Returns the queues that need attention, the most urgent first; within a rank, the one with the oldest ready element.
 * With 10,000 queues this runs twice a second, so times are compared as ISO strings without parsing.
 */
export function concerns(
  queues: ReadonlyMap<string, QueuePicture>,
  alarms: Iterable<AlarmPicture>,
  samples: ReadonlyMap<string, readonly DepthSample[]>,
  now: number,
): readonly Concern[] {
  const grew = new Set<string>();
  for (const { alarm, ns, queue } of alarms) {
    if (alarm === 'dead-letters-grew' && ns !== undefined && queue !== undefined)
      grew.add(keyOf({ ns, queue }));
  }
  const lateSince = new Date(now - LATE_MS).toISOString();
  const found: Concern[] = [];
  for (const [key, queue] of queues) {
    const rank = grew.has(key) ? 0 : rankOf(queue, lateSince, samples.get(key), now);
    if (rank !== null) found.push({ queue, rank });
  }
  return found.sort(byUrgency);
}

function byUrgency(a: Concern, b: Concern): number {
  return a.rank - b.rank || bySince(a.queue, b.queue) || b.queue.size - a.queue.size;
}

/** The queue with the oldest ready element comes first, one without ready elements last. */
function bySince(a: QueuePicture, b: QueuePicture): number {
  const [one, other] = [readySince(a) ?? '~', readySince(b) ?? '~'];
  return one < other ? -1 : Number(one > other);
}

/** Returns null if the queue needs no attention. */
function rankOf(
  queue: QueuePicture,
  lateSince: string,
  samples: readonly DepthSample[] | undefined,
  now: number,
): number | null {
  const since = readySince(queue);
  if (since === null) return null;
  if (queue.paused) return 1;
  if (since > lateSince || queue.queue.startsWith('__')) return null;
  return ratesAt(samples, now, followedSince).out > 0 ? 3 : 2;
}

/** The reason as a sentence. */
export function reasonOf({ queue, rank }: Concern, now: number): string {
  if (rank === 0) return `Dead letters arrived in the last 5 min; the queue has ${count(queue.totalSize)}`;
  if (rank === 1) return `Paused; ${several(queue.size, 'element')} ready`;
  const age = duration(readyForMs(queue, now) ?? 0);
  return rank === 2
    ? `Not consumed: oldest ready for ${age}`
    : `Consumers are behind: oldest ready for ${age}`;
}
