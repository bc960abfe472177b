import { Worker } from 'node:worker_threads';
import type { EngineLog } from '../../engine/engine.ts';
import { type ErrorCode, QuaysideError } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';
import { MessageReader, type MessageWriter, type Packed } from './message.ts';
import { ANSWERED, type Operation, operationNumber } from './operations.ts';
import { PendingBatch } from './pending-batch.ts';
import type { SteadyTime } from './steady-time.ts';
import type { FromWorker, ToWorker } from './thread.ts';
import type { WorkerData } from './worker/main.ts';

/**
 * Batches at the worker at once. Whatever waits there when it is done with a transaction shares the next one, so
 * that more of them cost no more fsyncs. Inserts of 64 connections: 5,200/s with two of them, 8,600/s with eight
 * where a sync takes 3 ms; 13,300/s and 16,000/s where it takes 1 ms.
 */
const IN_FLIGHT = 8;
/** Bodies at the worker at once, bytes, about: no further batch leaves beyond that. */
const IN_FLIGHT_BYTES = 16 * 1024 * 1024;

/**
 * Names that have a handle at once: as many as a namespace has queues by default. Then all get new ones as they are
 * used, which costs about what the first use did. Names come from requests, those of queues that do not exist too, so
 * neither side may keep them all.
 */
const MAX_HANDLES = 10_000;

/** A thread that ended without a word may have stored any batch that it had. */
const ALL = IN_FLIGHT;

/** Operations that change nothing: if the worker dies meanwhile, their callers lose only an answer. */
const READS: ReadonlySet<Operation> = new Set([
  'queues',
  'browse',
  'sizes',
  'nextDueAt',
  'usage',
  'definitionGet',
  'definitionList',
  'statsRead',
  'ping',
]);

/**
 * The main side of the worker thread: gathers calls into batches and hands the answers out.
 *
 * What is called in one turn of the event loop leaves together at its end; what is called while
 * {@link IN_FLIGHT} batches, or {@link IN_FLIGHT_BYTES} of bodies, are under way gathers until some are answered. So
 * what one transaction holds grows with the load and with the disk's slowness, and a lone call waits for nothing.
 * Calls take effect in the order in which they are made.
 */
export class Client {
  readonly #time: SteadyTime;
  readonly #log: EngineLog;
  readonly #data: Omit<WorkerData, 'now'>;
  readonly #waiting: PendingBatch[] = [];
  readonly #inFlight: PendingBatch[] = [];
  #inFlightBytes = 0;
  #handles = new Map<string, number>();
  /** The same by object: callers keep one per queue, and making its name up again costs more than looking here. */
  #handleOf = new WeakMap<QueueKey, number>();
  /** No handle is given twice. Batches that are made from now on name none below the first. */
  #firstHandle = 0;
  #nextHandle = 0;
  readonly #failed = Promise.withResolvers<Error>();
  readonly #exited = Promise.withResolvers<void>();
  /** A backup that runs. */
  #backup: PromiseWithResolvers<number> | null = null;
  #newNames: string[] = [];
  #worker: Worker | null = null;
  #opening: Promise<void> | null = null;
  #isOpen = false;
  #flushPlanned = false;
  #closing = false;
  /** Why no call is taken any more; null while calls are. */
  #down: QuaysideError | null = null;

  constructor(time: SteadyTime, log: EngineLog, data: Omit<WorkerData, 'now'>) {
    this.#time = time;
    this.#log = log;
    this.#data = data;
  }

  /** Resolves, once, when the store broke down. */
  get failed(): Promise<Error> {
    return this.#failed.promise;
  }

  /** Starts the thread. Rejects, with the reason in words for the operator, if the file cannot be served. */
  open(): Promise<void> {
    this.#opening ??= this.#startThread();
    return this.#opening;
  }

