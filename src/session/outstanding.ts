import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';
import type { ClientSession } from './client-session.ts';
import { settleInSteps } from './settle-steps.ts';
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
