import type { CancelTimer, Clock } from '../util/clock.ts';

/** The progress of the watched thread. It is not stuck while this changes. */
export interface Progress {
  /** The request that should be running; null: none, so there is nothing to watch. */
  readonly head: { readonly limitMs: number } | null;
  readonly steps: number;
}

/** The queries and callbacks of a watchdog. */
interface WatchdogEvents {
  /** Processor time of the thread since its last progress, ms. May reject if it has ended. */
  busyMs(): Promise<number>;
  /** Called after two fifths of the limit without progress, to start a standby. Once per standstill. */
  onSuspect(): void;
  /** Called when the thread is stuck, after the watchdog has stopped. */
  onStuck(): void;
}

/** Progress checks per limit. */
const CHECKS_PER_LIMIT = 10;
/** Checks without progress before a standby is started. */
const SUSPECT_AFTER_CHECKS = 4;
/** Minimum share of the limit that a stuck thread was running; otherwise the machine is busy. */
const MIN_BUSY_PART = 0.4;
/** Multiple of the limit after which a thread without progress is stuck, running or not. */
const MAX_LIMITS = 4;

/**
 * Detects a thread without progress for longer than its request may take. It reads shared memory instead of messages:
 * if the main thread was busy for a second, answers are still in its event queue, and the thread is not stuck. Nor is a
 * thread that the machine did not schedule: with a load of six on two cores, harmless selectors waited for 250 ms and
 * more.
 */
export class Watchdog {
  readonly #clock: Clock;
  readonly #readProgress: () => Progress;
  readonly #events: WatchdogEvents;
  #seen: Progress = { head: null, steps: 0 };
  #seenAt = 0;
  #suspected = false;
  #isConfirming = false;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, readProgress: () => Progress, events: WatchdogEvents) {
    this.#clock = clock;
    this.#readProgress = readProgress;
    this.#events = events;
  }

  /** Call whenever the head changes. Checks at regular intervals while there is a head. */
  check(): void {
    const { head, standstillMs } = this.#readStandstill();
    if (head === null) return;
    if (standstillMs >= head.limitMs * MAX_LIMITS) {
      this.#giveUp();
      return;
    }
    if (standstillMs >= head.limitMs) void this.#confirmStuck(head.limitMs * MIN_BUSY_PART);
    if (!this.#suspected && standstillMs >= (head.limitMs / CHECKS_PER_LIMIT) * SUSPECT_AFTER_CHECKS) {
      this.#suspected = true;
      this.#events.onSuspect();
    }
    this.#cancel ??= this.#clock.after(head.limitMs / CHECKS_PER_LIMIT, () => {
      this.#cancel = null;
      this.check();
    });
  }

  /** Stops checking until the next {@link check}. */
  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#seen = { head: null, steps: 0 };
    this.#suspected = false;
  }

  #readStandstill(): { head: Progress['head']; standstillMs: number } {
    const now = this.#clock.monotonic();
    const { head, steps } = this.#readProgress();
    if (head !== this.#seen.head || steps !== this.#seen.steps) {
      this.#seen = { head, steps };
      this.#seenAt = now;
      this.#suspected = false;
    }
    return { head, standstillMs: now - this.#seenAt };
  }

  async #confirmStuck(atLeastMs: number): Promise<void> {
    if (this.#isConfirming) return;
    this.#isConfirming = true;
    const standstill = this.#seen;
    // The query fails if the thread has just ended, which `onLost` handles.
    const busyMs = await this.#events.busyMs().catch(() => 0);
    this.#isConfirming = false;
    this.#readStandstill();
    if (busyMs >= atLeastMs && this.#seen === standstill && standstill.head !== null) this.#giveUp();
  }

  #giveUp(): void {
    this.stop();
    this.#events.onStuck();
  }
}
