import type { DeliveryRef, Queue, RollbackItem, SettleOutcome } from '../broker/queue.ts';
import { isSettled, refusalOf } from '../broker/refusal.ts';
import type { Held } from './handout.ts';
import type { Work } from './work.ts';

/** Who hears how settling ended. A ticket is what a protocol answers with; null: the client wants no answer. */
export interface SettlingHost<Ticket> {
  readonly work: Work;
  /** All elements of that ticket's frame were settled. */
  settled(ticket: Ticket | null): void;
  /** Of these frames at least one element each was not. */
  notSettled(tickets: readonly (Ticket | null)[], error: unknown): void;
}

/** The elements of several frames of one kind, and where each frame's own end. */
interface Batch<Item, Ticket> {
  readonly items: Item[];
  readonly frames: { readonly end: number; readonly ticket: Ticket | null }[];
}

/** How an element that goes back does so. */
export interface ReturnTerms {
  readonly delayMs: number;
  readonly countTry: boolean;
}

/** Gathers the settlements that one turn of the event loop brought, so that each queue is asked once. */
export class Settling<Ticket> {
  readonly #host: SettlingHost<Ticket>;
  readonly #commits = new Map<Queue, Batch<DeliveryRef, Ticket>>();
  readonly #rollbacks = new Map<Queue, Batch<RollbackItem, Ticket>>();

  constructor(host: SettlingHost<Ticket>) {
    this.#host = host;
  }

  /** All of `held` is of one frame, and at least one. */
  ack(queue: Queue, held: readonly Held<unknown>[], ticket: Ticket | null): void {
    addTo(this.#commits, queue, held, ticket);
  }

  nack(queue: Queue, held: readonly Held<unknown>[], terms: ReturnTerms, ticket: Ticket | null): void {
    const { delayMs, countTry } = terms;
    const items = held.map(({ id, group, token }) => ({ id, group, token, delayMs, countTry }));
    addTo(this.#rollbacks, queue, items, ticket);
  }

  /** An element of one frame was settled some other way. */
  tell(queue: Queue, { id, group }: DeliveryRef, outcome: SettleOutcome, ticket: Ticket | null): void {
    if (isSettled(outcome)) this.#host.settled(ticket);
    else this.#host.notSettled([ticket], refusalOf(outcome, { id, group }, queue.key));
  }

  flush(): void {
    for (const [queue, batch] of this.#commits) void this.#settle(queue, batch, queue.commitAll(batch.items));
    for (const [queue, batch] of this.#rollbacks) {
      void this.#settle(queue, batch, queue.rollbackAll(batch.items));
    }
    this.#commits.clear();
    this.#rollbacks.clear();
  }

  async #settle(
    queue: Queue,
    batch: Batch<DeliveryRef, Ticket>,
    settling: Promise<readonly SettleOutcome[]>,
  ): Promise<void> {
    const { work } = this.#host;
    const count = batch.items.length;
    work.begin(count, 0);
    try {
      this.#answer(queue, batch, await settling);
    } catch (error) {
      this.#host.notSettled(
        batch.frames.map(({ ticket }) => ticket),
        error,
      );
    } finally {
      work.end(count, 0);
    }
  }

  /** A frame took effect where each of its elements was settled. */
  #answer(
    queue: Queue,
    { items, frames }: Batch<DeliveryRef, Ticket>,
    outcomes: readonly SettleOutcome[],
  ): void {
    let from = 0;
    for (const { end, ticket } of frames) {
      const refusal = firstRefusal(queue, items, outcomes, from, end);
      if (refusal !== null) this.#host.notSettled([ticket], refusal);
      else this.#host.settled(ticket);
      from = end;
    }
  }
}

function addTo<Item, Ticket>(
  batches: Map<Queue, Batch<Item, Ticket>>,
  queue: Queue,
  items: readonly Item[],
  ticket: Ticket | null,
): void {
  let batch = batches.get(queue);
  if (batch === undefined) {
    batch = { items: [], frames: [] };
    batches.set(queue, batch);
  }
  for (const item of items) batch.items.push(item);
  batch.frames.push({ end: batch.items.length, ticket });
}

function firstRefusal(
  queue: Queue,
  items: readonly DeliveryRef[],
  outcomes: readonly SettleOutcome[],
  from: number,
  end: number,
): Error | null {
  for (let at = from; at < end; at++) {
    const outcome = outcomes[at] ?? 'not-found';
    const { id = '', group = null } = items[at] ?? {};
    if (!isSettled(outcome)) return refusalOf(outcome, { id, group }, queue.key);
  }
  return null;
}
