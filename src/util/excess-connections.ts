import type { Clock } from './clock.ts';
import { LineLimit } from './line-limit.ts';
import type { FrontEndLog } from './log.ts';

/**
 * Logs that connections were closed when they came, as there were too many. Their clients see only that they are
 * closed, so the log is where this can be found. One line a minute: a client that connects again and again must not
 * fill the log.
 */
export class ExcessConnections {
  readonly #fields: { readonly protocol: string; readonly maxSockets: number };
  readonly #log: FrontEndLog;
  readonly #lines: LineLimit;

  constructor(protocol: string, maxSockets: number, { clock, log }: { clock: Clock; log: FrontEndLog }) {
    this.#fields = { protocol, maxSockets };
    this.#log = log;
    this.#lines = new LineLimit(clock, (_, leftOut) => {
      log.warn({ ...this.#fields, leftOut }, 'further connections were closed, as maxSockets were open');
    });
  }

  /** One was closed. */
  note(): void {
    if (!this.#lines.admit(this.#fields.protocol)) return;
    this.#log.warn(this.#fields, 'a connection was closed, as maxSockets were open');
  }

  /** Writes the count of the minute that has not ended. */
  flush(): void {
    this.#lines.flush();
  }
}
