import { AffectedQueues } from '../../engine/affected-queues.ts';
import { PendingCall, PendingCalls, unavailable, unknownOutcome } from '../../engine/calls.ts';
import { StoreInUse, StoreUnavailable } from '../../engine/engine.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { EventLog } from '../../util/log.ts';
import {
  BodyWriter,
  type Call,
  type CallOf,
  type FromWorker,
  keyOf,
  type Operation,
  type Operations,
  type PackedBodies,
  type PassingState,
  READS,
  type Reply,
  type ToWorker,
} from './protocol.ts';
import type { StartThread, ThreadSetup, WorkerData } from './settings.ts';
import type { SteadyTime } from './steady-time.ts';

/**
 * Maximum batches in flight. All that wait in the worker when a transaction ends share the next one, so more batches
 * cost no more fsyncs. Inserts of 64 connections: 5,200/s with two batches and 8,600/s with eight if a sync takes 3 ms;
 * 13,300/s and 16,000/s if it takes 1 ms.
 */
const MAX_IN_FLIGHT = 8;
/**
 * Bytes of bodies in flight beyond which no further batch is sent; the last one may exceed it. So a transaction with an
 * insert of 16 MiB has at most 34 MiB. For a checkpoint it needs its size twice, in the log and in the file: less than
 * is free while inserts are accepted, with the ballast. Otherwise inserts could fill the disk so that no take succeeds.
 */
const MAX_IN_FLIGHT_BYTES = 16 * 1024 * 1024;
/** A batch with this many bytes of bodies, or this many calls, is full, which bounds the size of a message. */
const MAX_BATCH_BYTES = 2 * 1024 * 1024;
const MAX_BATCH_CALLS = 4096;

const TIMEOUT_MESSAGE = 'The store did not reply in time; nothing was changed.';
const NO_DEADLINE = Number.POSITIVE_INFINITY;
const NO_REPLY = new Error('No reply in time.');

/** A call of the worker. It is settled by its reply, by its deadline, or when the store fails. */
class WorkerCall<T = unknown> extends PendingCall {
  readonly request: Call;
  /** Whether it may change something: if its outcome is unknown, the error is `outcome-unknown`. */
  readonly isChange: boolean;
  readonly #batch: OutgoingBatch;
  readonly #read: (result: never, bodies: PackedBodies) => T;
  readonly #onLate: ((result: T) => void) | null;

  constructor(
    calls: PendingCalls,
    deadlineAt: number,
    batch: OutgoingBatch,
    request: Call,
    read: (result: never, bodies: PackedBodies) => T,
    onLate: ((result: T) => void) | null,
  ) {
    super(calls, deadlineAt);
    this.request = request;
    this.isChange = !READS.has(request[0]);
    this.#batch = batch;
    this.#read = read;
    this.#onLate = onLate;
  }

  reply(result: unknown, bodies: PackedBodies): void {
    if (this.isSettled && this.#onLate === null) return;
    const value = this.#read(result as never, bodies);
    if (this.isSettled) this.#onLate?.(value);
    else this.resolve(value);
  }

  expire(): void {
    const { isSent } = this.#batch;
    if (!isSent) this.#batch.remove(this as WorkerCall);
    this.reject(isSent && this.isChange ? unknownOutcome(NO_REPLY) : unavailable(TIMEOUT_MESSAGE, NO_REPLY));
  }
}

/** Calls that are sent together. */
class OutgoingBatch {
  readonly calls: WorkerCall[] = [];
  readonly bodies = new BodyWriter();
  isSent = false;

  get isFull(): boolean {
    return this.bodies.byteLength >= MAX_BATCH_BYTES || this.calls.length >= MAX_BATCH_CALLS;
  }

  /** Removes a call that expired before the batch was sent. The bodies are dropped with the last call. */
  remove(call: WorkerCall): void {
    this.calls.splice(this.calls.indexOf(call), 1);
    if (this.calls.length === 0) this.bodies.truncate();
  }
}

/**
 * The main thread's side of the worker: gathers calls into batches and settles them with the results.
 *
 * Calls of one turn of the event loop are sent together at its end. While {@link MAX_IN_FLIGHT} batches, or {@link
 * MAX_IN_FLIGHT_BYTES} of bodies, are in flight, further calls gather until a reply arrives. So transactions grow with
 * the load and with the latency of the disk, and a lone call is not delayed. Calls take effect in the order in which
 * they are made. Each is settled by its deadline, so a disk that hangs blocks no caller.
 */
export class WorkerClient {
  readonly affected = new AffectedQueues();
  readonly #start: StartThread;
  readonly #time: SteadyTime;
  readonly #log: EventLog;
  readonly #data: Omit<WorkerData, 'now'>;
  readonly #calls: PendingCalls;
  readonly #waiting: OutgoingBatch[] = [];
  readonly #inFlight: OutgoingBatch[] = [];
  /** Calls of `run` and `runSteps` in progress. `close` waits for them in addition to the calls made before it. */
  #backgroundCalls = 0;
  readonly #failed = Promise.withResolvers<Error>();
  readonly #exited = Promise.withResolvers<void>();
  /** The backup in progress. */
  #backup: PromiseWithResolvers<number> | null = null;
  #worker: ReturnType<StartThread> | null = null;
  #opening: Promise<void> | null = null;
  #isOpen = false;
  #isFlushPlanned = false;
  #isClosing = false;
  /** The error for all further calls; null while the store is in service. */
  #downError: QuaysideError | null = null;

