import type { Queue, SettleAction, SettleItem, SettleResult } from '../broker/queue.ts';
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

/** The elements of several frames, and where each frame's own end. */
interface Batch<Ticket> {
  readonly items: SettleItem[];
  readonly frames: { readonly end: number; readonly ticket: Ticket | null }[];
}

/** Gathers the settlements of one turn of the event loop, so that each queue gets one call for each kind. */
export class Settling<Ticket> {
  readonly #host: SettlingHost<Ticket>;
  /** A call of their own: they need no space, and so succeed when a dead letter cannot be stored. */
  readonly #commits = new Map<Queue, Batch<Ticket>>();
  readonly #returns = new Map<Queue, Batch<Ticket>>();

  constructor(host: SettlingHost<Ticket>) {
    this.#host = host;
  }

  /** All of `held` is of one frame, and at least one. */
  settle(queue: Queue, held: readonly Held<unknown>[], action: SettleAction, ticket: Ticket | null): void {
    const batches = action.kind === 'finish' ? this.#commits : this.#returns;
    let batch = batches.get(queue);
    if (batch === undefined) {
      batch = { items: [], frames: [] };
      batches.set(queue, batch);
    }
    for (const one of held) batch.items.push(queue.item(one, action));
    batch.frames.push({ end: batch.items.length, ticket });
  }

  flush(): void {
    for (const batches of [this.#commits, this.#returns]) {
      for (const [queue, batch] of batches) void this.#settle(queue, batch);
      batches.clear();
    }
  }

  async #settle(queue: Queue, batch: Batch<Ticket>): Promise<void> {
    const { work } = this.#host;
    const count = batch.items.length;
    work.begin(count, 0);
    try {
      this.#answer(queue, batch, await queue.settleAll(batch.items));
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
  #answer(queue: Queue, { items, frames }: Batch<Ticket>, results: readonly SettleResult[]): void {
    let from = 0;
    for (const { end, ticket } of frames) {
      const refusal = firstRefusal(queue, items, results, from, end);
      if (refusal !== null) this.#host.notSettled([ticket], refusal);
      else this.#host.settled(ticket);
      from = end;
    }
  }
}

function firstRefusal(
  queue: Queue,
  items: readonly SettleItem[],
  results: readonly SettleResult[],
  from: number,
  end: number,
): Error | null {
  for (let at = from; at < end; at++) {
    const outcome = results[at]?.outcome ?? 'not-found';
    const { id = '', group = null } = items[at] ?? {};
    if (!isSettled(outcome)) return refusalOf(outcome, { id, group }, queue.key);
  }
  return null;
}
