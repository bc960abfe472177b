import { duration, several } from '../format.ts';
import {
  type AlarmPicture,
  followedSince,
  keyOf,
  type QueuePicture,
  readyForMs,
  readySince,
} from './live.ts';
import { type DepthSample, ratesAt } from './series.ts';

/** Why somebody should look at a queue. The lower the rank, the sooner. */
export interface Concern {
  readonly queue: QueuePicture;
  /** The place of the reason in {@link RULE}. */
  readonly rank: number;
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

export interface Concerns {
  /** The most urgent, in order. */
  readonly first: readonly Concern[];
  /** How many there are in all. */
  readonly total: number;
}

/**
 * The queues that need attention, the most urgent first; of the same rank, the one with the oldest ready element. With
 * 10,000 queues this runs twice a second: no moment is parsed, since their texts sort as they do, and only the first
 * are kept in order.
 */
export function concerns(
  queues: ReadonlyMap<string, QueuePicture>,
  alarms: Iterable<AlarmPicture>,
  samples: ReadonlyMap<string, readonly DepthSample[]>,
  now: number,
  max: number,
): Concerns {
  const grew = new Set<string>();
  for (const { alarm, ns, queue } of alarms) {
    if (alarm === 'dead-letters-grew' && ns !== undefined && queue !== undefined)
      grew.add(keyOf({ ns, queue }));
  }
  const lateSince = new Date(now - LATE_MS).toISOString();
  const first: Concern[] = [];
  let total = 0;
  for (const [key, queue] of queues) {
    const rank = grew.has(key) ? 0 : rankOf(queue, lateSince, samples.get(key), now);
    if (rank === null) continue;
    total += 1;
    const concern = { queue, rank };
    const last = first.at(-1);
    if (first.length === max && last !== undefined && byUrgency(concern, last) >= 0) continue;
    const at = first.findIndex((one) => byUrgency(concern, one) < 0);
    first.splice(at === -1 ? first.length : at, 0, concern);
    if (first.length > max) first.pop();
  }
  return { first, total };
}

function byUrgency(a: Concern, b: Concern): number {
  return a.rank - b.rank || bySince(a.queue, b.queue) || b.queue.size - a.queue.size;
}

/** What became ready first comes first; a queue with nothing ready comes last. */
function bySince(a: QueuePicture, b: QueuePicture): number {
  const [one, other] = [readySince(a) ?? '~', readySince(b) ?? '~'];
  return one < other ? -1 : Number(one > other);
}

/** Null: it needs no attention. */
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

/** In words. */
export function reasonOf({ queue, rank }: Concern, now: number): string {
  if (rank === 0) return `Dead letters came in the last 5 min; ${several(queue.totalSize, 'is', 'are')} here`;
  if (rank === 1) return `Paused; ${several(queue.size, 'element')} ready`;
  const age = duration(readyForMs(queue, now) ?? 0);
  return rank === 2
    ? `Nobody takes: oldest ready for ${age}`
    : `Consumers are behind: oldest ready for ${age}`;
}
