import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import { messageOf } from '../../../util/message-of.ts';
import type { Batch, FromWorker, Reply, ToWorker } from '../protocol.ts';
import { MEMORY, type Warn, type WorkerData } from '../settings.ts';
import { Backup } from './backup.ts';
import { earlyCalls, type Part, runBatches, wholeOf } from './batch.ts';
import { isFull, OpenError, openError, rejectionOf } from './errors.ts';
import { openDatabase } from './open.ts';
import { Space } from './space.ts';
import { Store, type TransactionPoint } from './store.ts';

/** Clocks of one machine may differ by less than this. */
const OLDER_CLOCK_MS = 1000;

/**
 * Opens the file and serves it to the main thread until that closes it, or the file can no longer be relied on.
 * @param reach called at each point of a transaction; an error that it throws is handled like one of SQLite
 */
export function serve(
  port: MessagePort,
  options: WorkerData,
  reach: (point: TransactionPoint) => void = () => {},
): void {
  const post = (message: FromWorker): void => port.postMessage(message);
  const warn: Warn = (fields, message) => post({ kind: 'warn', fields, message });
  try {
    const store = openStore(options, warn, reach);
    const server = new StoreServer(port, store, new Backup(store.db, options.minFreeBytes), warn);
    post({ kind: 'opened' });
    port.on('message', (first: ToWorker) => server.onMessage(first));
  } catch (error) {
    const state = error instanceof OpenError ? error.state : null;
    post({ kind: 'rejected', message: messageOf(error), state });
    port.close();
  }
}

function openStore(options: WorkerData, warn: Warn, reach: (point: TransactionPoint) => void): Store {
  const { file } = options;
  const space = file === MEMORY ? null : new Space(options, warn);
  const open = (): Store => {
    const db = openDatabase(options, warn);
    try {
      const store = new Store(db, options, { space, warn, reach });
      space?.opened();
      warnOfOlderClock(store, options, warn);
      return store;
    } catch (error) {
      db.close();
      throw openError(file, error);
    }
  };
  try {
    return open();
  } catch (error) {
    // Opening the file needs a little space. A full disk must not prevent a restart, after which consumers free space.
    const isDiskFull = error instanceof OpenError && isFull(error.cause);
    if (!isDiskFull || !space?.releaseBallast()) throw error;
    return open();
  }
}

/**
 * Moments are stored by the clock of their time: elements that were ready by it wait until the clock shows it again.
 */
function warnOfOlderClock({ queues }: Store, { file, now }: WorkerData, warn: Warn): void {
  let behindMs = 0;
  for (const { subscriptions } of queues.all()) {
    for (const { countedAt } of subscriptions.values()) behindMs = Math.max(behindMs, countedAt - now);
  }
  if (behindMs < OLDER_CLOCK_MS) return;
  warn(
    { file, behindMs },
    'the clock is behind the time when the file was last used: ready elements may be withheld, and leases last longer, by the difference',
  );
}

/** Handles messages of the main thread for an open store. */
class StoreServer {
  readonly #port: MessagePort;
  readonly #store: Store;
  readonly #backup: Backup;
  readonly #warn: Warn;
  #hasFailed = false;

  constructor(port: MessagePort, store: Store, backup: Backup, warn: Warn) {
    this.#port = port;
    this.#store = store;
    this.#backup = backup;
    this.#warn = warn;
  }

  onMessage(first: ToWorker): void {
    const batches: Batch[] = [];
    let message: ToWorker | undefined = first;
    while (message?.kind === 'batch') {
      batches.push(message);
      // Messages that arrived during the previous transaction are already waiting.
      message = receiveMessageOnPort(this.#port)?.message;
    }
    if (batches.length > 0 && !this.#hasFailed) this.#run(batches);
    if (message?.kind === 'backup') void this.#backUp(message.file);
    if (message?.kind === 'close' && !this.#hasFailed) void this.#close();
  }

  #post(message: FromWorker, transfer: ArrayBuffer[] = []): void {
    this.#port.postMessage(message, transfer);
  }

  /** Runs the batches in one transaction, with one fsync. */
  #run(batches: readonly Batch[]): void {
    const store = this.#store;
    try {
      const transfer: ArrayBuffer[] = [];
      const bytes = batches.reduce((sum, batch) => sum + batch.bytes, 0);
      store.space?.check(bytes, batches[0]?.now ?? store.now);
      const parts = batches.map(wholeOf);
      const early = earlyCalls(store, batches);
      let areEarlySent = false;
      runBatches(store, parts, () => {
        if (early === null) return;
        const replies = parts.map(({ result }, part) =>
          replyOf(result, transfer, (call) => early[part]?.[call] === true),
        );
        this.#post({ kind: 'earlyReplies', replies }, transfer.splice(0));
        areEarlySent = true;
      });
      const replies = parts.map(({ result }, part) =>
        areEarlySent
          ? replyOf(result, null, (call) => early?.[part]?.[call] === false)
          : replyOf(result, transfer),
      );
      this.#post({ kind: 'replies', replies, affected: [...store.affected] }, transfer);
      store.affected.clear();
      store.mayBeDurable = false;
      this.#checkpoint(bytes);
    } catch (error) {
      this.#fail(error, batches.length);
    }
  }

  /** Follows the replies, so that no caller waits for it. On a full disk the log grows until there is space. */
  #checkpoint(bytes: number): void {
    const store = this.#store;
    try {
      store.checkpoint(bytes);
    } catch (error) {
      if (!isFull(error)) throw error;
      store.space?.releaseBallast();
    }
  }

  /**
   * Reports once that the file can no longer be relied on, then ends the thread without another message. A batch that
   * is already waiting in the port must not run: its callers get an error that says it did not.
   */
  #fail(error: unknown, batches: number): void {
    this.#hasFailed = true;
    const uncertain = this.#store.mayBeDurable ? batches : 0;
    this.#post({ kind: 'failed', message: messageOf(error), uncertain });
    this.#port.close();
    void this.#backup.stop();
  }

  async #backUp(file: string): Promise<void> {
    try {
      this.#post({ kind: 'backedUp', bytes: await this.#backup.run(file) });
    } catch (error) {
      this.#post({ kind: 'backupFailed', ...rejectionOf(error, true) });
    }
  }

  /** Checkpoints the log before closing the file. If the disk is full, the log stays. */
  async #close(): Promise<void> {
    await this.#backup.stop();
    this.#store.requestCheckpoint();
    try {
      this.#store.checkpoint(0);
    } catch (error) {
      this.#warn({ err: messageOf(error) }, 'the last checkpoint failed; the next start repeats it');
    }
    this.#store.close();
    this.#port.close();
  }
}

const NO_BODIES = { small: new Uint8Array(0), large: [] };

/**
 * @param transfer receives the buffers of the bodies; null: these calls return none
 * @param isIncluded whether the message has the result of a call; not given: it has all
 */
function replyOf(
  { results, rejections, bodies }: Part['result'],
  transfer: ArrayBuffer[] | null,
  isIncluded?: (call: number) => boolean,
): Reply {
  return {
    results: isIncluded ? results.map((result, call) => (isIncluded(call) ? result : undefined)) : results,
    rejections,
    bodies: transfer === null ? NO_BODIES : bodies.pack(true, transfer),
  };
}
