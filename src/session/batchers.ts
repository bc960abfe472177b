import { isSettled, rejectionOf } from '../broker/meter.ts';
import type { Queue, SettleAction, SettleItem, SettleOutcome } from '../broker/queue.ts';
import type { NewElement } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import type { ClientSession } from './client-session.ts';
import { isCertain, MAX_SETTLED, type Outstanding, returnOutstanding, settleInSteps } from './outstanding.ts';

// Batches the inserts and settlements of one turn of the event loop. Each frame has a pending reply: what its protocol
// needs to confirm the frame once the engine has executed it, such as a receipt id or a delivery id.

interface InsertBatch<Reply> {
  readonly elements: NewElement[];
  /** One per element; null if the client wants no confirmation. */
  readonly replies: (Reply | null)[];
  bytes: number;
  /** Deliveries of all elements: one for each group of each element. */
  deliveries: number;
}

/** Errors of an insert that stored nothing although some of its elements would fit. */
const SPLITTABLE: ReadonlySet<ErrorCode> = new Set(['queue-full', 'namespace-full', 'too-many-groups']);

/**
 * Bodies are copied if the buffers that they are views of exceed this many times the bodies' bytes plus
 * `MAX_OVERHEAD_BYTES`. This bounds the memory of inserts that wait for a stalled engine.
 */
const MAX_OVERHEAD_FACTOR = 4;
const MAX_OVERHEAD_BYTES = 4096;

/**
 * Collects the elements that arrive in one turn of the event loop, so that each queue gets one insert, or several if
 * they exceed `LIMITS.insertDeliveries`.
 */
export class InsertBatcher<Reply> {
  readonly #session: ClientSession<Reply>;
  readonly #batches = new Map<Queue, InsertBatch<Reply>>();
  /** One promise per insert that its engine does not have yet; it resolves when the engine has it, or it failed. */
  readonly #unsent = new Set<Promise<void>>();

  constructor(session: ClientSession<Reply>) {
    this.#session = session;
  }

