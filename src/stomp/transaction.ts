import type { Queue } from '../broker/queue.ts';
import { isSettled, type Refused, refusalOf } from '../broker/refusal.ts';
import type { NewElement } from '../model/element.ts';
import type { QuaysideError } from '../model/errors.ts';
import type { Held } from '../session/handout.ts';
import type { Subscription } from './subscription.ts';
import type { TransactionBudget } from './transaction-budget.ts';

interface Send {
  readonly queue: Queue;
  readonly element: NewElement;
}

/** An ACK (`delayMs` null) or NACK of one element. */
interface Settlement {
  readonly subscription: Subscription;
  readonly held: Held;
  readonly delayMs: number | null;
}

/**
 * What a client wants to take effect together.
 *
 * At COMMIT, in this order: (1) the leases of all elements that it settles are extended, which shows that
 * the client still holds each; where one is lost, nothing else happens. (2) SENDs to engines that hold none of
 * the acknowledged elements are stored, one call for each queue. (3) In each engine that holds some, all
 * ACKs and all other SENDs are one atomic step. (4) NACKs. So in one engine ACKs and SENDs happen together or not at
 * all; across engines a failure half-way leaves stored what is to be stored and acknowledges nothing, and
 * the elements come again.
 */
export class Transaction {
  readonly #budget: TransactionBudget;
  readonly #sends: Send[] = [];
  readonly #settlements: Settlement[] = [];
  #frames = 0;
  #bytes = 0;

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
  settle(subscription: Subscription, held: readonly Held[], delayMs: number | null): void {
    this.#take(held.length, 0);
    for (const one of held) {
      one.isClaimed = true;
      this.#settlements.push({ subscription, held: one, delayMs });
    }
  }

  /** Forgets everything: what it would have settled, the client still holds. */
  abort(): void {
    for (const { held } of this.#settlements) held.isClaimed = false;
    this.#budget.giveBack(this.#frames, this.#bytes);
  }

  /**
   * Lets everything take effect. What it settles is no longer held by the client from the call on; where that
   * fails, it goes back to its queue.
   * @throws QuaysideError what settling and storing do
   */
  async commit(): Promise<void> {
    for (const { subscription, held } of this.#settlements) subscription.settle([held]);
    try {
      await this.#confirmHeld();
      await this.#storeElsewhere();
      await this.#finishWithSends();
      await this.#rollBack();
    } finally {
      this.#budget.giveBack(this.#frames, this.#bytes);
    }
  }

  #take(frames: number, bytes: number): void {
    this.#budget.take(frames, bytes);
    this.#frames += frames;
    this.#bytes += bytes;
  }

  async #confirmHeld(): Promise<void> {
    try {
      await Promise.all(
        [...byQueue(this.#settlements)].map(async ([queue, settlements]) => {
          const items = settlements.map(({ subscription, held: { id, group, token } }) => ({
            id,
            group,
            token,
            leaseMs: subscription.leaseMs ?? 0,
          }));
          const results = await queue.extendAll(items);
          for (const [i, { outcome }] of results.entries()) {
            if (outcome !== 'done') throw refused(outcome, settlements[i], queue);
          }
        }),
      );
    } catch (error) {
      await this.#giveUp();
      throw error;
    }
  }

  /** They are nobody's now: the client gets them again, or somebody else does. */
  async #giveUp(): Promise<void> {
    await Promise.allSettled(
      [...byQueue(this.#settlements)].map(([queue, settlements]) =>
        queue.rollbackAll(settlements.map(({ held }) => ({ ...refOf(held), delayMs: 0, countTry: true }))),
      ),
    );
  }

  async #storeElsewhere(): Promise<void> {
    const elsewhere = this.#sends.filter(({ queue }) => this.#anchorOf(queue) === undefined);
    const batches = new Map<Queue, NewElement[]>();
    for (const { queue, element } of elsewhere) {
      const batch = batches.get(queue);
      if (batch === undefined) batches.set(queue, [element]);
      else batch.push(element);
    }
    try {
      await Promise.all([...batches].map(([queue, elements]) => queue.insert(elements)));
    } catch (error) {
      await this.#giveUp();
      throw error;
    }
  }

  /** The first ACK in the engine of `queue`: what is stored in that engine travels with it. */
  #anchorOf(queue: Queue): Settlement | undefined {
    return this.#settlements.find(
      ({ subscription, delayMs }) => delayMs === null && subscription.options.queue.sharesEngineWith(queue),
    );
  }

  async #finishWithSends(): Promise<void> {
    const left = new Set(this.#settlements.filter(({ delayMs }) => delayMs === null));
    for (const anchor of left) {
      const { queue } = anchor.subscription.options;
      const together = [...left].filter(({ subscription }) =>
        subscription.options.queue.sharesEngineWith(queue),
      );
      for (const one of together) left.delete(one);
      const sends = this.#sends.filter((send) => send.queue.sharesEngineWith(queue));
      const moves = together.map((one) => ({
        from: one.subscription.options.queue,
        finish: refOf(one.held),
        inserts: one === anchor ? sends : [],
      }));
      const outcomes = await queue.transfer(moves);
      for (const [i, outcome] of outcomes.entries()) {
        if (!isSettled(outcome)) throw refused(outcome, together[i], queue);
      }
    }
  }

  async #rollBack(): Promise<void> {
    const nacks = this.#settlements.filter(({ delayMs }) => delayMs !== null);
    for (const [queue, settlements] of byQueue(nacks)) {
      await queue.rollbackAll(
        settlements.map(({ held, delayMs }) => ({ ...refOf(held), delayMs: delayMs ?? 0, countTry: true })),
      );
    }
  }
}

function refOf({ id, group, token }: Held): { id: string; group: string; token: string | null } {
  return { id, group, token };
}

function byQueue(settlements: readonly Settlement[]): Map<Queue, Settlement[]> {
  const groups = new Map<Queue, Settlement[]>();
  for (const one of settlements) {
    const { queue } = one.subscription.options;
    const group = groups.get(queue);
    if (group === undefined) groups.set(queue, [one]);
    else group.push(one);
  }
  return groups;
}

function refused(outcome: Refused, settlement: Settlement | undefined, { key }: Queue): QuaysideError {
  return refusalOf(outcome, { id: settlement?.held.id ?? '', group: null }, key);
}
