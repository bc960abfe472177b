import type { Queue, SettleItem, SettleOutcome } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { ClientSession } from './client-session.ts';
import type { WriteObserver } from './socket-writer.ts';

/**
 * A reserved element that was sent to a client and is not settled yet.
 *
 * - `isSeen`: the client may have seen it, so its return counts as a failed try.
 * - `isClaimed`: an open transaction will settle it, so no other frame may.
 */
export class Outstanding<Key = unknown> implements WriteObserver {
  /** Identifies the delivery within its consumer. */
  readonly key: Key;
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  /** Failed tries before this delivery. */
  readonly tries: number;
  /** When its lease began or was last extended, on the monotonic clock; infinity once the lease is lost. */
  leasedAt: number;
  isSeen = false;
  isClaimed = false;

  constructor(key: Key, { id, group, lease, tries }: Delivery, leasedAt: number) {
    this.key = key;
    this.id = id;
    this.group = group;
    this.token = lease?.token ?? null;
    this.tries = tries;
    this.leasedAt = leasedAt;
  }

  written(): void {
    this.isSeen = true;
  }

  /** Nothing to do: the consumer returns it with its other outstanding elements. */
  lost(): void {}
}

/** Whether a call that failed with this error has certainly changed nothing. */
export function isCertain(failure: unknown): failure is QuaysideError {
  return (
    failure instanceof QuaysideError && failure.code !== 'outcome-unknown' && failure.code !== 'internal'
  );
}

/**
 * Maximum elements settled in one call. An engine executes a call as a whole while other calls wait: one call for a
 * window of 65,536 took Redis 1.2 s.
 */
export const MAX_SETTLED = 1000;

/**
 * Settles any number of elements in sequential calls of at most `MAX_SETTLED`.
 * @param onOutcome called with the outcome of each element
 * @param after the first call waits for this promise
 * @throws what `Queue.settleAll` throws. Of the elements that were not noted, the first `MAX_SETTLED` may be settled
 * unless the error `isCertain`; the others are not settled.
 */
export async function settleInSteps(
  queue: Queue,
  items: readonly SettleItem[],
  onOutcome: (item: SettleItem, outcome: SettleOutcome) => void,
  after: Promise<unknown> | null = null,
): Promise<void> {
  for (let from = 0; from < items.length; from += MAX_SETTLED) {
    const step = items.length <= MAX_SETTLED ? items : items.slice(from, from + MAX_SETTLED);
    const results = await queue.settleAll(step, from === 0 ? after : null);
    for (const [i, item] of step.entries()) onOutcome(item, results[i]?.outcome ?? 'not-found');
  }
}

/**
 * Returns elements to the queue whose client is gone or has ended their consumer. They become ready immediately, or
 * after the queue's retry delay if a failed try is counted.
 * @param countTries whether a failed try is counted for each element that the client may have seen
 * @returns a promise that never rejects, since leases expire anyway: it resolves with null when the engine has the
 * elements back, else with the error
 */
export async function returnOutstanding(
  queue: Queue,
  outstanding: readonly Outstanding[],
  countTries: boolean,
  session: ClientSession,
): Promise<unknown> {
  const { work } = session;
  work.begin(outstanding.length, 0);
  work.returning += outstanding.length;
  try {
    const items = outstanding.map((delivery) =>
      queue.item(delivery, {
        kind: 'release',
        delayMs: 0,
        isDefaultDelay: true,
        countTry: countTries && delivery.isSeen,
      }),
    );
    await settleInSteps(queue, items, () => {});
    return null;
  } catch (error) {
    session.warn(
      error,
      'elements of a client could not be returned to their queue; they return when their leases expire',
    );
    return error;
  } finally {
    work.returning -= outstanding.length;
    work.end(outstanding.length, 0);
  }
}
