import type { Queue } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import type { Work } from './work.ts';

/** What storing and settling need of their session. */
export interface TurnHost {
  readonly work: Work;
  /** Tells the client that its frame took effect. */
  receipt(id: string): void;
  /** Ends the session with an ERROR about the frame that asked for this receipt. */
  fail(error: unknown, receipt: string | null): void;
}

interface Batch {
  readonly elements: NewElement[];
  readonly receipts: string[];
  bytes: number;
}

/** Gathers the SENDs that one turn of the event loop brought, so that each queue is asked once. */
export class Storing {
  readonly #host: TurnHost;
  readonly #batches = new Map<Queue, Batch>();

  constructor(host: TurnHost) {
    this.#host = host;
  }

  add(queue: Queue, element: NewElement, receipt: string | null): void {
    let batch = this.#batches.get(queue);
    if (batch === undefined) {
      batch = { elements: [], receipts: [], bytes: 0 };
      this.#batches.set(queue, batch);
    }
    batch.elements.push(element);
    batch.bytes += element.body.byteLength;
    if (receipt !== null) batch.receipts.push(receipt);
  }

  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches) void this.#store(queue, batch);
    this.#batches.clear();
  }

  async #store(queue: Queue, { elements, receipts, bytes }: Batch): Promise<void> {
    const { work } = this.#host;
    work.begin(elements.length, bytes);
    try {
      await queue.insert(elements);
      for (const receipt of receipts) this.#host.receipt(receipt);
    } catch (error) {
      this.#host.fail(error, receipts[0] ?? null);
    } finally {
      work.end(elements.length, bytes);
    }
  }
}
