import type { Queue, SettleAction } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Outstanding } from '../session/push-consumer.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/frame.ts';
import { Commit, type Send, type Settlement } from './commit.ts';
import { STOMP_LIMITS } from './options.ts';
import type { Subscription } from './subscription.ts';
import { unknown } from './values.ts';

/** What a client wants to take effect together, at COMMIT. */
export class Transaction {
  readonly #all: Transactions;
  readonly #sends: Send[] = [];
  readonly #settlements: Settlement[] = [];
  #frames = 0;
  #bytes = 0;

  constructor(all: Transactions) {
    this.#all = all;
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
    this.#reserve(1, element.body.byteLength);
    // The body is a view of what was read from the socket, and may stay here for long.
    this.#sends.push({ queue, element: { ...element, body: Buffer.from(element.body) } });
  }

  /** @throws QuaysideError `overloaded` */
  settle(subscription: Subscription, settled: readonly Outstanding<string>[], action: SettleAction): void {
    this.#reserve(settled.length, 0);
    for (const one of settled) {
      one.isClaimed = true;
      this.#settlements.push({ subscription, outstanding: one, action });
    }
  }

  /** Drops everything: what it would have settled is still outstanding. */
  abort(): void {
    for (const { outstanding } of this.#settlements) outstanding.isClaimed = false;
    this.#all.release(this.#frames, this.#bytes);
  }

  /**
   * What puts everything into effect when it is run. What it settles is not outstanding any more from now on, and its
   * place among the open transactions is free.
   */
  commit(): Commit {
    for (const { subscription, outstanding } of this.#settlements) subscription.settle([outstanding]);
    this.#all.release(this.#frames, this.#bytes);
    return new Commit(this.#sends, this.#settlements);
  }

  #reserve(frames: number, bytes: number): void {
    this.#all.reserve(frames, bytes);
    this.#frames += frames;
    this.#bytes += bytes;
  }
}

/** The open transactions of one session, with bounds on what they hold together. */
export class Transactions {
  readonly #maxBytes: number;
  readonly #open = new Map<string, Transaction>();
  #frames = 0;
  #bytes = 0;

  constructor(bodyLimit: number) {
    this.#maxBytes = STOMP_LIMITS.transactionBodies * bodyLimit;
  }

  /** @throws QuaysideError `malformed-request`, `overloaded` */
  begin(id: string): void {
    if (this.#open.has(id)) {
      throw malformed(
        `Transaction ${quoteBytes(id)} is open already. Choose another id, or end it first.`,
        'transaction',
      );
    }
    if (this.#open.size >= STOMP_LIMITS.transactions) {
      throw new QuaysideError(
        'overloaded',
        `This session has ${STOMP_LIMITS.transactions} open transactions, the most that are allowed.`,
      );
    }
    this.#open.set(id, new Transaction(this));
  }

  /** @throws QuaysideError `malformed-request` */
  find(id: string): Transaction {
    const transaction = this.#open.get(id);
    if (transaction === undefined) {
      throw malformed(unknown('open transaction', id, this.#open.keys()), 'transaction');
    }
    return transaction;
  }

  /** Takes one out: its id is free again. @throws QuaysideError `malformed-request` */
  end(id: string): Transaction {
    const transaction = this.find(id);
    this.#open.delete(id);
    return transaction;
  }

  /** Drops all: what they would have settled returns with its subscription. */
  clear(): void {
    this.#open.clear();
  }

  /** Counts what an open transaction holds. @throws QuaysideError `overloaded` */
  reserve(frames: number, bytes: number): void {
    const { transactionFrames } = STOMP_LIMITS;
    if (this.#frames + frames > transactionFrames || this.#bytes + bytes > this.#maxBytes) {
      throw new QuaysideError(
        'overloaded',
        `Open transactions would hold ${this.#frames + frames} frames and ${this.#bytes + bytes} bytes of bodies. Allowed together: ${transactionFrames} and ${this.#maxBytes}.`,
      );
    }
    this.#frames += frames;
    this.#bytes += bytes;
  }

  release(frames: number, bytes: number): void {
    this.#frames -= frames;
    this.#bytes -= bytes;
  }
}
