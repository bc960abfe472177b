import type { QueueKey } from '../model/names.ts';
import { queueDefinitionKey } from './definitions.ts';

/** Queues that gained eligible elements without a call whose caller knows of them, until the broker takes them. */
export class AffectedQueues {
  /** By their keys as one string. */
  readonly #queues = new Map<string, QueueKey>();

  note({ ns, name }: QueueKey): void {
    // A new object each time, by which `drop` recognizes that the queue was noted again.
    this.#queues.set(queueDefinitionKey({ ns, name }), { ns, name });
  }

  /** Calls `drop`. If it drops the queue, the next sweep does not report it, unless it received an element since. */
  async drop(queue: QueueKey, drop: () => Promise<boolean>): Promise<boolean> {
    const key = queueDefinitionKey(queue);
    const noted = this.#queues.get(key);
    const isDropped = await drop();
    if (isDropped && this.#queues.get(key) === noted) this.#queues.delete(key);
    return isDropped;
  }

  /** Returns the queues that were noted since the last call. */
  takeAll(): QueueKey[] {
    const queues = [...this.#queues.values()];
    this.#queues.clear();
    return queues;
  }
}
