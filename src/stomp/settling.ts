import type { DeliveryRef, Queue, RollbackItem, SettleOutcome } from '../broker/queue.ts';
import { isSettled, refusalOf } from '../broker/refusal.ts';
import type { Held } from './handout.ts';
import type { TurnHost } from './storing.ts';

/** The elements of several frames of one kind, and where each frame's own end. */
interface Batch<Item> {
  readonly items: Item[];
  readonly frames: { readonly end: number; readonly receipt: string | null }[];
}

/** Gathers the ACKs and NACKs that one turn of the event loop brought, so that each queue is asked once. */
export class Settling {
  readonly #host: TurnHost;
  readonly #commits = new Map<Queue, Batch<DeliveryRef>>();
  readonly #rollbacks = new Map<Queue, Batch<RollbackItem>>();

  constructor(host: TurnHost) {
    this.#host = host;
  }

  /** All of `held` is of one frame, and at least one. */
  ack(queue: Queue, held: readonly Held[], receipt: string | null): void {
    addTo(this.#commits, queue, held, receipt);
  }

  nack(queue: Queue, held: readonly Held[], delayMs: number, receipt: string | null): void {
    const items = held.map(({ id, group, token }) => ({ id, group, token, delayMs, countTry: true }));
    addTo(this.#rollbacks, queue, items, receipt);
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
    batch: Batch<DeliveryRef>,
    settling: Promise<readonly SettleOutcome[]>,
  ): Promise<void> {
    const { work } = this.#host;
    const count = batch.items.length;
    work.begin(count, 0);
    try {
      this.#answer(queue, batch, await settling);
    } catch (error) {
      this.#host.fail(error, batch.frames[0]?.receipt ?? null);
    } finally {
      work.end(count, 0);
    }
  }

  /** A frame took effect where each of its elements was settled. */
  #answer(queue: Queue, { items, frames }: Batch<DeliveryRef>, outcomes: readonly SettleOutcome[]): void {
    let from = 0;
    for (const { end, receipt } of frames) {
      const refusal = firstRefusal(queue, items, outcomes, from, end);
      if (refusal !== null) this.#host.fail(refusal, receipt);
      else if (receipt !== null) this.#host.receipt(receipt);
      from = end;
    }
  }
}

function addTo<Item>(
  batches: Map<Queue, Batch<Item>>,
  queue: Queue,
  items: readonly Item[],
  receipt: string | null,
): void {
  let batch = batches.get(queue);
  if (batch === undefined) {
    batch = { items: [], frames: [] };
    batches.set(queue, batch);
  }
  for (const item of items) batch.items.push(item);
  batch.frames.push({ end: batch.items.length, receipt });
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
