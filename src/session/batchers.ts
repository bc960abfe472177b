import { isSettled, refusalOf } from '../broker/meter.ts';
import type { Queue, SettleAction, SettleItem, SettleResult } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import type { ClientSession } from './client-session.ts';
import type { Outstanding } from './push-consumer.ts';

// What the frames of one turn of the event loop ask of the engine. A ticket is what a protocol confirms: a receipt, a delivery.

interface InsertBatch<Ticket> {
  readonly elements: NewElement[];
  /** Of each element; null: the client wants no confirmation. */
  readonly tickets: (Ticket | null)[];
  bytes: number;
}

/** Why an insert stored nothing although a part of its elements could be stored. */
const PARTIAL: ReadonlySet<ErrorCode> = new Set(['queue-full', 'namespace-full', 'too-many-groups']);

/** Gathers the elements that one turn of the event loop brought, so that each queue gets one insert. */
export class InsertBatcher<Ticket> {
  readonly #session: ClientSession<Ticket>;
  readonly #batches = new Map<Queue, InsertBatch<Ticket>>();
  /** Each resolves when the inserts before it have had their turns. */
  readonly #waiting = new Set<Promise<void>>();

  constructor(session: ClientSession<Ticket>) {
    this.#session = session;
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
    batch.tickets.push(ticket);
  }

  /** Inserts what was gathered. To be called at the end of each turn. */
  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches) {
      this.#insert(queue, batch).catch((error: unknown) => this.#session.fail(error));
      const turns = queue.namespace.turnsOver(this.#session.owner);
      if (turns === null) continue;
      this.#waiting.add(turns);
      void turns.finally(() => this.#waiting.delete(turns));
    }
    this.#batches.clear();
  }

  /** Resolves when each insert has been given to its engine, or rejected; null: none waits for its turn. */
  turnsOver(): Promise<unknown> | null {
    return this.#waiting.size === 0 ? null : Promise.all(this.#waiting);
  }

  async #insert(queue: Queue, { elements, tickets, bytes }: InsertBatch<Ticket>): Promise<void> {
    const { work } = this.#session;
    work.begin(elements.length, bytes);
    try {
      await this.#store(queue, elements, tickets);
    } finally {
      work.end(elements.length, bytes);
    }
  }

  /**
   * Stores elements that only came together: each for which there is room is stored, although the engine stores all of a call
   * or none. Those in front of the first that fails have precedence.
   * @returns false if nothing that came behind them is to be stored
   */
  async #store(
    queue: Queue,
    elements: readonly NewElement[],
    tickets: readonly (Ticket | null)[],
  ): Promise<boolean> {
    try {
      await queue.insert(elements, { user: this.#session.owner });
    } catch (error) {
      const code = error instanceof QuaysideError ? error.code : null;
      if (code === null || !PARTIAL.has(code) || elements.length === 1) {
        const mayContinue = this.#session.notInserted(tickets, error);
        // Only a group is something of the element; what is full has no room for the next one either.
        return mayContinue && code === 'too-many-groups';
      }
      const half = elements.length >> 1;
      const isDone = await this.#store(queue, elements.slice(0, half), tickets.slice(0, half));
      if (isDone) return this.#store(queue, elements.slice(half), tickets.slice(half));
      this.#session.notInserted(tickets.slice(half), error);
      return false;
    }
    this.#session.inserted(tickets);
    return true;
  }
}

/** The elements of several frames, and where those of each frame end. */
interface SettleBatch<Ticket> {
  readonly items: SettleItem[];
  /** Those next to each other with the same ticket are one. */
  readonly frames: { end: number; readonly ticket: Ticket | null }[];
}

/** Gathers the settlements of one turn of the event loop, so that each queue gets one call for each kind. */
export class SettleBatcher<Ticket> {
  readonly #session: ClientSession<unknown, Ticket>;
  /** A call of their own: they need no space, and so succeed if a dead letter cannot be stored. */
  readonly #commits = new Map<Queue, SettleBatch<Ticket>>();
  readonly #returns = new Map<Queue, SettleBatch<Ticket>>();

  constructor(session: ClientSession<unknown, Ticket>) {
    this.#session = session;
  }

  /** @param settled the elements that one frame is about, at least one */
  add(queue: Queue, settled: readonly Outstanding[], action: SettleAction, ticket: Ticket | null): void {
    const batches = action.kind === 'finish' ? this.#commits : this.#returns;
    let batch = batches.get(queue);
    if (batch === undefined) {
      batch = { items: [], frames: [] };
      batches.set(queue, batch);
    }
    for (const one of settled) batch.items.push(queue.item(one, action));
    const last = batch.frames.at(-1);
    // Each of two frames with one receipt id is confirmed. A ticket that is an object, or none, may stand for many frames.
    if (last?.ticket === ticket && typeof ticket === 'object') last.end = batch.items.length;
    else batch.frames.push({ end: batch.items.length, ticket });
  }

  /** Settles what was gathered. To be called at the end of each turn. */
  flush(): void {
    for (const batches of [this.#commits, this.#returns]) {
      for (const [queue, batch] of batches)
        this.#settle(queue, batch).catch((error: unknown) => this.#session.fail(error));
      batches.clear();
    }
  }

  async #settle(queue: Queue, batch: SettleBatch<Ticket>): Promise<void> {
    const { work } = this.#session;
    const count = batch.items.length;
    work.begin(count, 0);
    try {
      // A client that stores a result, and then finishes what it was made of, loses neither if the server fails in between.
      const turns = this.#session.inserts.turnsOver();
      this.#confirm(queue, batch, await queue.settleAll(batch.items, turns));
    } catch (error) {
      this.#session.notSettled(
        batch.frames.map(({ ticket }) => ticket),
        error,
      );
    } finally {
      work.end(count, 0);
    }
  }

  /** A frame took effect if each of its elements was settled. */
  #confirm(queue: Queue, { items, frames }: SettleBatch<Ticket>, results: readonly SettleResult[]): void {
    let from = 0;
    for (const { end, ticket } of frames) {
      const error = firstError(queue, items, results, from, end);
      if (error !== null) this.#session.notSettled([ticket], error);
      else this.#session.settled(ticket);
      from = end;
    }
  }
}

function firstError(
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
