import type { Consumer } from '../broker/consumer.ts';
import type { Queue } from '../broker/queue.ts';
import type { Delivery, ElementId } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { Backoff } from '../util/backoff.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { Decided, Forwarder } from './forwarder.ts';
import type { InFlightLimit } from './in-flight-limit.ts';

interface LoopOptions {
  readonly source: Queue;
  readonly forwarder: Forwarder;
  readonly clock: Clock;
  readonly random: () => number;
  readonly tid: string;
  /** Whether elements are reserved; else they are popped. */
  readonly reserves: boolean;
  /** Elements in flight at once. */
  readonly window: number;
  /** How often each element is copied, at most. */
  readonly copies: number;
  /** Bounds the bytes of all exchanges, in the name of their owner. */
  readonly inFlightLimit: InFlightLimit;
  readonly owner: string;
}

/** Elements of one round trip: past this the gain of a larger batch was under 3 %, and its lease runs longer. */
const MAX_BATCH = 256;
/** Bytes of one round trip, copies included: of large elements fewer are taken at once. */
const BATCH_BYTES = 4 * 1_048_576;
/** The size assumed for an element before the first one. */
const USUAL_BYTES = 4 * 1024;

/**
 * One loop of an exchange, as a pipeline of three stages: while some batches are being stored, the selectors run for the next,
 * and the one after is being taken. Batches are sent to be stored in the order in which they were taken, and an engine keeps
 * the order of calls, so a loop keeps the order of its source. Waiting for each reply cost 40 % of throughput.
 *
 * States: `idle` (before start, after stop), `running`, `stopping` (no new batch is taken; those that were taken and not yet
 * decided are returned undelivered, those in their fan-out finish).
 */
export class Loop {
  readonly #options: LoopOptions;
  #state: 'idle' | 'running' | 'stopping' = 'idle';
  #consumer: Consumer | null = null;
  #waitingSince: number | null = null;
  /** Elements taken and not settled, and since when, ms. */
  readonly #inFlight = new Map<ElementId, number>();
  /** What an element weighed lately. */
  #bytesEach = USUAL_BYTES;
  /** Resolves when every batch taken so far was sent to be stored. */
  #sent: Promise<void> = Promise.resolve();
  /** Batches that are not settled yet. */
  readonly #open = new Set<Promise<void>>();
  /** Ends the wait for a batch, with what came. */
  #endWait: ((batch: Delivery[]) => void) | null = null;
  /** Between batches after a failed one. */
  readonly #backoff: Backoff;
  #endPause: (() => void) | null = null;
  #onCapacity: (() => void) | null = null;
  #run: Promise<void> = Promise.resolve();

  constructor(options: LoopOptions) {
    this.#options = options;
    this.#backoff = new Backoff(options.random);
  }

  get tid(): string {
    return this.#options.tid;
  }

  /** Since when the loop waits for an element, ms; null while it has something to do. */
  get waitingSince(): number | null {
    return this.#waitingSince;
  }

  /** Elements taken and not settled, and since when, ms. */
  get inFlight(): ReadonlyMap<ElementId, number> {
    return this.#inFlight;
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
      this.#onCapacity?.();
    }
    await this.#run;
    this.#state = 'idle';
  }

  async #loop(): Promise<void> {
    while (this.#state === 'running') {
      await this.#capacity();
      await this.#pauseAfterFailure();
      if (this.#state !== 'running') break;
      const batch = await this.#take();
      if (batch.length === 0) continue;
      const bytes = this.#weigh(batch);
      await this.#options.inFlightLimit.enter(this.#options.owner, bytes);
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
    // After a failure one element is enough to find out whether the destination is available again.
    if (this.#backoff.isActive) return 1;
    const { window, copies } = this.#options;
    const byBytes = Math.max(1, Math.floor(BATCH_BYTES / (this.#bytesEach * copies)));
    return Math.min(MAX_BATCH, window - this.#inFlight.size, byBytes);
  }

  /** Waits for a batch; an empty one means that the loop is to check whether it should continue. */
  #take(): Promise<Delivery[]> {
    const { source, clock, tid, reserves } = this.#options;
    const leaseMs = reserves ? source.settings.leaseMs : null;
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
              if (reason.code !== 'pop-cancelled') this.#backoff.noteFailure();
              end([]);
            },
          },
        );
      } catch (error) {
        if (!(error instanceof QuaysideError)) throw error;
        this.#backoff.noteFailure();
        end([]);
      }
    });
  }

  /** @param bytes as they count in flight */
  #pass(batch: readonly Delivery[], bytes: number): void {
    const { forwarder, clock, inFlightLimit, owner } = this.#options;
    const now = clock.now();
    for (const { id } of batch) this.#inFlight.set(id, now);
    const decided = forwarder.decide(batch);
    // #settle handles a failure; until it does, this keeps the failure from being reported as unhandled.
    decided.catch(() => {});
    const before = this.#sent;
    const { promise: sent, resolve: markSent } = Promise.withResolvers<void>();
    this.#sent = sent;
    const settled = this.#settle(batch, before, decided, markSent);
    this.#open.add(settled);
    void settled.finally(() => {
      this.#open.delete(settled);
      inFlightLimit.leave(owner, bytes);
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
      if (await storing) this.#backoff.reset();
      else this.#backoff.noteFailure();
    } catch {
      // Unforeseen: all of it is returned at once; the loop continues, more slowly.
      this.#options.source.returnAllUndelivered(batch);
      this.#backoff.noteFailure();
    } finally {
      markSent();
      for (const { id } of batch) this.#inFlight.delete(id);
      this.#onCapacity?.();
    }
  }

  async #allSettled(): Promise<void> {
    await Promise.all(this.#open);
  }

  /** Resolves when the window has capacity again. */
  async #capacity(): Promise<void> {
    while (this.#state === 'running' && !this.#hasCapacity()) {
      await new Promise<void>((resolve) => {
        this.#onCapacity = resolve;
      });
      this.#onCapacity = null;
    }
  }

  /** For a full batch, or for half the window if that is less: no batches of one when the window is nearly full. */
  #hasCapacity(): boolean {
    const free = this.#options.window - this.#inFlight.size;
    return free >= Math.min(MAX_BATCH, Math.max(1, Math.floor(this.#options.window / 2)));
  }

  async #pauseAfterFailure(): Promise<void> {
    if (!this.#backoff.isActive) return;
    await this.#allSettled();
    if (!this.#backoff.isActive || this.#state !== 'running') return;
    let cancel: CancelTimer | null = null;
    await new Promise<void>((resolve) => {
      this.#endPause = resolve;
      cancel = this.#options.clock.after(this.#backoff.delayMs(), resolve);
    });
    this.#endPause = null;
    (cancel as CancelTimer | null)?.();
  }
}
