import { DONE } from '../operations.ts';
import { setAsideDamaged } from './damage.ts';
import { deadLetter } from './dead-letter.ts';
import { isWholeDelivery } from './deliveries.ts';
import type { Lane } from './names.ts';
import type { Store } from './store.ts';

/** A try that failed: by a rollback that counts it, or by a lease that ran out. */
export interface FailedTry {
  readonly lane: Lane;
  readonly seq: number;
  /** Failed tries before this one. */
  readonly tries: number;
  /** When the delivery may be handed out again, if there is a next try. */
  readonly nextDueAt: number;
  /** Kept where the lease ran out, so that the late worker may still commit. */
  readonly token: string | null;
}

/**
 * Counts a failed try of a reserved delivery. The one that reaches the namespace's `maxTries` moves the
 * element to the dead-letter queue. Answers the outcome.
 *
 * An element that fails in the dead-letter queue itself stays there: it would only move to where it is.
 */
export function endTry(store: Store, failed: FailedTry): number {
  const { lane, seq, nextDueAt, token } = failed;
  const tries = failed.tries + 1;
  const policy = lane.queue.policy?.deadLetter ?? null;
  if (policy !== null && tries >= policy.maxTries && lane.queue.key.name !== policy.queue) {
    return deadLetter(store, lane, seq, tries, policy.queue);
  }
  store.deliveries.release(lane, seq, nextDueAt, tries, token, store.now);
  store.retention.releasedInto(lane.queue);
  return DONE;
}

/** How many leases one call ends. More wait for the next call, which follows at once. */
const LEASES_A_CALL = 1000;

/**
 * Ends leases that ran out, each a failed try whose element waits again from the lease's end. Run before
 * each batch in which one may have ended, so no verb depends on `sweep` being called in time.
 */
export function endLapsedLeases(store: Store): void {
  if (!store.leases.mayHaveLapsed(store.now)) return;
  const lapsed = store.leases.lapsed(store.now, LEASES_A_CALL);
  for (const { lane, seq, tries, token, until } of lapsed) {
    // One that came before it may have set the element aside as damaged, with the deliveries of all groups.
    const row = store.deliveries.find(lane, seq);
    if (row === null) continue;
    store.touched.add(lane.queue);
    // A try counted on damaged fields would give them a sound checksum.
    if (!isWholeDelivery(lane, seq, row)) setAsideDamaged(store, seq);
    else endTry(store, { lane, seq, tries, nextDueAt: until, token });
  }
  store.leases.refresh(store.now);
}
