import type { Storage } from '../engine/storage.ts';
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

/** The moment of the engine's clock `ms` from now, as an element's `expiresAt`. */
export function momentIn(ms: number, clocks: Clocks, queue: QueueKey): number {
  return Math.ceil(engineNow(clocks, queue) + ms);
}

interface Clocks {
  readonly storage: Pick<Storage, 'now'>;
  readonly clock: Clock;
}
