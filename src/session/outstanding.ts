import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';
import type { PendingWork } from './pending-work.ts';

/** Learns, once, what became of bytes that were given to a {@link SocketWriter}. */
export interface WriteObserver {
  /** The kernel has every byte. */
  written(): void;
  /** The kernel does not have all of the bytes, and never will. */
  lost(): void;
}

/**
 * A reserved element that was sent to a client and is not settled yet.
 *
 * - `isSeen`: the client can have seen it, so its return is a failed try.
 * - `isClaimed`: a settlement of an open transaction is about it; no other may be.
 */
export class Outstanding<Key = unknown> implements WriteObserver {
  /** By which its consumer knows it. */
  readonly key: Key;
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  /** Failed tries before this delivery. */
  readonly tries: number;
  /** When its lease began or was last extended, on the monotonic clock. */
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

  /** Its consumer returns it with everything else that is outstanding. */
  lost(): void {}
}

/** A popped element on its way to the client; it is gone from the queue unless it is lost. */
export class PoppedDelivery implements WriteObserver {
  readonly #queue: Queue;
  readonly #delivery: Delivery;
  readonly #onWritten: () => void;

  constructor(queue: Queue, delivery: Delivery, onWritten: () => void) {
    this.#queue = queue;
    this.#delivery = delivery;
    this.#onWritten = onWritten;
  }

  written(): void {
    this.#onWritten();
  }

  lost(): void {
    this.#queue.returnUndelivered(this.#delivery);
  }
}

/**
 * Returns elements of a client that is gone or has let go of them: at once, or if a try counts and the queue has a retry delay,
 * after that.
 * @param countTries whether it is a failed try of each that the client can have seen
 * @returns a promise that resolves when the engine has them, or failed to; it never rejects, since leases end by
 * themselves
 */
export async function returnOutstanding(
  queue: Queue,
  outstanding: readonly Outstanding[],
  countTries: boolean,
  session: { readonly work: PendingWork; warn(error: unknown, message: string): void },
): Promise<void> {
  const { work } = session;
  work.begin(outstanding.length, 0);
  try {
    const items = outstanding.map((one) =>
      queue.item(one, {
        kind: 'release',
        delayMs: 0,
        isDefaultDelay: true,
        countTry: countTries && one.isSeen,
      }),
    );
    await queue.settleAll(items);
  } catch (error) {
    session.warn(
      error,
      'elements of a client that let go of them could not be returned; their leases will end',
    );
  } finally {
    work.end(outstanding.length, 0);
  }
}