  #startThread(): Promise<void> {
    if (this.#down !== null) return Promise.reject(this.#down);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const workerData: WorkerData = { ...this.#data, now: this.#time.now() };
    const worker = new Worker(workerModule(), { workerData, name: 'quayside-sqlite' });
    this.#worker = worker;
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'opened') {
        this.#isOpen = true;
        this.#planFlush();
        resolve();
      } else if (message.kind === 'refused') {
        reject(new Error(message.message));
      } else {
        this.#receive(message);
      }
    });
    worker.on('error', (error) => {
      reject(error);
      this.#breakDown(error.message, ALL);
    });
    worker.on('exit', () => {
      reject(new Error('The storage thread ended while it was opening the file.'));
      this.#exited.resolve();
      if (!this.#closing) this.#breakDown('its thread ended', ALL);
    });
    return promise;
  }

  /**
   * Begins a call; the caller then writes the arguments, in the order that the verb reads them, and ends
   * it with `end` in the same turn.
   */
  begin(operation: Operation): MessageWriter {
    let batch = this.#waiting.at(-1);
    if (batch === undefined || batch.isFull) {
      batch = new PendingBatch(this.#firstHandle);
      this.#waiting.push(batch);
    }
    return batch.begin(operationNumber(operation));
  }

  /** Ends the call that `begin` began. `read` is given the answer. Rejects with a QuaysideError. */
  end<T>(operation: Operation, read: (reply: MessageReader) => T): Promise<T> {
    const batch = this.#waiting.at(-1);
    return new Promise((resolve, reject) => {
      if (batch === undefined) throw new Error('end without begin');
      batch.calls.push({
        answered: (reply) => resolve(read(reply)),
        failed: reject,
        changes: !READS.has(operation),
      });
      if (this.#down !== null) this.#rejectWaiting(this.#down);
      else this.#planFlush();
    });
  }

  /**
   * The number by which the worker knows a queue, for a call that is being written: it may be forgotten after that.
   * The name crosses with the first batch that leaves.
   */
  handle(queue: QueueKey): number {
    const remembered = this.#handleOf.get(queue);
    if (remembered !== undefined) return remembered;
    const handle = this.#handleByName(queue);
    this.#handleOf.set(queue, handle);
    return handle;
  }

  #handleByName(queue: QueueKey): number {
    const key = `${queue.ns}\0${queue.name}`;
    const known = this.#handles.get(key);
    if (known !== undefined) return known;
    if (this.#handles.size >= MAX_HANDLES) this.#forgetHandles();
    const handle = this.#nextHandle++;
    this.#handles.set(key, handle);
    this.#newNames.push(queue.ns, queue.name);
    return handle;
  }

  /** The worker forgets them after the last batch that may name one: see `PendingBatch.firstHandle`. */
  #forgetHandles(): void {
    this.#handles = new Map();
    this.#handleOf = new WeakMap();
    this.#firstHandle = this.#nextHandle;
  }

  /** Copies the database, as it is when it is done, into a new file. Returns its bytes. Rejects with a QuaysideError. */
  backUp(file: string): Promise<number> {
    const error = this.#down ?? (this.#isOpen ? null : this.#unavailable('is not open'));
    if (error !== null) return Promise.reject(error);
    if (this.#backup !== null) return Promise.reject(this.#unavailable('is being backed up'));
    this.#backup = Promise.withResolvers();
    this.#worker?.postMessage({ kind: 'backup', file } satisfies ToWorker);
    return this.#backup.promise;
  }

  /** Lets the calls made before finish, refuses further ones, closes the file and ends the thread. */
  async close(): Promise<void> {
    this.#closing = true;
    await this.#opening?.catch(() => {});
    // Calls keep their order, so once this one is answered all before it are.
    if (this.#isOpen && this.#down === null) {
      this.begin('ping');
      await this.end('ping', () => {}).catch(() => {});
    }
    this.#down ??= this.#unavailable('is closed');
    this.#rejectWaiting(this.#down);
    if (this.#worker === null) return;
    this.#worker.postMessage({ kind: 'close' } satisfies ToWorker);
    await this.#exited.promise;
  }

  #planFlush(): void {
    if (!this.#isOpen || this.#flushPlanned || !this.#mayLeave) return;
    this.#flushPlanned = true;
    setImmediate(() => {
      this.#flushPlanned = false;
      this.#flush();
    });
  }

  get #mayLeave(): boolean {
    return this.#inFlight.length < IN_FLIGHT && this.#inFlightBytes < IN_FLIGHT_BYTES;
  }

  #flush(): void {
    while (this.#mayLeave) {
      const batch = this.#waiting.shift();
      if (batch === undefined) return;
      batch.dropUnfinished();
      if (batch.calls.length === 0) continue;
      this.#inFlight.push(batch);
      this.#inFlightBytes += batch.writer.byteLength;
      const { message, transfer } = batch.writer.pack(false);
      const names = this.#newNames;
      if (names.length > 0) this.#newNames = [];
      this.#worker?.postMessage(
        {
          kind: 'batch',
          now: this.#time.now(),
          names,
          firstHandle: batch.firstHandle,
          calls: batch.table,
          batch: message,
        } satisfies ToWorker,
        transfer,
      );
    }
  }

  #receive(message: FromWorker): void {
    if (message.kind === 'warn') this.#log.warn(message.fields, message.message);
    else if (message.kind === 'failed') this.#breakDown(message.message, message.uncertain);
    else if (message.kind === 'answers') this.#handOut(message.batches);
    else if (message.kind === 'backedUp') this.#takeBackup()?.resolve(message.bytes);
    else if (message.kind === 'backupFailed') {
      this.#takeBackup()?.reject(new QuaysideError(message.code, message.message));
    }
  }

  #takeBackup(): PromiseWithResolvers<number> | null {
    const backup = this.#backup;
    this.#backup = null;
    return backup;
  }

  #handOut(replies: readonly Packed[]): void {
    const answered = this.#inFlight.splice(0, replies.length);
    for (const { writer } of answered) this.#inFlightBytes -= writer.byteLength;
    this.#planFlush();
    try {
      for (const [i, reply] of replies.entries()) tellCallers(answered[i], new MessageReader(reply));
    } catch (error) {
      // Where one answer cannot be read, nobody knows where the next begins.
      this.#inFlight.unshift(...answered);
      this.#breakDown(`an answer cannot be read: ${error}`, ALL);
    }
  }

  /**
   * The store is lost.
   * @param uncertain how many of the batches that the worker had may have become durable
   */
  #breakDown(why: string, uncertain: number): void {
    if (this.#down !== null) return;
    const error = this.#unavailable(`failed: ${why}`);
    this.#down = error;
    const unknown = new QuaysideError('outcome-unknown', error.message);
    // To fail a call that was answered already does nothing.
    for (const [index, batch] of this.#inFlight.splice(0).entries()) {
      for (const call of batch.calls) call.failed(index < uncertain && call.changes ? unknown : error);
    }
    this.#rejectWaiting(error);
    this.#takeBackup()?.reject(error);
    this.#failed.resolve(error);
  }

  #rejectWaiting(error: QuaysideError): void {
    for (const batch of this.#waiting.splice(0)) for (const call of batch.calls) call.failed(error);
  }

  #unavailable(what: string): QuaysideError {
    return new QuaysideError('storage-unavailable', `The SQLite store ${this.#data.file} ${what}.`);
  }
}

function tellCallers(batch: PendingBatch | undefined, reply: MessageReader): void {
  for (const call of batch?.calls ?? []) {
    if (reply.number() === ANSWERED) call.answered(reply);
    else call.failed(new QuaysideError(reply.text() as ErrorCode, reply.text()));
  }
}

/** Beside this module, as TypeScript in the repository and as JavaScript where the package is installed. */
function workerModule(): URL {
  return new URL(import.meta.url.endsWith('.ts') ? './worker/main.ts' : './worker/main.js', import.meta.url);
}
