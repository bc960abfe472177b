import { delayUntil } from '../broker/engine-time.ts';
import { isSettled, type RejectedOutcome, refusalOf } from '../broker/meter.ts';
import type { Queue, SettleAction, SettleResult } from '../broker/queue.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { InsertBatcher } from '../session/batchers.ts';
import type { Outstanding } from '../session/push-consumer.ts';
import { isCertain } from '../session/settle-steps.ts';
import { ownBytes, ownString } from '../util/own-bytes.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec.ts';
import { SessionLimitError } from './errors.ts';
import { unknown } from './headers.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSubscription } from './subscriptions.ts';

/** The open transactions of one session, with bounds on what they hold together. */
export class Transactions {
  readonly #maxBytes: number;
  readonly #open = new Map<string, Transaction>();

  constructor(bodyLimit: number) {
    const { transactionBodies, transactionBytes } = STOMP_LIMITS;
    this.#maxBytes = Math.min(transactionBodies * bodyLimit, transactionBytes);
  }

  /** @throws QuaysideError `malformed-request`, `overloaded` */
  begin(id: string, user: string): void {
    if (this.#open.has(id)) {
      throw malformed(
        `Transaction ${quoteBytes(id)} is open already. Choose another id, or end it first.`,
        'transaction',
      );
    }
    if (this.#open.size >= STOMP_LIMITS.transactions) {
      throw new SessionLimitError(
        `This session has ${STOMP_LIMITS.transactions} open transactions, the most that are allowed.`,
      );
    }
    this.#open.set(ownString(id), new Transaction(this, user));
  }

