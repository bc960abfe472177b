import { QuaysideError } from '../model/errors.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * Resource limits of selectors: see ADR 4. Each limit is a parameter, so that a test can make it the first to be
 * reached. Production uses `DEFAULT_LIMITS`.
 */
export interface SandboxLimits {
  /** Heap of one VM, bytes. */
  readonly memoryBytes: number;
  /** Native stack of one VM, bytes. */
  readonly stackBytes: number;
  /**
   * Processor time to prepare the selectors of one exchange, ms. A check may use it twice: for parsing and starting a
   * VM, and for compiling in it. The first call of an exchange may use it once for all of this.
   */
  readonly compileMs: number;
  /** Processor time of one call into a VM, for up to `batch` elements, ms. */
  readonly callMs: number;
  /**
   * Wall time without progress, ms, after which the worker thread is replaced, if it was running for at least 40 % of
   * that time. Otherwise the machine was busy with other work, and the thread is replaced after four times as long.
   */
  readonly watchdogMs: number;
  /**
   * Time that each mebibyte of body adds to `callMs` and `watchdogMs`, ms, because conversion is the sandbox's own
   * work. Measured: 120 to 160 ms per mebibyte for parsing and serializing in the VM.
   */
  readonly bodyMsPerMiB: number;
  /** Maximum time that bodies add to one call, ms. */
  readonly maxBodyMs: number;
  /** Maximum elements in one call. */
  readonly batch: number;
  /** Maximum bytes of bodies in one call; a single larger element is sent alone. */
  readonly batchBodyBytes: number;
  /** Maximum body that a selector may write, bytes. */
  readonly bodyBytes: number;
  /** Maximum bytes of bodies that the selectors of all destinations together may write for one element. */
  readonly elementBytes: number;
  /** Bytes written by selectors after which a call, and a `select`, ends with the current element. */
  readonly writtenBytes: number;
  /** Maximum live VMs; the least recently used is closed first. An idle VM takes about 1.5 MiB. */
  readonly liveVms: number;
  /** Maximum linear memory of all live VMs, bytes: WebAssembly memory grows and never shrinks. */
  readonly liveBytes: number;
  /** Consecutive elements that overrun before the rest of a batch is `not-evaluated`. */
  readonly maxOverrunsInARow: number;
}

export const DEFAULT_LIMITS: SandboxLimits = {
  memoryBytes: 16 * 1024 * 1024,
  stackBytes: 256 * 1024,
  compileMs: 100,
  callMs: 50,
  watchdogMs: 250,
  bodyMsPerMiB: 400,
  maxBodyMs: 1000,
  batch: 128,
  batchBodyBytes: 64 * 1024,
  bodyBytes: 1024 * 1024,
  elementBytes: 16 * 1024 * 1024,
  writtenBytes: 4 * 1024 * 1024,
  liveVms: 64,
  liveBytes: 256 * 1024 * 1024,
  maxOverrunsInARow: 3,
};

/** JSON of at most this many characters is converted without being timed: the slowest kind takes 5 ms. */
export const QUICK_TEXT = 1024;

/** The time that bodies of this size, serialized by up to `writers` destinations, add to a budget, ms. */
export function bodyAllowanceMs(limits: SandboxLimits, bytes: number, writers: number): number {
  return Math.min(limits.maxBodyMs, (bytes / 2 ** 20) * limits.bodyMsPerMiB * (1 + writers));
}

/** Why a selector is invalid. Line and column start at 1, and are null if the position is unknown. */
export interface SourceProblem {
  readonly message: string;
  readonly line: number | null;
  readonly column: number | null;
}

/** Maximum concurrent checks and dry runs: each may occupy the only selector worker for a second. */
const MAX_PER_USER = 2;
const MAX_TOTAL = 16;
/** Maximum create requests of one user that wait for their check. */
const MAX_WAITING_PER_USER = 32;
/**
 * Waiting requests of a user at which further dry runs are rejected. Lower than for creates, because a dry run holds a
 * body of up to a mebibyte.
 */
export const MAX_WAITING_DRY_RUNS = 2;

/**
 * Limits the concurrent checks and dry runs of selectors per user. They share the selector worker with the exchanges,
 * and hold their request in memory until they end. Rejections are `overloaded`.
 */
export function createCheckLimit(): ConcurrencyLimit {
  return new ConcurrencyLimit({
    perKey: MAX_PER_USER,
    total: MAX_TOTAL,
    maxWaiting: MAX_WAITING_PER_USER,
    rejection: () =>
      new QuaysideError(
        'overloaded',
        `Too many selectors are being checked or tried: at most ${MAX_PER_USER} requests of a user at once, and ${MAX_TOTAL} in all.`,
        { retryAfterMs: 1000 },
      ),
  });
}
