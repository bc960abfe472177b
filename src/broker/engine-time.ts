import type { Storage } from '../engine/storage.ts';
import { LIMITS } from '../model/limits.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';

/**
 * Milliseconds until a time of the engine's clock. That may be hours apart from this node's clock, which may be set at
 * any moment: a timer that was set by the wrong one would fire late, or again and again.
 */
export function untilDue(at: number, clocks: Clocks, queue?: QueueKey): number {
  return at - engineNow(clocks, queue);
}

/** The time of the engine's clock, as far as this node knows it: for values that the engine compares with its clock. */
export function engineNow({ storage, clock }: Clocks, queue?: QueueKey): number {
  const now = storage.now(queue);
  // The engine's clock is not known yet.
  return Number.isFinite(now) ? now : clock.now();
}

/** Milliseconds until a time that a client gave. */
export function untilGiven(at: number, clocks: Clocks, queue: QueueKey): number {
  return untilDue(at + clocks.storage.aheadMs, clocks, queue);
}

/** The delay of a release, in ms, that ends at a time that a client gave. */
export function delayUntil(at: number, clocks: Clocks, queue: QueueKey): number {
  return Math.min(LIMITS.delayMs, Math.max(0, untilGiven(at, clocks, queue)));
}

/** The `expiresAt` of a new element that expires in `ms`. */
export function momentIn(ms: number, clocks: Clocks, queue: QueueKey): number {
  return asGiven(Math.ceil(engineNow(clocks, queue) + ms), clocks);
}

/**
 * Converts a time of the engine's clock to the form of `matureAt` and `expiresAt` of new elements, see
 * `Storage.aheadMs`. The element may be for another engine.
 */
export function asGiven(at: number, { storage }: Pick<Clocks, 'storage'>): number {
  return at - storage.aheadMs;
}

interface Clocks {
  readonly storage: Pick<Storage, 'now' | 'aheadMs'>;
  readonly clock: Clock;
}
