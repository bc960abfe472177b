import { Worker } from 'node:worker_threads';
import { type StartThread, TestThread, type WorkerData } from '../../src/engines/sqlite/settings.ts';
import type { TransactionPoint } from '../../src/engines/sqlite/worker/store.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';

const THREAD = new URL('./sqlite-faulty-thread.ts', import.meta.url);

const POINTS: readonly TransactionPoint[] = ['begin', 'commit', 'committed', 'checkpoint'];

type Cells = Int32Array<SharedArrayBuffer>;

/** Indexes of the shared memory's cells. */
const POINT = 0;
const COUNTDOWN = 1;
const CODE = 2;
const FROZEN = 3;
const RELEASED = 4;

/** How a frozen worker is released. */
const INTO_FAILURE = 1;
const UNHARMED = 2;

/** Used instead of an error code: block until released, then fail as after an I/O error. */
const FREEZE = -1;
const SQLITE_IOERR = 10;

/** Data passed to the thread at its start. */
export interface FaultyThreadData {
  readonly data: WorkerData;
  readonly cells: Cells;
}

/**
 * Injects faults: through shared memory, a test tells the worker at which transaction, and where in it, to fail with
 * which SQLite error, or to block while the test copies the files as `kill -9` would leave them.
 */
export class Faults {
  readonly thread: TestThread;
  readonly #cells = new Int32Array(new SharedArrayBuffer(5 * Int32Array.BYTES_PER_ELEMENT));

  /** @param clock of the deadlines of calls */
  constructor(clock: Clock = systemClock) {
    const start: StartThread = (data) => {
      const workerData: FaultyThreadData = { data, cells: this.#cells };
      // Without what a run imports before its tests.
      return new Worker(THREAD, { workerData, execArgv: [] });
    };
    this.thread = new TestThread(start, clock);
  }

  /** Throws SQLite's error `code` once, when `point` is reached for the `after`-th time from now (1: the next time). */
  arm(point: TransactionPoint, code: number, after = 1): void {
    Atomics.store(this.#cells, CODE, code);
    Atomics.store(this.#cells, COUNTDOWN, after);
    Atomics.store(this.#cells, POINT, POINTS.indexOf(point) + 1);
  }

  /** Blocks the worker the next time that it reaches `point`. Resolves when it does. */
  async freeze(point: TransactionPoint): Promise<void> {
    Atomics.store(this.#cells, FROZEN, 0);
    Atomics.store(this.#cells, RELEASED, 0);
    this.arm(point, FREEZE);
    const wait = Atomics.waitAsync(this.#cells, FROZEN, 0);
    if (wait.async) await wait.value;
  }

  /** Lets a frozen worker continue and fail. */
  release(): void {
    this.#release(INTO_FAILURE);
  }

  /** Lets a frozen worker continue as if nothing had happened. */
  resume(): void {
    this.#release(UNHARMED);
  }

  #release(how: number): void {
    Atomics.store(this.#cells, RELEASED, how);
    Atomics.notify(this.#cells, RELEASED);
  }

  disarm(): void {
    Atomics.store(this.#cells, POINT, 0);
  }
}

/** Throws or blocks if a test has armed this point of the transaction. */
export function failAt(cells: Cells, point: TransactionPoint): void {
  if (Atomics.load(cells, POINT) !== POINTS.indexOf(point) + 1) return;
  if (Atomics.sub(cells, COUNTDOWN, 1) !== 1) return;
  Atomics.store(cells, POINT, 0);
  const code = Atomics.load(cells, CODE);
  if (code === FREEZE) {
    Atomics.store(cells, FROZEN, 1);
    Atomics.notify(cells, FROZEN);
    Atomics.wait(cells, RELEASED, 0);
    if (Atomics.load(cells, RELEASED) === UNHARMED) return;
  }
  throw Object.assign(new Error(`injected fault at ${point}`), {
    errcode: code === FREEZE ? SQLITE_IOERR : code,
  });
}
