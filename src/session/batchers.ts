import { isSettled, refusalOf } from '../broker/meter.ts';
import type { Queue, SettleAction, SettleItem, SettleOutcome } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import type { ClientSession } from './client-session.ts';
import { type Outstanding, returnOutstanding } from './push-consumer.ts';
import { isCertain, MAX_SETTLED, settleInSteps } from './settle-steps.ts';

// What the frames of one turn of the event loop ask of the engine, with the pending reply to each frame: what its
// protocol confirms when the engine has executed it, such as a receipt or a delivery.

interface InsertBatch<Reply> {
  readonly elements: NewElement[];
  /** Of each element; null: the client wants no confirmation. */
  readonly replies: (Reply | null)[];
  bytes: number;
  /** Of its elements, one for each of their groups. */
  deliveries: number;
}

/** Why an insert stored nothing although a part of its elements could be stored. */
const PARTIAL: ReadonlySet<ErrorCode> = new Set(['queue-full', 'namespace-full', 'too-many-groups']);

/**
 * Bodies are copied if they retain this many times their bytes, and more than a little: both bound what waits for a
 * stalled engine.
 */
const MAX_OVERHEAD = 4;
const LITTLE_BYTES = 4096;

/**
 * Gathers the elements that one turn of the event loop brought, so that each queue gets one insert; more if that is
 * more than one may be.
 */
export class InsertBatcher<Reply> {
  readonly #session: ClientSession<Reply>;
  readonly #batches = new Map<Queue, InsertBatch<Reply>>();
  /** Each resolves when an insert has been given to its engine, or has failed. */
  readonly #unsent = new Set<Promise<void>>();

  constructor(session: ClientSession<Reply>) {
    this.#session = session;
  }

  /**
   * @param reply null if the client wants no confirmation
   * @param bytes of the frames that brought it: what their headers say is kept as well until the element is stored
   */
  add(queue: Queue, element: NewElement, reply: Reply | null, bytes: number): void {
    let batch = this.#batches.get(queue);
    const deliveries = element.groups.length;
    if (batch !== undefined && batch.deliveries + deliveries > LIMITS.insertDeliveries) {
      this.#insert(queue, batch);
      batch = undefined;
    }
    if (batch === undefined) {
      batch = { elements: [], replies: [], bytes: 0, deliveries: 0 };
      this.#batches.set(queue, batch);
    }
    batch.elements.push(element);
    batch.bytes += bytes;
    batch.deliveries += deliveries;
    batch.replies.push(reply);
  }

