import type { Queue } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import type { Work } from './work.ts';

/** Who hears how storing ended. A ticket is what a protocol answers with: a receipt, a delivery. */
export interface StoringHost<Ticket> {
  readonly work: Work;
  stored(tickets: readonly Ticket[]): void;
  notStored(tickets: readonly Ticket[], error: unknown): void;
}

interface Batch<Ticket> {
  readonly elements: NewElement[];
  readonly tickets: Ticket[];
  bytes: number;
}

/** Gathers the elements that one turn of the event loop brought, so that each queue is asked once. */
export class Storing<Ticket> {
  readonly #host: StoringHost<Ticket>;
  readonly #batches = new Map<Queue, Batch<Ticket>>();

  constructor(host: StoringHost<Ticket>) {
    this.#host = host;
  }

  /** @param ticket null where the client wants no answer */
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

  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches) void this.#store(queue, batch);
    this.#batches.clear();
  }

  async #store(queue: Queue, { elements, tickets, bytes }: Batch<Ticket>): Promise<void> {
    const { work } = this.#host;
    work.begin(elements.length, bytes);
    try {
      await queue.insert(elements);
      this.#host.stored(tickets);
    } catch (error) {
      this.#host.notStored(tickets, error);
    } finally {
      work.end(elements.length, bytes);
    }
  }
}
