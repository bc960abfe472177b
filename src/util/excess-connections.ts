import type { Clock } from './clock.ts';
import { LineLimit } from './line-limit.ts';
import type { FrontEndLog } from './log.ts';

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
