import type { Storage } from '../engine/storage.ts';
import type { Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { Retries } from '../util/retries.ts';
import type { BrokerLog } from './ports.ts';

interface UndoneTakesHost {
  readonly storage: Storage;
  readonly clock: Clock;
  readonly log: BrokerLog;
}

const RETRY_MS = 1_000;
/** Bodies that are kept for an engine that is unavailable, in one namespace; what exceeds this is tried once. */
const MAX_BYTES = 64 * 1_048_576;

/**
 * Pops that are undone. While their engine is unavailable, this node has the only copy of what it popped, so it retries
 * until they are stored again, or it stops.
 */
export class UndoneTakes {
  readonly #host: UndoneTakesHost;
  readonly #retries: Retries;
  #bytes = 0;
  #count = 0;
  #made = 0;
  /** First tries that have no outcome yet. */
  readonly #begun = new Set<Promise<void>>();

  constructor(host: UndoneTakesHost) {
    this.#host = host;
    this.#retries = new Retries({
      clock: host.clock,
      delayMs: RETRY_MS,
      failed: (_name, error) =>
        host.log.warn(
          { err: error },
          'popped elements could not be returned to their queue yet; the node retries until they are',
        ),
    });
  }

  /**
   * Calls the engine in this turn, so that takes which follow share the batch. Never throws.
   * @param done called when they are stored; `isLate`: not by the first try
   */
  begin(queue: QueueKey, popped: readonly Delivery[], done: (isLate: boolean) => void): void {
    const bytes = popped.reduce((sum, { body }) => sum + body.byteLength, 0);
    const mayRepeat = this.#bytes + bytes <= MAX_BYTES;
    this.#bytes += bytes;
    this.#count += popped.length;
    this.#made += 1;
    let tries = 0;
    const put = async (): Promise<void> => {
      tries += 1;
      try {
        await this.#host.storage.undoTake(queue, popped);
        done(tries > 1);
      } catch (error) {
        if (mayRepeat && isCertain(error)) throw error;
        this.#lost(error, queue, popped);
      }
      this.#bytes -= bytes;
      this.#count -= popped.length;
    };
    const first = this.#retries.do(String(this.#made), put).finally(() => this.#begun.delete(first));
    this.#begun.add(first);
  }

  /** Ends the retries, once all that was begun has been tried. */
  async stop(): Promise<void> {
    await Promise.all(this.#begun);
    this.#retries.stop();
    if (this.#count === 0) return;
    this.#host.log.warn({ count: this.#count }, 'popped elements may be lost: their engine is unavailable');
  }

  #lost(error: unknown, queue: QueueKey, popped: readonly Delivery[]): void {
    const ids = popped.map(({ id }) => id);
    this.#host.log.warn({ err: error, queue, ids }, 'elements could not be returned to their queue');
  }
}

/** If the outcome is unknown, a consumer may have the element by now: a pop delivers at most once. */
function isCertain(error: unknown): boolean {
  return (
    error instanceof QuaysideError && (error.code === 'storage-unavailable' || error.code === 'storage-full')
  );
}
