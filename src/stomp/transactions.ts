import { delayUntil } from '../broker/engine-time.ts';
import { isSettled, type RejectedOutcome, rejectionOf } from '../broker/meter.ts';
import type { Queue, SettleAction, SettleResult } from '../broker/queue.ts';
import { contentBytes, type NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { InsertBatcher } from '../session/batchers.ts';
import { isCertain, type Outstanding } from '../session/outstanding.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { ownBytes, ownString } from '../util/own-bytes.ts';
import { malformed } from './codec.ts';
import { SessionLimitError } from './errors.ts';
import { storedId, unknownIdMessage } from './headers.ts';
import { STOMP_LIMITS } from './options.ts';
import type { StompSession } from './session.ts';
import type { StompSubscription } from './subscriptions.ts';

/** The open transactions of one session, with limits on their total size. */
export class Transactions {
  readonly #session: StompSession;
  readonly #maxBytes: number;
  readonly #open = new Map<string, Transaction>();

  constructor(session: StompSession, bodyLimit: number) {
    this.#session = session;
    const { transactionBodies, transactionBytes } = STOMP_LIMITS;
    this.#maxBytes = Math.min(transactionBodies * bodyLimit, transactionBytes);
  }

  /** @throws QuaysideError `malformed-request`, `overloaded`, `headers-too-large` */
  begin(id: string, user: string): void {
    if (this.#open.has(id)) {
      throw malformed(
        `Transaction ${quoteBytes(id)} is open already. Choose another id, or end it first.`,
        'transaction',
      );
    }
    if (this.#open.size >= STOMP_LIMITS.transactions) {
      throw new SessionLimitError(
        `This session has ${STOMP_LIMITS.transactions} open transactions, the maximum.`,
      );
    }
    this.#open.set(storedId('transaction', id), new Transaction(this, user));
  }

  /** @throws QuaysideError `malformed-request` */
  find(id: string): Transaction {
    const transaction = this.#open.get(id);
    if (transaction === undefined) {
      throw malformed(unknownIdMessage('open transaction', id, this.#open.keys()), 'transaction');
    }
    return transaction;
  }

  /**
   * Removes and returns a transaction, so that its id is free again. The caller counts its bytes as pending before
   * anything else changes; `countHeld` is not called, as other sessions would get what it occupies.
   * @throws QuaysideError `malformed-request`
   */
  startCommit(id: string): Transaction {
    const transaction = this.find(id);
    this.#open.delete(id);
    return transaction;
  }

  /**
   * Drops a transaction. The elements that it would have settled stay outstanding.
   * @throws QuaysideError `malformed-request`
   */
  abort(id: string): void {
    const transaction = this.find(id);
    this.#open.delete(id);
    transaction.abort();
    this.#session.countHeld();
  }

  /** Bytes of bodies and element headers. */
  get bytes(): number {
    let bytes = 0;
    for (const transaction of this.#open.values()) bytes += transaction.bytes;
    return bytes;
  }

  /** Drops all transactions. Elements that they would have settled return with their subscriptions. */
  clear(): void {
    this.#open.clear();
    this.#session.countHeld();
  }

  /** Adds to a transaction. @throws QuaysideError `overloaded` if the open transactions may not grow by this much */
  grow(grown: Transaction, moreFrames: number, moreBytes: number): void {
    const { transactionFrames } = STOMP_LIMITS;
    const bytes = this.bytes + moreBytes;
    let frames = moreFrames;
    for (const transaction of this.#open.values()) frames += transaction.frames;
    if (frames > transactionFrames || bytes > this.#maxBytes) {
      throw new SessionLimitError(
        `Open transactions would hold ${frames} frames and ${bytes} bytes of bodies and headers. Allowed together: ${transactionFrames} and ${this.#maxBytes}.`,
      );
    }
    if (moreBytes > 0) this.#session.checkOpen(bytes);
    grown.frames += moreFrames;
    grown.bytes += moreBytes;
    this.#session.countHeld();
  }
}

/** The inserts of a session that is committing. */
type SessionInserts = Pick<InsertBatcher<unknown>, 'allSent' | 'track'>;

/** A SEND in a transaction. */
interface Send {
  readonly queue: Queue;
  readonly element: NewElement;
}

/** An ACK (a finish) or NACK (a release) of one element. */
interface Settlement {
  readonly subscription: StompSubscription;
  readonly outstanding: Outstanding<string>;
  readonly action: SettleAction;
  /** The moment to which a NACK delays the element; null: the action's delay applies, from COMMIT on. */
  readonly nextAt: number | null;
}

/**
 * The frames of one STOMP transaction, which take effect at COMMIT, in these steps: (1) The leases of all elements to
 * settle are extended, which proves that the client still holds each of them. (2) SENDs to engines that hold none of
 * the acknowledged elements are stored, with one call per queue. (3) In each engine that holds some, one call executes
 * all ACKs and the other SENDs. (4) NACKs are executed, with one call per queue.
 *
 * If a step fails, the later ones are not executed. So nothing is acknowledged before the SENDs to other engines are
 * stored.
 */
export class Transaction {
  /** How many elements the transaction stores and settles. */
  frames = 0;
  bytes = 0;
  readonly #transactions: Transactions;
  readonly #user: string;
  /** SENDs for which no engine call was started yet. */
  readonly #sends = new Set<Send>();
  readonly #settlements: Settlement[] = [];
  readonly #unsettled = new Set<Settlement>();
  /** Whether anything was stored or settled. */
  #hasEffect = false;

  constructor(all: Transactions, user: string) {
    this.#transactions = all;
    this.#user = user;
  }

  /** Adds a SEND. @throws QuaysideError `overloaded` */
  addSend(queue: Queue, element: NewElement): void {
    this.#transactions.grow(this, 1, contentBytes(element));
    this.#sends.add({ queue, element: ownElement(element) });
  }

  /** Adds an ACK or NACK of these elements. @throws QuaysideError `overloaded` */
  addSettlement(
    subscription: StompSubscription,
    settled: readonly Outstanding<string>[],
    action: SettleAction,
    nextAt: number | null,
  ): void {
    this.#transactions.grow(this, settled.length, 0);
    for (const delivery of settled) {
      delivery.isClaimed = true;
      this.#settlements.push({ subscription, outstanding: delivery, action, nextAt });
    }
  }

  /** The namespaces of its SENDs. */
  get targets(): ReadonlySet<string> {
    return new Set([...this.#sends].map(({ queue }) => queue.key.ns));
  }

  /** Whether `commit` stores elements in a later turn, because it settles others first. */
  get storesLater(): boolean {
    return this.#sends.size > 0 && this.#settlements.length > 0;
  }

  /** Drops everything; the elements that it would have settled stay outstanding. */
  abort(): void {
    for (const { outstanding } of this.#settlements) outstanding.isClaimed = false;
  }

  /**
   * Executes the transaction. The elements that it settles are no longer outstanding. If it settles none, it calls the
   * engines within this turn.
   * @param inserts earlier inserts of the session, which the engines get before anything is acknowledged
   * @throws QuaysideError what settling and storing throw if nothing took effect; else `outcome-unknown`
   */
  async commit(inserts: SessionInserts): Promise<void> {
    for (const settlement of this.#settlements) {
      settlement.subscription.forget([settlement.outstanding]);
      this.#unsettled.add(settlement);
    }
    try {
      if (this.#settlements.length > 0) {
        await inserts.allSent();
        await this.#confirmLeases();
      }
      await this.#store(
        [...this.#sends].filter(({ queue }) => !this.#isAcknowledgedIn(queue)),
        inserts,
      );
      await this.#acknowledge(inserts);
      await this.#rollBack();
    } catch (error) {
      throw this.#hasEffect && isCertain(error) ? partlyDone(error) : error;
    }
  }

  /** After `commit` failed: elements that are certainly not settled, and that no subscription tracks any more. */
  get unsettled(): ReadonlyMap<Queue, readonly Outstanding[]> {
    const grouped = byQueue(this.#settlements.filter((settlement) => this.#unsettled.has(settlement)));
    return new Map(
      [...grouped].map(([queue, settlements]) => [queue, settlements.map(({ outstanding }) => outstanding)]),
    );
  }

  async #confirmLeases(): Promise<void> {
    await waitForAll(
      [...byQueue(this.#settlements)].map(async ([queue, settlements]) => {
        const items = settlements.map(({ subscription, outstanding }) =>
          queue.item(outstanding, { kind: 'extend', leaseMs: subscription.leaseMs ?? 0 }),
        );
        const results = await queue.settleAll(items);
        for (const [i, settlement] of settlements.entries()) {
          const outcome = results[i]?.outcome ?? 'not-found';
          if (!isSettled(outcome)) throw settlementError(outcome, settlement);
        }
      }),
    );
  }

  async #store(sends: readonly Send[], inserts: SessionInserts): Promise<void> {
    for (const send of sends) this.#sends.delete(send);
    await waitForAll(
      [...Map.groupBy(sends, ({ queue }) => queue)].map(async ([queue, batch]) => {
        const elements = batch.map(({ element }) => element);
        await inserts.track((onSent) => queue.insert(elements, { user: this.#user, onSent }));
        this.#hasEffect = true;
      }),
    );
  }

  /** Whether an ACK settles an element in the engine of `queue`; then SENDs to that engine join its call. */
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
      for (const settlement of together) acks.delete(settlement);
      const sends = [...this.#sends].filter((send) => send.queue.sharesEngineWith(queue));
      for (const send of sends) this.#sends.delete(send);
      const moves = together.map((settlement) => ({
        from: settlement.subscription.queue,
        finish: settlement.outstanding,
        inserts: settlement === anchor ? sends : [],
      }));
      await this.#noteResults(together, queue.transfer(moves, this.#user));
    }
    // SENDs are left if a migration of their namespace began since step 2: it no longer shares an engine with the ACKs.
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
   * Waits for a call that settles these elements, and notes which of them it settled.
   * @throws what the call throws, or the error of the first element that it did not settle
   */
  async #noteResults(
    settlements: readonly Settlement[],
    settling: Promise<readonly SettleResult[]>,
  ): Promise<void> {
    let rejection: QuaysideError | null = null;
    try {
      const results = await settling;
      for (const [i, settlement] of settlements.entries()) {
        const outcome = results[i]?.outcome ?? 'not-found';
        this.#unsettled.delete(settlement);
        if (isSettled(outcome)) this.#hasEffect = true;
        else rejection ??= settlementError(outcome, settlement);
      }
    } catch (error) {
      // Elements that may be settled are not returned, but left to their leases: they would be delivered again although
      // the elements that replace them may be stored.
      if (!isCertain(error)) for (const settlement of settlements) this.#unsettled.delete(settlement);
      throw error;
    }
    if (rejection !== null) throw rejection;
  }
}

/**
 * Waits for all calls.
 * @throws the error of one of them, preferably one that leaves the outcome unknown
 */
async function waitForAll(calls: readonly Promise<void>[]): Promise<void> {
  const results = await Promise.allSettled(calls);
  const failures = results.flatMap((result) =>
    result.status === 'rejected' ? [result.reason as unknown] : [],
  );
  if (failures.length > 0) throw failures.find((failure) => !isCertain(failure)) ?? failures[0];
}

function partlyDone(cause: QuaysideError): QuaysideError {
  return new QuaysideError(
    'outcome-unknown',
    `The transaction took effect only in part, before it failed: ${cause.message}`,
    { cause },
  );
}

/** Copies an element's body and strings, which would retain the buffers read from the socket until COMMIT. */
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

function settlementError(outcome: RejectedOutcome, { outstanding, subscription }: Settlement): QuaysideError {
  return rejectionOf(outcome, { id: outstanding.id, group: null }, subscription.queue.key);
}