  constructor({ start, clock }: ThreadSetup, time: SteadyTime, log: EventLog, data: Omit<WorkerData, 'now'>) {
    this.#start = start;
    this.#calls = new PendingCalls(clock);
    this.#time = time;
    this.#log = log;
    this.#data = data;
  }

  /** Resolves with the error if the store fails. */
  get failed(): Promise<Error> {
    return this.#failed.promise;
  }

  /**
   * Starts the thread.
   * @throws StoreInUse if another connection has the file open; StoreUnavailable if it cannot be opened now; Error for
   * the operator if it cannot be opened
   */
  open(): Promise<void> {
    this.#opening ??= this.#startThread();
    return this.#opening;
  }

  #startThread(): Promise<void> {
    if (this.#downError !== null) return Promise.reject(this.#downError);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const worker = this.#start({ ...this.#data, now: this.#time.now() });
    this.#worker = worker;
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'opened') {
        this.#isOpen = true;
        this.#planFlush();
        resolve();
      } else if (message.kind === 'rejected') {
        reject(startError(message.state, message.message));
      } else this.#onMessage(message);
    });
    // A thread that ended without a message may have committed any batch in flight.
    worker.on('error', (error) => {
      reject(error);
      this.#fail(error.message, MAX_IN_FLIGHT);
    });
    worker.on('exit', () => {
      reject(new Error('The storage thread ended while it was opening the file.'));
      this.#exited.resolve();
      if (!this.#isClosing) this.#fail('its thread ended', MAX_IN_FLIGHT);
    });
    return promise;
  }

  /**
   * Calls the worker. Rejects with a QuaysideError.
   * @param write returns the call, and adds its bodies to those of the batch. If it throws, the call is not made and
   * the error is thrown to the caller
   * @param read converts the result for the caller
   * @param onLate receives the result if it arrives after the deadline
   */
  call<O extends Operation, T>(
    write: (bodies: BodyWriter) => CallOf<O>,
    read: (result: ReturnType<Operations[O]>, bodies: PackedBodies) => T,
    onLate: ((result: T) => void) | null = null,
    deadlineAt = this.deadline(),
  ): Promise<T> {
    let batch = this.#waiting.at(-1);
    if (batch === undefined || batch.isFull) {
      batch = new OutgoingBatch();
      this.#waiting.push(batch);
    }
    const call = new WorkerCall(this.#calls, deadlineAt, batch, write(batch.bodies), read, onLate);
    batch.calls.push(call as WorkerCall);
    if (this.#downError !== null) this.#rejectWaiting(this.#downError);
    else {
      if (deadlineAt !== NO_DEADLINE) this.#calls.add(call);
      this.#planFlush();
    }
    return call.outcome as Promise<T>;
  }

  /** {@link call} for operations without bodies whose results need no conversion. */
  invoke<O extends Operation>(
    operation: O,
    ...args: Parameters<Operations[O]>
  ): Promise<ReturnType<Operations[O]>> {
    return this.call<O, ReturnType<Operations[O]>>(
      () => [operation, ...args],
      (result) => result,
    );
  }

  /** The deadline of a call made now. @param leftMs what is left of the caller's own deadline */
  deadline(leftMs?: number): number {
    return this.#calls.deadline(leftMs);
  }

  /** Calls an operation without waiting for it or giving it a deadline. If it fails, `failure` is logged. */
  run<O extends Operation>(write: (bodies: BodyWriter) => CallOf<O>, failure: string): void {
    this.runSteps(() => this.call(write, ignore, null, NO_DEADLINE)).catch((error) =>
      this.#log.warn({ err: error, file: this.#data.file }, failure),
    );
  }

  /** Runs an operation that consists of several calls in sequence. `close` waits until all of them are made. */
  async runSteps<T>(steps: () => Promise<T>): Promise<T> {
    this.#backgroundCalls += 1;
    try {
      return await steps();
    } finally {
      this.#backgroundCalls -= 1;
    }
  }

  /**
   * Copies the database, as of the end of the copy, into a new file; resolves to its bytes. Rejects with a
   * QuaysideError.
   */
  backUp(file: string): Promise<number> {
    const error = this.#downError ?? (this.#isOpen ? null : this.#unavailable('is not open'));
    if (error !== null) return Promise.reject(error);
    if (this.#backup !== null) return Promise.reject(this.#unavailable('is being backed up'));
    this.#backup = Promise.withResolvers();
    this.#worker?.postMessage({ kind: 'backup', file } satisfies ToWorker);
    return this.#backup.promise;
  }

  /** Waits for the calls made before, rejects further ones, closes the file and ends the thread. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await this.#opening?.catch(() => {});
    // Calls keep their order: once this one has its reply, so have all calls made before it. A late reply among those
    // may have caused further calls of `run`.
    while (this.#isOpen && this.#downError === null) {
      await this.call(() => ['ping'], ignore, null, NO_DEADLINE).catch(ignore);
      if (this.#backgroundCalls === 0) break;
    }
    this.#downError ??= this.#unavailable('is closed');
    this.#rejectWaiting(this.#downError);
    this.#calls.stop();
    if (this.#worker === null) return;
    this.#worker.postMessage({ kind: 'close' } satisfies ToWorker);
    await this.#exited.promise;
  }

  #planFlush(): void {
    if (!this.#isOpen || this.#isFlushPlanned || !this.#canSend) return;
    this.#isFlushPlanned = true;
    setImmediate(() => {
      this.#isFlushPlanned = false;
      this.#flush();
    });
  }

  get #canSend(): boolean {
    const bytes = this.#inFlight.reduce((sum, { bodies }) => sum + bodies.byteLength, 0);
    return this.#inFlight.length < MAX_IN_FLIGHT && bytes < MAX_IN_FLIGHT_BYTES;
  }

  #flush(): void {
    while (this.#canSend) {
      const batch = this.#waiting.shift();
      if (batch === undefined) return;
      // Every call of the batch threw in `write`, or expired.
      if (batch.calls.length === 0) continue;
      batch.isSent = true;
      this.#inFlight.push(batch);
      const transfer: ArrayBuffer[] = [];
      const packed = batch.bodies.pack(false, transfer);
      const calls = batch.calls.map(({ request }) => request);
      const now = this.#time.now();
      const { byteLength: bytes } = batch.bodies;
      const message = { kind: 'batch', now, calls, bodies: packed, bytes } satisfies ToWorker;
      this.#worker?.postMessage(message, transfer);
    }
  }

  #onMessage(message: FromWorker): void {
    if (message.kind === 'replies') {
      for (const name of message.affected) this.affected.note(keyOf(name));
      this.#settle(message.replies);
      this.#inFlight.splice(0, message.replies.length);
      this.#planFlush();
    } else if (message.kind === 'earlyReplies') this.#settle(message.replies);
    else if (message.kind === 'warn') this.#log.warn(message.fields, message.message);
    else if (message.kind === 'failed') this.#fail(message.message, message.uncertain);
    else if (message.kind === 'backedUp') this.#endBackup()?.resolve(message.bytes);
    else if (message.kind === 'backupFailed') {
      this.#endBackup()?.reject(new QuaysideError(message.code, message.message));
    }
  }

  #endBackup(): PromiseWithResolvers<number> | null {
    const backup = this.#backup;
    this.#backup = null;
    return backup;
  }

  /** @param replies to the first batches in `#inFlight` */
  #settle(replies: readonly Reply[]): void {
    try {
      for (const [i, reply] of replies.entries()) settle(this.#inFlight[i]?.calls ?? [], reply);
    } catch (error) {
      this.#fail(`a reply cannot be read: ${error}`, MAX_IN_FLIGHT);
    }
  }

  /**
   * Fails all calls, present and future.
   * @param uncertain how many batches in flight, from the first, may have become durable
   */
  #fail(reason: string, uncertain: number): void {
    if (this.#downError !== null) return;
    const error = this.#unavailable(`failed: ${reason}`);
    this.#downError = error;
    const unknown = new QuaysideError('outcome-unknown', error.message);
    for (const [index, { calls }] of this.#inFlight.splice(0).entries()) {
      for (const call of calls) call.reject(index < uncertain && call.isChange ? unknown : error);
    }
    this.#rejectWaiting(error);
    this.#endBackup()?.reject(error);
    this.#failed.resolve(error);
  }

  #rejectWaiting(error: QuaysideError): void {
    for (const { calls } of this.#waiting.splice(0)) for (const call of calls) call.reject(error);
  }

  #unavailable(problem: string): QuaysideError {
    return new QuaysideError('storage-unavailable', `The SQLite store ${this.#data.file} ${problem}.`);
  }
}

function ignore(): void {}

function settle(calls: readonly WorkerCall[], { results, rejections, bodies }: Reply): void {
  for (const [place, call] of calls.entries()) {
    const rejection = rejections?.get(place);
    if (results[place] === undefined) continue;
    if (rejection === undefined) call.reply(results[place], bodies);
    else call.reject(new QuaysideError(rejection.code, rejection.message));
  }
}

function startError(state: PassingState | null, message: string): Error {
  if (state === 'in-use') return new StoreInUse(message);
  return state === null ? new Error(message) : new StoreUnavailable(message);
}
