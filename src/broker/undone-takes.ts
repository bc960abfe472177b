import { bodyBytes, type Delivery } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { LogOnChange } from '../util/log-on-change.ts';
import { Retries } from '../util/retries.ts';
import type { Namespace } from './namespace.ts';

const RETRY_MS = 1_000;
/**
 * The user whose permits undone pops use: the name of no user, since it has a control character, and not '', which is
 * the owner of exchanges from the configuration file.
 */
const UNDONE = '\0undone';
/** Bytes of bodies that a namespace keeps while its engine is unavailable. Pops beyond this are tried only once. */
const MAX_BYTES = 64 * 1_048_576;

/**
 * Pops that are being undone. While the engine is unavailable, this node has the only copy of what it popped, so it
 * retries until the elements are stored, or the node stops.
 */
export class UndoneTakes {
  readonly #ns: Namespace;
  readonly #retries: Retries;
  readonly #failures: LogOnChange;
  #bytes = 0;
  #count = 0;
  #lastId = 0;
  /** Those that could not be stored and are retried. */
  readonly #retried = new Set<string>();
  /** First tries without an outcome. */
  readonly #firstTries = new Set<Promise<unknown>>();

  constructor(namespace: Namespace) {
    this.#ns = namespace;
    const { clock, log } = namespace;
    this.#failures = new LogOnChange({
      failed: (err) =>
        log.warn(
          { err, ns: namespace.name },
          'popped elements could not be returned to their queue yet; the node retries until they are',
        ),
      worksAgain: () => log.info({ ns: namespace.name }, 'popped elements are returned to their queue again'),
    });
    this.#retries = new Retries({
      clock,
      delayMs: RETRY_MS,
      failed: (id, error) => {
        this.#retried.add(id);
        this.#failures.failed(error);
      },
    });
  }

  /**
   * Calls the engine in this turn of the event loop, so that following takes find them, unless 4 MiB are already in
   * flight. Never throws.
   * @param done called when they are stored, or may be
   */
  begin(queue: QueueKey, popped: readonly Delivery[], done: () => void): void {
    const bytes = bodyBytes(popped);
    const mayRepeat = this.#bytes + bytes <= MAX_BYTES;
    this.#bytes += bytes;
    this.#count += popped.length;
    this.#lastId += 1;
    const id = String(this.#lastId);
    const put = async (): Promise<void> => {
      try {
        await this.#store(queue, popped);
        this.#retried.delete(id);
        // Those that are retried may be larger, or for a server that is still unavailable.
        if (this.#retried.size === 0) this.#failures.worked();
        done();
      } catch (error) {
        if (mayRepeat && isCertain(error)) throw error;
        this.#retried.delete(id);
        this.#lost(error, queue, popped);
        // They may be stored nevertheless, now or a little later. Takes that are called from now on come after that.
        if (!isCertain(error)) done();
      }
      this.#bytes -= bytes;
      this.#count -= popped.length;
    };
    const first = this.#retries.do(id, put).finally(() => this.#firstTries.delete(first));
    this.#firstTries.add(first);
  }

  /**
   * Stores the elements with a permit, like the inserts of users: when thousands of clients disconnect together, their
   * pops are returned in steps. If there is none in time, they are stored without one, since this node has the only
   * copy.
   */
  async #store(queue: QueueKey, popped: readonly Delivery[]): Promise<void> {
    let isSent = false;
    const store = (): Promise<void> => {
      isSent = true;
      return this.#ns.storage.undoTake(queue, popped);
    };
    try {
      await this.#ns.permits.insert(UNDONE, popped, store);
    } catch (error) {
      if (isSent) throw error;
      await store();
    }
  }

  /** Stops retrying after each pop was tried at least once. */
  async stop(): Promise<void> {
    await Promise.all(this.#firstTries);
    this.#retries.stop();
    if (this.#count === 0) return;
    const fields = { ns: this.#ns.name, count: this.#count };
    this.#ns.log.warn(fields, 'popped elements may be lost: their engine is unavailable');
  }

  #lost(error: unknown, queue: QueueKey, popped: readonly Delivery[]): void {
    const ids = popped.map(({ id }) => id);
    this.#ns.log.warn({ err: error, queue, ids }, 'elements could not be returned to their queue');
  }
}

/** Whether the call certainly failed. If not, a consumer may have the element by now; a pop delivers at most once. */
function isCertain(error: unknown): boolean {
  return (
    error instanceof QuaysideError && (error.code === 'storage-unavailable' || error.code === 'storage-full')
  );
}
