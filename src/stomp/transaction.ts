import type { Queue, SettleAction } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import type { Held } from '../session/handout.ts';
import { Commit, type Send, type Settlement } from './commit.ts';
import type { Subscription } from './subscription.ts';
import type { TransactionBudget } from './transaction-budget.ts';

/** What a client wants to take effect together, at COMMIT. */
export class Transaction {
  readonly #budget: TransactionBudget;
  readonly #sends: Send[] = [];
  readonly #settlements: Settlement[] = [];
  #frames = 0;
  #bytes = 0;
  #commit: Commit | null = null;

  constructor(budget: TransactionBudget) {
    this.#budget = budget;
  }

  /** How many elements it stores and settles. */
  get size(): number {
    return this.#sends.length + this.#settlements.length;
  }

  get bytes(): number {
    return this.#bytes;
  }

  /** @throws QuaysideError `overloaded` */
  send(queue: Queue, element: NewElement): void {
    this.#take(1, element.body.byteLength);
    // The body is a view of what was read from the socket, and may stay here for long.
    this.#sends.push({ queue, element: { ...element, body: Buffer.from(element.body) } });
  }

  /** @throws QuaysideError `overloaded` */
  settle(subscription: Subscription, held: readonly Held[], action: SettleAction): void {
    this.#take(held.length, 0);
    for (const one of held) {
      one.isClaimed = true;
      this.#settlements.push({ subscription, held: one, action });
    }
  }

  /** Forgets everything: what it would have settled, the client still holds. */
  abort(): void {
    for (const { held } of this.#settlements) held.isClaimed = false;
    this.#budget.release(this.#frames, this.#bytes);
  }

  /**
   * Lets everything take effect. What it settles is no longer held by the client from the call on; where that
   * fails, what is `left` is the caller's to give back.
   * @throws QuaysideError as `Commit` does
   */
  async commit(): Promise<void> {
    for (const { subscription, held } of this.#settlements) subscription.settle([held]);
    try {
      this.#commit = new Commit(this.#sends, this.#settlements);
      await this.#commit.run();
    } finally {
      this.#budget.release(this.#frames, this.#bytes);
    }
  }

  /** After `commit` failed: what it did not settle. */
  get left(): ReadonlyMap<Queue, readonly Held[]> {
    return this.#commit?.left ?? new Map();
  }

  #take(frames: number, bytes: number): void {
    this.#budget.take(frames, bytes);
    this.#frames += frames;
    this.#bytes += bytes;
  }
}
