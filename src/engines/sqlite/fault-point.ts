import { type Clock, systemClock } from '../../util/clock.ts';

/** Where a test can make the worker fail, in the life of one transaction. */
const FAULT_POINTS = ['begin', 'commit', 'committed', 'checkpoint'] as const;
export type FaultPoint = (typeof FAULT_POINTS)[number];

/** Cells of the shared memory. */
const POINT = 0;
const COUNTDOWN = 1;
const CODE = 2;
const FROZEN = 3;
const RELEASED = 4;

/** How a frozen worker is released. */
const INTO_FAILURE = 1;
const UNHARMED = 2;

/** In place of an error code: stop until released, then fail as after an I/O error. */
const FREEZE = -1;
const SQLITE_IOERR = 10;

/**
 * Failure as a parameter: shared memory through which a test tells the worker at which transaction, and
 * where in it, to fail with which SQLite error, or to stand still while the test copies the files as a
 * `kill -9` would leave them. Given as the engine's setting `faults`; the server never sets it.
 */
export class Faults {
  readonly memory: SharedArrayBuffer;
  /** By which calls expire. */
  readonly clock: Clock;
  readonly #cells: Int32Array<SharedArrayBuffer>;

  constructor(
    clock: Clock = systemClock,
    memory: SharedArrayBuffer = new SharedArrayBuffer(5 * Int32Array.BYTES_PER_ELEMENT),
  ) {
    this.clock = clock;
    this.memory = memory;
    this.#cells = new Int32Array(memory);
  }

  /** The `after`-th time from now (1: the next) that `point` is reached, SQLite's `code` is thrown, once. */
  arm(point: FaultPoint, code: number, after = 1): void {
    Atomics.store(this.#cells, CODE, code);
    Atomics.store(this.#cells, COUNTDOWN, after);
    Atomics.store(this.#cells, POINT, FAULT_POINTS.indexOf(point) + 1);
  }

  /** The next time that `point` is reached the worker stands still. Resolves when it does. */
  async freeze(point: FaultPoint): Promise<void> {
    Atomics.store(this.#cells, FROZEN, 0);
    Atomics.store(this.#cells, RELEASED, 0);
    this.arm(point, FREEZE);
    const wait = Atomics.waitAsync(this.#cells, FROZEN, 0);
    if (wait.async) await wait.value;
  }

  /** Lets a frozen worker go on, into its failure. */
  release(): void {
    this.#release(INTO_FAILURE);
  }

  /** Lets a frozen worker go on as if nothing had happened. */
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

  /** The worker's side: fails here if that was asked for. */
  reach(point: FaultPoint): void {
    const cells = this.#cells;
    if (Atomics.load(cells, POINT) !== FAULT_POINTS.indexOf(point) + 1) return;
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
}
