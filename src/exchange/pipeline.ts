import type { Consumer } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';

/** What a loop does with what it took. */
export interface Stages {
  /** Asks the selectors. May run while an earlier batch is still being stored. */
  decide(batch: readonly Delivery[]): Promise<Decided>;
}

/**
 * Stores what was decided and settles the sources. What it asks of the source's engine is asked at once, before
 * it returns, so that batches keep their order. Resolves with false where a destination was away.
 */
export type Decided = () => Promise<boolean>;

export interface PipelineOptions {
  readonly source: Queue;
  readonly clock: Clock;
  readonly random: () => number;
  readonly tid: string;
  /** How elements are taken: reserved for this long, or popped (null). */
  readonly leaseMs: number | null;
  /** Elements under way at once. */
  readonly window: number;
  /** How often each element is copied, at most. */
  readonly copies: number;
  /** Bytes that exchanges may have in flight. */
  readonly inFlight: {
    enter(bytes: number): Promise<void>;
    leave(bytes: number): void;
  };
  readonly stages: Stages;
  /** An element was taken, or is settled: the record's `pending_acks`. */
  readonly took: (batch: readonly Delivery[]) => void;
  readonly settled: (batch: readonly Delivery[]) => void;
}

/** Elements of one round trip: past this the gain of a larger batch was under 3 %, and its lease runs longer. */
const LARGEST_BATCH = 256;
/** Bytes of one round trip, copies included: of large elements fewer are taken at once. */
const BATCH_BYTES = 4 * 1_048_576;
/** What an element is taken to weigh before one was seen. */
const USUAL_BYTES = 4 * 1024;
const FIRST_BACKOFF_MS = 100;
const LAST_BACKOFF_MS = 5_000;

/**
 * One loop of an exchange, as a pipeline of three stages: while some batches are being stored, the selectors
 * are asked for the next, and the one after is being taken. Batches are sent to be stored in the order in which
 * they were taken, and an engine keeps the order of calls, so a loop keeps the order of its source. None waits
 * for the answer to the one before: that took two fifths of the throughput.
 *
 * States: `idle` (before start, after stop), `running`, `stopping` (no new batch is taken; those that were
 * taken and not yet decided go back, those in their fan-out finish).
 */
export class Pipeline {
  readonly #options: PipelineOptions;
  #state: 'idle' | 'running' | 'stopping' = 'idle';
  #consumer: Consumer | null = null;
  #waitingSince: number | null = null;
  #underWay = 0;
  /** What an element weighed lately. */
  #bytesEach = USUAL_BYTES;
  /** Resolves when every batch taken so far was sent to be stored. */
  #sent: Promise<void> = Promise.resolve();
  /** Batches that are not settled yet. */
  readonly #open = new Set<Promise<void>>();
  /** Ends the wait for a batch, with what came. */
  #endWait: ((batch: Delivery[]) => void) | null = null;
  #backoffMs = 0;
  #endPause: (() => void) | null = null;
  #roomWanted: (() => void) | null = null;
  #run: Promise<void> = Promise.resolve();

  constructor(options: PipelineOptions) {
    this.#options = options;
  }

  get tid(): string {
    return this.#options.tid;
  }

  /** Since when the loop waits for an element, ms; null while it has something to do. */
  get waitingSince(): number | null {
    return this.#waitingSince;
  }

