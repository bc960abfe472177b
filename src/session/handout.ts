import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId, GroupName } from '../model/element.ts';

/** What is on its way to a client: it hears, once, whether the client can have seen it. */
export interface Cargo {
  /** The kernel has every byte of it. */
  written(): void;
  /** Not all of it reached the kernel, and none of it will any more. */
  lost(): void;
}

/**
 * A reserved element that a client holds and has not settled yet.
 *
 * - `isSeen`: the client can have seen it, so giving it up is a failed try.
 * - `isClaimed`: a settlement of a transaction that is still open is about it; no other may be.
 */
export class Held<Key = string> implements Cargo {
  /** By which its subscription knows it. */
  readonly key: Key;
  readonly id: ElementId;
  readonly group: GroupName;
  readonly token: string | null;
  /** When its lease began or was last extended, on the monotonic clock. */
  leasedAt: number;
  isSeen = false;
  isClaimed = false;

  constructor(key: Key, { id, group, lease }: Delivery, leasedAt: number) {
    this.key = key;
    this.id = id;
    this.group = group;
    this.token = lease?.token ?? null;
    this.leasedAt = leasedAt;
  }

  written(): void {
    this.isSeen = true;
  }

  /** Its subscription gives it back with all others that it holds. */
  lost(): void {}
}

/** A popped element on its way to the client; it is gone from the queue unless this is lost. */
export class Popped implements Cargo {
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
