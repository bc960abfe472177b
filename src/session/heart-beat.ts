import type { CancelTimer, Clock } from '../util/clock.ts';

/**
 * A heart-beat is sent after this fraction of the agreed interval, so that a delayed one is still in time. With 0.75,
 * 1,000 idle STOMP sessions take 2.1 % of a processor, and AMQP connections 1.5 %; with 0.5 they took 2.6 to 3.1 %, and
 * 3.3 %.
 */
const SEND_FRACTION = 0.75;

/** A connection is considered dead after this many intervals of silence. */
export const MAX_SILENT_INTERVALS = 2;

interface HeartBeatOptions {
  readonly clock: Clock;
  /** Something must be sent at least this often, ms; 0: nothing need be sent. */
  readonly sendMs: number;
  /** The client has promised to send something at least this often, ms; 0: it has not. */
  readonly receiveMs: number;
  /** Sends a heart-beat, unless other bytes wait to be written. */
  send(): void;
  /** Nothing was received for twice `receiveMs`. */
  onSilence(): void;
}

/** The heart-beats of one connection, in both directions. Any bytes count as one. */
export class HeartBeat {
  readonly #options: HeartBeatOptions;
  #receivedAt: number;
  #isPaused = false;
  #cancelSend: CancelTimer | null = null;
  #cancelReceive: CancelTimer | null = null;

  constructor(options: HeartBeatOptions) {
    this.#options = options;
    this.#receivedAt = options.clock.monotonic();
    if (options.sendMs > 0) this.#planSend();
    if (options.receiveMs > 0) this.#planReceive(options.receiveMs * MAX_SILENT_INTERVALS);
  }

  /** Call when bytes arrive. */
  received(): void {
    this.#receivedAt = this.#options.clock.monotonic();
  }

  /** While the server does not read, silence proves nothing. Afterwards, the client's full time starts again. */
  pause(isPaused: boolean): void {
    this.#isPaused = isPaused;
    this.received();
  }

  stop(): void {
    this.#cancelSend?.();
    this.#cancelReceive?.();
  }

  #planSend(): void {
    const { clock, sendMs, send } = this.#options;
    this.#cancelSend = clock.after(sendMs * SEND_FRACTION, () => {
      this.#planSend();
      send();
    });
  }

  #planReceive(inMs: number): void {
    this.#cancelReceive = this.#options.clock.after(inMs, () => {
      if (!this.#isLate()) return;
      // If the whole process was stalled, timers run before the bytes that arrived in that time are read: check again
      // after reading.
      const recheck = setImmediate(() => {
        if (this.#isLate()) this.#options.onSilence();
      });
      this.#cancelReceive = () => clearImmediate(recheck);
    });
  }

  /** Whether the client has been silent for too long. If not, plans the next check. */
  #isLate(): boolean {
    const { clock, receiveMs } = this.#options;
    const graceMs = receiveMs * MAX_SILENT_INTERVALS;
    const leftMs = this.#isPaused ? graceMs : this.#receivedAt + graceMs - clock.monotonic();
    if (leftMs > 0) this.#planReceive(leftMs);
    return leftMs <= 0;
  }
}
