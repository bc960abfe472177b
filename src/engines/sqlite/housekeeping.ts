import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { Client } from './client.ts';

/** How long after the first change the file is looked after. */
const TEND_AFTER_MS = 5000;

/**
 * Has the worker clear away what was purged, forget old dedup keys and give free space back: in small steps
 * that travel among the other calls, some seconds after something changed and never while all is quiet.
 */
export class Housekeeping {
  readonly #client: Client;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  #cancel: CancelTimer | null = null;
  #stopped = false;

  constructor(client: Client, clock: Clock, log: EngineLog) {
    this.#client = client;
    this.#clock = clock;
    this.#log = log;
  }

  /** Something changed that may leave work behind. Cheap; called for each such call. */
  due(): void {
    if (this.#stopped) return;
    this.#cancel ??= this.#clock.after(TEND_AFTER_MS, () => {
      this.#cancel = null;
      this.tend().catch((error: unknown) => this.#log.warn({ err: error }, 'housekeeping failed'));
    });
  }

  /** Tends until nothing is left to do. */
  async tend(): Promise<void> {
    let more = true;
    while (more && !this.#stopped) {
      this.#client.begin('tend');
      more = await this.#client.end('tend', (reply) => reply.flag());
    }
  }

  stop(): void {
    this.#stopped = true;
    this.#cancel?.();
    this.#cancel = null;
  }
}
