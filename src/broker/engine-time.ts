import type { Storage } from '../engine/storage.ts';
import { LIMITS } from '../model/limits.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';

/**
 * A moment of the engine's clock, as this node's own will show it. The two may be hours apart, and a timer that
 * was set by the wrong one is late, or due again and again.
 */
export function toLocal(at: number, clocks: Clocks, queue?: QueueKey): number {
  return at + (clocks.clock.now() - engineNow(clocks, queue));
}

/** What the engine's clock shows now, as far as is known: for moments that it will be compared with. */
export function engineNow({ storage, clock }: Clocks, queue?: QueueKey): number {
  const now = storage.now(queue);
  // Nothing was heard of the engine's clock yet.
  return Number.isFinite(now) ? now : clock.now();
}

/** How long it is until a moment that a client gave, ms. */
export function untilGiven(at: number, clocks: Clocks, queue: QueueKey): number {
  return at + clocks.storage.aheadMs - engineNow(clocks, queue);
}

/** The delay of a release that ends at a moment that a client gave. */
export function delayUntil(at: number, clocks: Clocks, queue: QueueKey): number {
  return Math.min(LIMITS.delayMs, Math.max(0, untilGiven(at, clocks, queue)));
}

/** The moment `ms` from now as an element's `expiresAt`. */
export function momentIn(ms: number, clocks: Clocks, queue: QueueKey): number {
  return asGiven(Math.ceil(engineNow(clocks, queue) + ms), clocks);
}

/** A moment of the engine's clock as a new element has it, also one of another engine. */
export function asGiven(at: number, { storage }: Pick<Clocks, 'storage'>): number {
  return at - storage.aheadMs;
}

interface Clocks {
  readonly storage: Pick<Storage, 'now' | 'aheadMs'>;
  readonly clock: Clock;
}