  /** Inserts what was gathered. To be called at the end of each turn. */
  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches) this.#insert(queue, batch);
    this.#batches.clear();
  }

  /** Resolves when each insert has been given to its engine, or has failed; null: none waits for that. */
  allSent(): Promise<unknown> | null {
    return this.#unsent.size === 0 ? null : Promise.all(this.#unsent);
  }

  /**
   * Has elements stored, which `allSent` waits for.
   * @param store calls `onSent` when the engine is given them
   */
  async track<T>(store: (onSent: () => void) => Promise<T>): Promise<T> {
    const { promise: sent, resolve } = Promise.withResolvers<void>();
    let isSent = false;
    const storing = store(() => {
      isSent = true;
      resolve();
    });
    // It waits for the turn of its user, or for what is read to know whether its queue is full.
    if (!isSent) {
      this.#unsent.add(sent);
      void sent.then(() => this.#unsent.delete(sent));
    }
    try {
      return await storing;
    } finally {
      resolve();
    }
  }

  #insert(queue: Queue, { elements, replies, bytes }: InsertBatch<Reply>): void {
    const { work } = this.#session;
    const count = elements.length;
    // Before, since what the function refers to is retained until it has an outcome.
    const owned = withOwnBodies(elements);
    work.begin(count, bytes);
    this.track((onSent) => this.#store(queue, owned, replies, onSent))
      .catch((error: unknown) => this.#session.fail(error))
      .finally(() => work.end(count, bytes));
  }

  /**
   * Stores elements that only came together: each for which there is room is stored, although the engine stores all of
   * a call or none. Those in front of the first that fails have precedence.
   * @returns false if nothing that came behind them is to be stored
   */
  async #store(
    queue: Queue,
    elements: readonly NewElement[],
    replies: readonly (Reply | null)[],
    onSent: (() => void) | null = null,
  ): Promise<boolean> {
    try {
      await queue.insert(elements, { user: this.#session.owner, onSent });
    } catch (error) {
      const code = error instanceof QuaysideError ? error.code : null;
      if (code === null || !PARTIAL.has(code) || elements.length === 1) {
        const mayContinue = this.#session.notInserted(replies, error);
        // Only a group is something of the element; what is full has no room for the next one either.
        return mayContinue && code === 'too-many-groups';
      }
      const half = elements.length >> 1;
      const isDone = await this.#store(queue, elements.slice(0, half), replies.slice(0, half));
      if (isDone) return this.#store(queue, elements.slice(half), replies.slice(half));
      this.#session.notInserted(replies.slice(half), error);
      return false;
    }
    this.#session.inserted(replies);
    return true;
  }
}

/** The elements, with their bodies in memory of their own if that in which they were read is much larger. */
function withOwnBodies(elements: readonly NewElement[]): readonly NewElement[] {
  let bytes = 0;
  let retained = 0;
  let last: ArrayBufferLike | null = null;
  for (const { body } of elements) {
    bytes += body.byteLength;
    // Bodies that were read together follow each other.
    if (body.buffer !== last) retained += body.buffer.byteLength;
    last = body.buffer;
  }
  if (retained <= MAX_OVERHEAD * bytes + LITTLE_BYTES) return elements;
  const own = Buffer.allocUnsafeSlow(bytes);
  let at = 0;
  return elements.map((element) => {
    const from = at;
    own.set(element.body, from);
    at += element.body.byteLength;
    return { ...element, body: own.subarray(from, at) };
  });
}

/** The elements of several frames, and where those of each frame end. */
interface SettleBatch<Reply> {
  readonly outstanding: Outstanding[];
  readonly items: SettleItem[];
  /** Those next to each other with the same reply are one. */
  readonly frames: { end: number; readonly reply: Reply | null }[];
  bytes: number;
}

/** Gathers the settlements of one turn of the event loop, so that each queue gets one call for each kind. */
export class SettleBatcher<Reply> {
  readonly #session: ClientSession<unknown, Reply>;
  /** A call of their own: they need no space, and so succeed if a dead letter cannot be stored. */
  readonly #commits = new Map<Queue, SettleBatch<Reply>>();
  readonly #returns = new Map<Queue, SettleBatch<Reply>>();

  constructor(session: ClientSession<unknown, Reply>) {
    this.#session = session;
  }

  /**
   * @param settled the elements that one frame is about, at least one
   * @param bytes of the frame
   */
  add(
    queue: Queue,
    settled: readonly Outstanding[],
    action: SettleAction,
    reply: Reply | null,
    bytes: number,
  ): void {
    const batches = action.kind === 'finish' ? this.#commits : this.#returns;
    let batch = batches.get(queue);
    if (batch === undefined) {
      batch = { outstanding: [], items: [], frames: [], bytes: 0 };
      batches.set(queue, batch);
    }
    for (const one of settled) {
      batch.outstanding.push(one);
      batch.items.push(queue.item(one, action));
    }
    batch.bytes += bytes;
    const last = batch.frames.at(-1);
    // Each of two frames with one receipt id is confirmed. A pending reply that is an object, or none, may stand for
    // many frames.
    if (last?.reply === reply && typeof reply === 'object') last.end = batch.items.length;
    else batch.frames.push({ end: batch.items.length, reply });
  }

  /** Settles what was gathered. To be called at the end of each turn. */
  flush(): void {
    for (const batches of [this.#commits, this.#returns]) {
      for (const [queue, batch] of batches)
        this.#settle(queue, batch).catch((error: unknown) => this.#session.fail(error));
      batches.clear();
    }
  }

  /**
   * A frame took effect if each of its elements was settled. What is certainly not settled because a call failed
   * returns to the queue: the client cannot settle it again.
   */
  async #settle(queue: Queue, { outstanding, items, frames, bytes }: SettleBatch<Reply>): Promise<void> {
    const session = this.#session;
    const { work } = session;
    const count = items.length;
    let ended = 0;
    let settled = 0;
    let error: Error | null = null;
    const note = ({ id, group }: SettleItem, outcome: SettleOutcome): void => {
      if (!isSettled(outcome)) {
        error ??= refusalOf(outcome, { id, group: queue.namespace.isStream ? group : null }, queue.key);
      }
      settled += 1;
      const frame = frames[ended];
      if (frame === undefined || settled < frame.end) return;
      if (error !== null) session.notSettled([frame.reply], error);
      else session.settled(frame.reply);
      ended += 1;
      error = null;
    };
    work.begin(count, bytes);
    try {
      // A client that stores a result, and then finishes what it was made of, loses neither if the server fails in
      // between.
      await settleInSteps(queue, items, note, session.inserts.allSent());
    } catch (failure) {
      session.notSettled(
        frames.slice(ended).map(({ reply }) => reply),
        failure,
      );
      // After that: consumers of this session would be sent it again.
      const left = outstanding.slice(isCertain(failure) ? settled : settled + MAX_SETTLED);
      if (left.length > 0) await returnOutstanding(queue, left, true, session);
    } finally {
      work.end(count, bytes);
    }
  }
}