  /**
   * @param reply null if the client wants no confirmation
   * @param bytes size of the element's frames: their headers stay in memory, too, until the element is stored
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

  /** Inserts the collected elements. Call at the end of each turn. */
  flush(): void {
    if (this.#batches.size === 0) return;
    for (const [queue, batch] of this.#batches) this.#insert(queue, batch);
    this.#batches.clear();
  }

  /** Resolves when the engines have every insert, or it failed. Null if there is none to wait for. */
  allSent(): Promise<unknown> | null {
    return this.#unsent.size === 0 ? null : Promise.all(this.#unsent);
  }

  /**
   * Runs an insert; `allSent` waits until its engine has it.
   * @param store calls `onSent` when it passes the elements to the engine
   */
  async track<T>(store: (onSent: () => void) => Promise<T>): Promise<T> {
    const { promise: sent, resolve } = Promise.withResolvers<void>();
    let isSent = false;
    const storing = store(() => {
      isSent = true;
      resolve();
    });
    // The insert waits for its user's turn, or until the size of a bounded queue or namespace is known.
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
    // Not within the function below, which would retain the original buffers until the insert has an outcome.
    const owned = withCopiedBodies(elements);
    work.begin(count, bytes);
    this.track((onSent) => this.#store(queue, owned, replies, onSent))
      .catch((error: unknown) => this.#session.fail(error))
      .finally(() => work.end(count, bytes));
  }

  /**
   * Stores elements that merely arrived together. An engine stores all elements of a call or none, so a call that
   * exceeds a limit is split in halves until every element that fits is stored, earlier ones first.
   * @returns false if elements that arrived later must not be stored
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
      if (code === null || !SPLITTABLE.has(code) || elements.length === 1) {
        const mayContinue = this.#session.notInserted(replies, error);
        // `too-many-groups` depends on the element; a full queue or namespace rejects the next one, too.
        return mayContinue && code === 'too-many-groups';
      }
      const half = elements.length >> 1;
      const mayContinue = await this.#store(queue, elements.slice(0, half), replies.slice(0, half));
      if (mayContinue) return this.#store(queue, elements.slice(half), replies.slice(half));
      this.#session.notInserted(replies.slice(half), error);
      return false;
    }
    this.#session.inserted(replies);
    return true;
  }
}

/** Copies the bodies into one buffer if those that they were read into are much larger; else returns `elements`. */
function withCopiedBodies(elements: readonly NewElement[]): readonly NewElement[] {
  let bytes = 0;
  let retained = 0;
  let last: ArrayBufferLike | null = null;
  for (const { body } of elements) {
    bytes += body.byteLength;
    // Bodies in the same buffer are adjacent.
    if (body.buffer !== last) retained += body.buffer.byteLength;
    last = body.buffer;
  }
  if (retained <= MAX_OVERHEAD_FACTOR * bytes + MAX_OVERHEAD_BYTES) return elements;
  const copy = Buffer.allocUnsafeSlow(bytes);
  let offset = 0;
  return elements.map((element) => {
    const from = offset;
    copy.set(element.body, from);
    offset += element.body.byteLength;
    return { ...element, body: copy.subarray(from, offset) };
  });
}

/** The elements of several frames; the end of each frame is an index into `items`. */
interface SettleBatch<Reply> {
  readonly outstanding: Outstanding[];
  readonly items: SettleItem[];
  /** Adjacent frames with the same reply are merged; see `add`. */
  readonly frames: { end: number; readonly reply: Reply | null }[];
  bytes: number;
}

/**
 * Collects the settlements of one turn of the event loop, so that each queue gets one batch of commits and one of
 * others.
 */
export class SettleBatcher<Reply> {
  readonly #session: ClientSession<unknown, Reply>;
  /** Separate from `#returns`: they need no space, so they succeed even if a dead letter cannot be stored. */
  readonly #commits = new Map<Queue, SettleBatch<Reply>>();
  readonly #returns = new Map<Queue, SettleBatch<Reply>>();

  constructor(session: ClientSession<unknown, Reply>) {
    this.#session = session;
  }

  /**
   * @param settled the elements of one frame, at least one
   * @param bytes size of the frame
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
    for (const delivery of settled) {
      batch.outstanding.push(delivery);
      batch.items.push(queue.item(delivery, action));
    }
    batch.bytes += bytes;
    const last = batch.frames.at(-1);
    // Two frames with the same receipt id (a string) are confirmed separately. An object or null may stand for many
    // frames.
    if (last?.reply === reply && typeof reply === 'object') last.end = batch.items.length;
    else batch.frames.push({ end: batch.items.length, reply });
  }

  /** Settles the collected elements. Call at the end of each turn. */
  flush(): void {
    for (const batches of [this.#commits, this.#returns]) {
      for (const [queue, batch] of batches)
        this.#settle(queue, batch).catch((error: unknown) => this.#session.fail(error));
      batches.clear();
    }
  }

  /**
   * A frame succeeds if all of its elements were settled. If a call fails, the elements that are certainly not settled
   * return to the queue, since the client cannot settle them again.
   */
  async #settle(queue: Queue, { outstanding, items, frames, bytes }: SettleBatch<Reply>): Promise<void> {
    const session = this.#session;
    const { work } = session;
    const count = items.length;
    let framesDone = 0;
    let itemsDone = 0;
    let error: Error | null = null;
    const onOutcome = ({ id, group }: SettleItem, outcome: SettleOutcome): void => {
      if (!isSettled(outcome)) {
        error ??= rejectionOf(outcome, { id, group: queue.namespace.isStream ? group : null }, queue.key);
      }
      itemsDone += 1;
      const frame = frames[framesDone];
      if (frame === undefined || itemsDone < frame.end) return;
      if (error !== null) session.notSettled([frame.reply], error);
      else session.settled(frame.reply);
      framesDone += 1;
      error = null;
    };
    work.begin(count, bytes);
    try {
      // Earlier inserts go first: a client that stores a result and then commits its source element loses neither if
      // the server fails in between.
      await settleInSteps(queue, items, onOutcome, session.inserts.allSent());
    } catch (failure) {
      session.notSettled(
        frames.slice(framesDone).map(({ reply }) => reply),
        failure,
      );
      // Only after `notSettled`, which may end the session: its own consumers would receive the elements again.
      const unsettled = outstanding.slice(isCertain(failure) ? itemsDone : itemsDone + MAX_SETTLED);
      if (unsettled.length > 0) await returnOutstanding(queue, unsettled, true, session);
    } finally {
      work.end(count, bytes);
    }
  }
}
