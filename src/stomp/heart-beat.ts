import { BEAT_PACE } from '../session/pace.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';

export interface HeartBeatOptions {
  readonly clock: Clock;
  /** Something must be sent at least this often, ms; 0: nothing need be. */
  readonly sendMs: number;
  /** Something comes at least this often, ms; 0: nothing need come. */
  readonly hearMs: number;
  send(): void;
  /** Nothing came for too long. */
  onSilence(): void;
}

/** A client's line end may be late by its whole interval before its connection is taken for dead. */
const GRACE = 2;

/** The heart-beats of one connection, both ways. Any bytes count as one. */
export class HeartBeat {
  readonly #options: HeartBeatOptions;
  #heardAt: number;
  #isHeld = false;
  #cancelSend: CancelTimer | null = null;
  #cancelHear: CancelTimer | null = null;

  constructor(options: HeartBeatOptions) {
    this.#options = options;
    this.#heardAt = options.clock.monotonic();
    if (options.sendMs > 0) this.#planSend();
    if (options.hearMs > 0) this.#planHear(options.hearMs * GRACE);
  }

  /** Bytes came. */
  heard(): void {
    this.#heardAt = this.#options.clock.monotonic();
  }

  /** While the client is not listened to, its silence means nothing; afterwards it has its whole time again. */
  hold(isHeld: boolean): void {
    this.#isHeld = isHeld;
    this.heard();
  }

  stop(): void {
    this.#cancelSend?.();
    this.#cancelHear?.();
  }

  #planSend(): void {
    const { clock, sendMs, send } = this.#options;
    this.#cancelSend = clock.after(sendMs * BEAT_PACE, () => {
      this.#planSend();
      send();
    });
  }

  #planHear(inMs: number): void {
    const { clock, hearMs, onSilence } = this.#options;
    this.#cancelHear = clock.after(inMs, () => {
      const graceMs = hearMs * GRACE;
      const leftMs = this.#isHeld ? graceMs : this.#heardAt + graceMs - clock.monotonic();
      if (leftMs > 0) this.#planHear(leftMs);
      else onSilence();
    });
  }
}
