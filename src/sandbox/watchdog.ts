import type { CancelTimer, Clock } from '../util/clock.ts';

/** How far the watched thread has come; any difference is a sign of life. */
export interface Pulse {
  /** The request that it should be busy with; null: none, and then there is nothing to watch. */
  readonly head: { readonly limitMs: number } | null;
  readonly steps: number;
}

/** What a watchdog asks and tells. */
interface WatchdogEvents {
  /** Processor time that the thread has used since its last sign of life, ms. May reject once it has ended. */
  busyMs(): Promise<number>;
  /** Silent for two fifths of the limit: time to get a successor ready. Once for each silence. */
  onSuspect(): void;
  /** Silent for the whole limit, and busy with it. Looking has stopped. */
  onStuck(): void;
}

/** How often the pulse is felt, as a part of the limit. */
const LOOKS = 10;
/** Looks without a sign of life before a successor is made ready. */
const SUSPECT_AFTER = 4;
/** The part of the limit that the thread must have been running for; else it is the machine that is busy. */
const BUSY = 0.4;
/** How many times the limit a thread may be silent, running or not. */
const PATIENCE = 4;

/**
 * Notices a thread that has shown no sign of life for longer than its request may take. It judges by what
 * the thread wrote to shared memory, not by messages: a main thread that was itself busy for a second finds
 * its thread's answers waiting and must not take them for silence. And a thread that the machine did not let
 * run is not stuck: under a load of six on two cores good selectors were seen to wait for 250 ms and more.
 */
export class Watchdog {
  readonly #clock: Clock;
  readonly #feel: () => Pulse;
  readonly #events: WatchdogEvents;
  #seen: Pulse = { head: null, steps: 0 };
  #seenAt = 0;
  #suspected = false;
  #judging = false;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, feel: () => Pulse, events: WatchdogEvents) {
    this.#clock = clock;
    this.#feel = feel;
    this.#events = events;
  }

  /** To be called whenever the head changes: time counts from here, and looking goes on while there is one. */
  look(): void {
    const { head, silentMs } = this.#listen();
    if (head === null) return;
    if (silentMs >= head.limitMs * PATIENCE) {
      this.#giveUp();
      return;
    }
    if (silentMs >= head.limitMs) void this.#judge(head.limitMs * BUSY);
    if (!this.#suspected && silentMs >= (head.limitMs / LOOKS) * SUSPECT_AFTER) {
      this.#suspected = true;
      this.#events.onSuspect();
    }
    this.#cancel ??= this.#clock.after(head.limitMs / LOOKS, () => {
      this.#cancel = null;
      this.look();
    });
  }

  /** Stops looking until the next {@link look}. */
  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#seen = { head: null, steps: 0 };
    this.#suspected = false;
  }

  #listen(): { head: Pulse['head']; silentMs: number } {
    const now = this.#clock.monotonic();
    const { head, steps } = this.#feel();
    if (head !== this.#seen.head || steps !== this.#seen.steps) {
      this.#seen = { head, steps };
      this.#seenAt = now;
      this.#suspected = false;
    }
    return { head, silentMs: now - this.#seenAt };
  }

  async #judge(atLeastMs: number): Promise<void> {
    if (this.#judging) return;
    this.#judging = true;
    const silence = this.#seen;
    // A thread that cannot be queried has just ended, which is handled elsewhere.
    const busyMs = await this.#events.busyMs().catch(() => 0);
    this.#judging = false;
    this.#listen();
    if (busyMs >= atLeastMs && this.#seen === silence && silence.head !== null) this.#giveUp();
  }

  #giveUp(): void {
    this.stop();
    this.#events.onStuck();
  }
}
