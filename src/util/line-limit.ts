import type { CancelTimer, Clock } from './clock.ts';
import type { FrontEndLog } from './log.ts';

/** Networks, or other causes, with a count of their own; all further ones share one count. */
const MAX_NETWORKS = 1_000;
const WINDOW_MS = 60_000;

/**
 * Limits log lines that anybody can cause to one a minute for each network or other cause. Omitted lines are counted,
 * and each count is logged when its minute ends or the server stops.
 */
export class LineLimit {
  readonly #clock: Clock;
  readonly #writeCount: (network: string | null, leftOut: number) => void;
  /** Lines omitted in this window, by network; null stands for all networks beyond {@link MAX_NETWORKS}. */
  readonly #leftOut = new Map<string | null, number>();
  #cancelTimer: CancelTimer | null = null;

  constructor(clock: Clock, writeCount: (network: string | null, leftOut: number) => void) {
    this.#clock = clock;
    this.#writeCount = writeCount;
  }

  /** Returns whether a line may be logged now; otherwise counts it as omitted. */
  admit(network: string): boolean {
    const key = this.#leftOut.has(network) || this.#leftOut.size < MAX_NETWORKS ? network : null;
    const leftOut = this.#leftOut.get(key);
    this.#leftOut.set(key, leftOut === undefined ? 0 : leftOut + 1);
    this.#cancelTimer ??= this.#clock.after(WINDOW_MS, () => this.#endWindow());
    return leftOut === undefined;
  }

  /** Logs the counts of the current window. */
  flush(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    this.#writeCounts();
    this.#leftOut.clear();
  }

  #endWindow(): void {
    this.#cancelTimer = null;
    this.#writeCounts();
    // The logged count is also the network's line for the next window.
    for (const [network, leftOut] of this.#leftOut) {
      if (leftOut === 0) this.#leftOut.delete(network);
      else this.#leftOut.set(network, 0);
    }
    if (this.#leftOut.size > 0) this.#cancelTimer = this.#clock.after(WINDOW_MS, () => this.#endWindow());
  }

  #writeCounts(): void {
    for (const [network, leftOut] of this.#leftOut) if (leftOut > 0) this.#writeCount(network, leftOut);
  }
}

/**
 * Logs connections that are closed on arrival because `maxSockets` are open. Clients see only a closed connection, so
 * the log is the one place that tells why. One line a minute, so that a client that reconnects in a loop cannot fill
 * the log.
 */
export class ExcessConnections {
  readonly #fields: { readonly protocol: string; readonly maxSockets: number };
  readonly #log: FrontEndLog;
  readonly #lines: LineLimit;

  constructor(protocol: string, maxSockets: number, { clock, log }: { clock: Clock; log: FrontEndLog }) {
    this.#fields = { protocol, maxSockets };
    this.#log = log;
    this.#lines = new LineLimit(clock, (_, leftOut) => {
      log.warn({ ...this.#fields, leftOut }, 'further connections were closed because maxSockets were open');
    });
  }

  /** Records a closed connection. */
  note(): void {
    if (!this.#lines.admit(this.#fields.protocol)) return;
    this.#log.warn(this.#fields, 'a connection was closed because maxSockets were open');
  }

  /** Logs the count of the current, unfinished minute. */
  flush(): void {
    this.#lines.flush();
  }
}
