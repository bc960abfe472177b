import type { Queue } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import type { PendingWork } from './pending-work.ts';

/** The session that an {@link InsertBatcher} belongs to. A ticket is what a protocol confirms: a receipt, a delivery. */
export interface InsertHost<Ticket> {
  readonly work: PendingWork;
  inserted(tickets: readonly Ticket[]): void;
  notInserted(tickets: readonly Ticket[], error: unknown): void;
  /** Ends the session. */
  fail(thrown: unknown): void;
}

interface Batch<Ticket> {
  readonly elements: NewElement[];
  readonly tickets: Ticket[];
  bytes: number;
}

/** Gathers the elements that one turn of the event loop brought, so that each queue gets one insert. */
export class InsertBatcher<Ticket> {
  readonly #host: InsertHost<Ticket>;
  readonly #batches = new Map<Queue, Batch<Ticket>>();

  constructor(host: InsertHost<Ticket>) {
    this.#host = host;
  }

  /** @param ticket null if the client wants no confirmation */
  add(queue: Queue, element: NewElement, ticket: Ticket | null): void {
    let batch = this.#batches.get(queue);
    if (batch === undefined) {
      batch = { elements: [], tickets: [], bytes: 0 };
      this.#batches.set(queue, batch);
    }
    batch.elements.push(element);
    batch.bytes += element.body.byteLength;
    if (ticket !== null) batch.tickets.push(ticket);
  }

  /** Inserts what was gathered. To be called at the end of each turn. */
  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches)
      this.#insert(queue, batch).catch((error: unknown) => this.#host.fail(error));
    this.#batches.clear();
  }

  async #insert(queue: Queue, { elements, tickets, bytes }: Batch<Ticket>): Promise<void> {
    const { work } = this.#host;
    work.begin(elements.length, bytes);
    try {
      await queue.insert(elements);
      this.#host.inserted(tickets);
    } catch (error) {
      this.#host.notInserted(tickets, error);
    } finally {
      work.end(elements.length, bytes);
    }
  }
}