  /** @throws QuaysideError `malformed-request` */
  find(id: string): Transaction {
    const transaction = this.#open.get(id);
    if (transaction === undefined) {
      throw malformed(unknown('open transaction', id, this.#open.keys()), 'transaction');
    }
    return transaction;
  }

  /** Takes one out: its id and its place are free again. @throws QuaysideError `malformed-request` */
  end(id: string): Transaction {
    const transaction = this.find(id);
    this.#open.delete(id);
    return transaction;
  }

  /** Drops all: what they would have settled returns with its subscription. */
  clear(): void {
    this.#open.clear();
  }

  /** @throws QuaysideError `overloaded` if an open transaction may not hold so much more */
  checkRoom(moreFrames: number, moreBytes: number): void {
    const { transactionFrames } = STOMP_LIMITS;
    let frames = moreFrames;
    let bytes = moreBytes;
    for (const one of this.#open.values()) {
      frames += one.frames;
      bytes += one.bytes;
    }
    if (frames <= transactionFrames && bytes <= this.#maxBytes) return;
    throw new SessionLimitError(
      `Open transactions would hold ${frames} frames and ${bytes} bytes of bodies and headers. Allowed together: ${transactionFrames} and ${this.#maxBytes}.`,
    );
  }
}

/** What a session has stored. */
type SessionInserts = Pick<InsertBatcher<unknown>, 'allSent' | 'track'>;

/** A SEND of a transaction. */
interface Send {
  readonly queue: Queue;
  readonly element: NewElement;
}

/** An ACK (a finish) or NACK (a release) of one element. */
interface Settlement {
  readonly subscription: StompSubscription;
  readonly outstanding: Outstanding<string>;
  readonly action: SettleAction;
  /** The moment to which a NACK delays it; null: the delay of its action counts from COMMIT on. */
  readonly nextAt: number | null;
}

/**
 * What a client wants to take effect together, at COMMIT. It does in this order: (1) the leases of all elements that it
 * settles are extended, which shows that the client still holds each. (2) SENDs to engines that hold none of the
 * acknowledged elements are stored, one call for each queue. (3) In each engine that holds some, all ACKs and all other
 * SENDs are one call. (4) NACKs, one call for each queue.
 *
 * The first step that fails is the last one. So nothing is acknowledged before what is to be stored elsewhere is.
 */
export class Transaction {
  /** How many elements it stores and settles. */
  frames = 0;
  bytes = 0;
  readonly #all: Transactions;
  readonly #user: string;
  /** What is not stored yet, nor part of a call that stores it. */
  readonly #sends = new Set<Send>();
  readonly #settlements: Settlement[] = [];
  readonly #left = new Set<Settlement>();
  /** Whether anything was stored or settled. */
  #hasEffect = false;

  constructor(all: Transactions, user: string) {
    this.#all = all;
    this.#user = user;
  }

  /** Adds a SEND. @throws QuaysideError `overloaded` */
  addSend(queue: Queue, element: NewElement): void {
    this.#grow(1, contentBytes(element));
    this.#sends.add({ queue, element: ownElement(element) });
  }

  /** Adds an ACK or NACK of these elements. @throws QuaysideError `overloaded` */
  addSettlement(
    subscription: StompSubscription,
    settled: readonly Outstanding<string>[],
    action: SettleAction,
    nextAt: number | null,
  ): void {
    this.#grow(settled.length, 0);
    for (const one of settled) {
      one.isClaimed = true;
      this.#settlements.push({ subscription, outstanding: one, action, nextAt });
    }
  }

  /** The namespaces that it stores in. */
  get targets(): ReadonlySet<string> {
    return new Set([...this.#sends].map(({ queue }) => queue.key.ns));
  }

  /** Whether `commit` stores anything in a later turn: what it settles comes before that. */
  get storesLater(): boolean {
    return this.#sends.size > 0 && this.#settlements.length > 0;
  }

  /** Drops everything: what it would have settled is still outstanding. */
  abort(): void {
    for (const { outstanding } of this.#settlements) outstanding.isClaimed = false;
  }

  /**
   * Puts everything into effect. What it settles is not outstanding any more from now on. If it settles nothing, the
   * engine is asked to store the rest in this turn.
   * @param inserts of its session: the engine has them before anything is acknowledged
   * @throws QuaysideError what settling and storing do, if nothing took effect; else `outcome-unknown`
   */
  async commit(inserts: SessionInserts): Promise<void> {
    for (const one of this.#settlements) {
      one.subscription.forget([one.outstanding]);
      this.#left.add(one);
    }
    try {
      if (this.#settlements.length > 0) {
        await inserts.allSent();
        await this.#confirmHeld();
      }
      await this.#store(
        [...this.#sends].filter(({ queue }) => !this.#isAcknowledgedIn(queue)),
        inserts,
      );
      await this.#acknowledge(inserts);
      await this.#rollBack();
    } catch (error) {
      throw this.#hasEffect && isCertain(error) ? doneInPart(error) : error;
    }
  }

  /** After it failed: what is certainly not settled, and outstanding to no client any more. */
  get left(): ReadonlyMap<Queue, readonly Outstanding[]> {
    const left = byQueue(this.#settlements.filter((one) => this.#left.has(one)));
    return new Map(
      [...left].map(([queue, settlements]) => [queue, settlements.map(({ outstanding }) => outstanding)]),
    );
  }

  async #confirmHeld(): Promise<void> {
    await allEnded(
      [...byQueue(this.#settlements)].map(async ([queue, settlements]) => {
        const items = settlements.map(({ subscription, outstanding }) =>
          queue.item(outstanding, { kind: 'extend', leaseMs: subscription.leaseMs ?? 0 }),
        );
        const results = await queue.settleAll(items);
        for (const [i, settlement] of settlements.entries()) {
          const outcome = results[i]?.outcome ?? 'not-found';
          if (!isSettled(outcome)) throw refused(outcome, settlement);
        }
      }),
    );
  }

  async #store(sends: readonly Send[], inserts: SessionInserts): Promise<void> {
    for (const send of sends) this.#sends.delete(send);
    await allEnded(
      [...Map.groupBy(sends, ({ queue }) => queue)].map(async ([queue, batch]) => {
        const elements = batch.map(({ element }) => element);
        await inserts.track((onSent) => queue.insert(elements, { user: this.#user, onSent }));
        this.#hasEffect = true;
      }),
    );
  }

  /** Whether an ACK is about the engine of `queue`: what is stored in that engine travels with it. */
  #isAcknowledgedIn(queue: Queue): boolean {
    return this.#settlements.some(
      ({ subscription, action }) => action.kind === 'finish' && subscription.queue.sharesEngineWith(queue),
    );
  }

  async #acknowledge(inserts: SessionInserts): Promise<void> {
    const acks = new Set(this.#settlements.filter(({ action }) => action.kind === 'finish'));
    for (const anchor of acks) {
      const { queue } = anchor.subscription;
      const together = [...acks].filter(({ subscription }) => subscription.queue.sharesEngineWith(queue));
      for (const one of together) acks.delete(one);
      const sends = [...this.#sends].filter((send) => send.queue.sharesEngineWith(queue));
      for (const send of sends) this.#sends.delete(send);
      const moves = together.map((one) => ({
        from: one.subscription.queue,
        finish: one.outstanding,
        inserts: one === anchor ? sends : [],
      }));
      await this.#noteResults(together, queue.transfer(moves, this.#user));
    }
    // A namespace that began to move to another engine since the last step shares the old one with no queue any more.
    await this.#store([...this.#sends], inserts);
  }

  async #rollBack(): Promise<void> {
    const nacks = this.#settlements.filter(({ action }) => action.kind !== 'finish');
    for (const [queue, settlements] of byQueue(nacks)) {
      const items = settlements.map(({ outstanding, action, nextAt }) => {
        if (action.kind !== 'release' || nextAt === null) return queue.item(outstanding, action);
        const delayMs = delayUntil(nextAt, queue.namespace, queue.key);
        return queue.item(outstanding, { ...action, delayMs });
      });
      await this.#noteResults(settlements, queue.settleAll(items));
    }
  }

  /**
   * Waits for a call that settles these, and notes which of them it settled.
   * @throws what it does, or how the first was refused
   */
  async #noteResults(
    settlements: readonly Settlement[],
    settling: Promise<readonly SettleResult[]>,
  ): Promise<void> {
    let refusal: QuaysideError | null = null;
    try {
      const results = await settling;
      for (const [i, settlement] of settlements.entries()) {
        const outcome = results[i]?.outcome ?? 'not-found';
        this.#left.delete(settlement);
        if (isSettled(outcome)) this.#hasEffect = true;
        else refusal ??= refused(outcome, settlement);
      }
    } catch (error) {
      // What may be settled is left to its lease: returned, it would be delivered again in addition to what was stored
      // for it.
      if (!isCertain(error)) for (const one of settlements) this.#left.delete(one);
      throw error;
    }
    if (refusal !== null) throw refusal;
  }

  /** @throws QuaysideError `overloaded` */
  #grow(frames: number, bytes: number): void {
    this.#all.checkRoom(frames, bytes);
    this.frames += frames;
    this.bytes += bytes;
  }
}

/**
 * Waits for all calls.
 * @throws how one of them failed, and if any may have taken effect all the same, how that one did
 */
async function allEnded(calls: readonly Promise<void>[]): Promise<void> {
  const ended = await Promise.allSettled(calls);
  const failures = ended.flatMap((one) => (one.status === 'rejected' ? [one.reason as unknown] : []));
  if (failures.length > 0) throw failures.find((failure) => !isCertain(failure)) ?? failures[0];
}

function doneInPart(cause: QuaysideError): QuaysideError {
  return new QuaysideError(
    'outcome-unknown',
    `A part of the transaction took effect, and then: ${cause.message}`,
    { cause },
  );
}

/** Body and texts of an element are parts of what was read from the socket, and may stay here for long. */
function ownElement(element: NewElement): NewElement {
  const { body, contentType, contentEncoding, headers } = element;
  return {
    ...element,
    body: ownBytes(body),
    contentType: contentType === null ? null : ownString(contentType),
    contentEncoding: contentEncoding === null ? null : ownString(contentEncoding),
    headers: headers.map(ownString),
  };
}

function byQueue(settlements: readonly Settlement[]): Map<Queue, Settlement[]> {
  return Map.groupBy(settlements, ({ subscription }) => subscription.queue);
}

function refused(outcome: RejectedOutcome, { outstanding, subscription }: Settlement): QuaysideError {
  return refusalOf(outcome, { id: outstanding.id, group: null }, subscription.queue.key);
}