  start(): void {
    if (this.#state !== 'idle') return;
    this.#state = 'running';
    this.#run = this.#loop();
  }

  async stop(): Promise<void> {
    if (this.#state === 'running') {
      this.#state = 'stopping';
      if (this.#consumer !== null) this.#options.source.leave(this.#consumer);
      this.#endWait?.([]);
      this.#endPause?.();
      this.#roomWanted?.();
    }
    await this.#run;
    this.#state = 'idle';
  }

  async #loop(): Promise<void> {
    while (this.#state === 'running') {
      await this.#room();
      await this.#pauseAfterFault();
      if (this.#state !== 'running') break;
      const batch = await this.#take();
      if (batch.length === 0) continue;
      const bytes = this.#weigh(batch);
      await this.#options.inFlight.enter(bytes);
      this.#pass(batch, bytes);
    }
    await this.#allSettled();
  }

  /** Bytes of a batch with its copies. */
  #weigh(batch: readonly Delivery[]): number {
    const bytes = batch.reduce((sum, { body }) => sum + body.byteLength, 0);
    this.#bytesEach = (this.#bytesEach + bytes / batch.length) / 2;
    return bytes * this.#options.copies;
  }

  /** How many elements the next batch is to have. */
  #batchSize(): number {
    // After a fault one element is enough to find out whether the destination is back.
    if (this.#backoffMs > 0) return 1;
    const { window, copies } = this.#options;
    const byBytes = Math.max(1, Math.floor(BATCH_BYTES / (this.#bytesEach * copies)));
    return Math.min(LARGEST_BATCH, window - this.#underWay, byBytes);
  }

  /** Waits for a batch; an empty one means that the loop is to look whether it should go on. */
  #take(): Promise<Delivery[]> {
    const { source, clock, tid, leaseMs } = this.#options;
    return new Promise((resolve) => {
      const end = (batch: Delivery[]): void => {
        this.#consumer = null;
        this.#waitingSince = null;
        this.#endWait = null;
        resolve(batch);
      };
      this.#endWait = end;
      this.#waitingSince = clock.now();
      const count = this.#batchSize();
      try {
        this.#consumer = source.get(
          { group: null, leaseMs, count, timeoutMs: null, tid, owner: null },
          {
            deliver: (first, more) => end([first, ...more]),
            end: (reason) => {
              if (reason.code !== 'pop-cancelled') this.#grow();
              end([]);
            },
          },
        );
      } catch (error) {
        if (!(error instanceof QuaysideError)) throw error;
        this.#grow();
        end([]);
      }
    });
  }

  /** @param bytes as they count in flight */
  #pass(batch: readonly Delivery[], bytes: number): void {
    const { stages, took } = this.#options;
    this.#underWay += batch.length;
    took(batch);
    const decided = stages.decide(batch);
    // The batch's turn handles the failure; this keeps it from being reported as unhandled meanwhile.
    decided.catch(() => {});
    const before = this.#sent;
    const { promise: sent, resolve: markSent } = Promise.withResolvers<void>();
    this.#sent = sent;
    const settled = this.#settle(batch, before, decided, markSent);
    this.#open.add(settled);
    void settled.finally(() => {
      this.#open.delete(settled);
      this.#options.inFlight.leave(bytes);
    });
  }

  /** Never rejects. `markSent` lets the next batch be stored. */
  async #settle(
    batch: readonly Delivery[],
    before: Promise<void>,
    decided: Promise<Decided>,
    markSent: () => void,
  ): Promise<void> {
    try {
      await before;
      if (this.#state === 'stopping') {
        this.#options.source.returnAllUndelivered(batch);
        return;
      }
      const store = await decided;
      const storing = store();
      markSent();
      if (await storing) this.#backoffMs = 0;
      else this.#grow();
    } catch {
      // Unforeseen: all of it goes back at once; the loop goes on, more slowly.
      this.#options.source.returnAllUndelivered(batch);
      this.#grow();
    } finally {
      markSent();
      this.#underWay -= batch.length;
      this.#options.settled(batch);
      this.#roomWanted?.();
    }
  }

  async #allSettled(): Promise<void> {
    await Promise.all(this.#open);
  }

  /** Resolves when the window has room again. */
  async #room(): Promise<void> {
    while (this.#state === 'running' && !this.#hasRoom()) {
      await new Promise<void>((resolve) => {
        this.#roomWanted = resolve;
      });
      this.#roomWanted = null;
    }
  }

  /** Room for a full batch, or for half the window where that is less: no batches of one at the brim. */
  #hasRoom(): boolean {
    const free = this.#options.window - this.#underWay;
    return free >= Math.min(LARGEST_BATCH, Math.max(1, Math.floor(this.#options.window / 2)));
  }

  async #pauseAfterFault(): Promise<void> {
    if (this.#backoffMs === 0) return;
    await this.#allSettled();
    if (this.#backoffMs === 0 || this.#state !== 'running') return;
    let cancel: CancelTimer | null = null;
    await new Promise<void>((resolve) => {
      this.#endPause = resolve;
      cancel = this.#options.clock.after(this.#backoffMs * (0.5 + this.#options.random()), resolve);
    });
    this.#endPause = null;
    (cancel as CancelTimer | null)?.();
  }

  #grow(): void {
    this.#backoffMs = Math.min(Math.max(this.#backoffMs * 2, FIRST_BACKOFF_MS), LAST_BACKOFF_MS);
  }
}
