import { QuaysideError } from '../model/errors.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * What a selector may cost (reliability, section 1). All of it is a parameter, so that a test can make each
 * limit the one that is met first; the values below are the ones in use.
 */
export interface SandboxLimits {
  /** Heap of one VM, bytes. */
  readonly memoryBytes: number;
  /** Native stack of one VM, bytes. */
  readonly stackBytes: number;
  /** Compiling the selectors of one exchange may take this long, ms of processor time. */
  readonly compileMs: number;
  /** One call into a VM, for up to `batch` elements, may take this long, ms of processor time. */
  readonly callMs: number;
  /** A step that runs for this long without a sign of life loses its worker thread, ms of wall time. */
  readonly watchdogMs: number;
  /**
   * What each mebibyte of body adds to the two budgets above, ms: reading it in and writing it out is the
   * sandbox's own work. Measured 120 to 160 ms a mebibyte for a parse and a stringify inside the VM.
   */
  readonly bodyMsPerMiB: number;
  /** The most that bodies can add to one call, ms. */
  readonly bodyMsAtMost: number;
  /** Elements asked in one call. */
  readonly batch: number;
  /** Bytes of bodies sent along with one call, where that is more than one element. */
  readonly batchBodyBytes: number;
  /** The longest body that a selector may write, bytes. */
  readonly bodyBytes: number;
  /** VMs kept alive; the least recently used goes first. An idle one holds about 1.5 MiB. */
  readonly liveVms: number;
  /** Linear memory of all VMs kept alive, bytes: WebAssembly memory grows and never shrinks. */
  readonly liveBytes: number;
  /** Elements in a row that overrun a limit before the rest of a batch is given back unasked. */
  readonly strikes: number;
}

export const DEFAULT_LIMITS: SandboxLimits = {
  memoryBytes: 16 * 1024 * 1024,
  stackBytes: 256 * 1024,
  compileMs: 100,
  callMs: 50,
  watchdogMs: 250,
  bodyMsPerMiB: 400,
  bodyMsAtMost: 1000,
  batch: 100,
  batchBodyBytes: 64 * 1024,
  bodyBytes: 1024 * 1024,
  liveVms: 64,
  liveBytes: 256 * 1024 * 1024,
  strikes: 3,
};

/** Characters of JSON that are always converted in no time: the slowest kind takes 5 ms. */
export const QUICK_TEXT = 1024;

/** What bodies of this size, written out by up to `writers` destinations, add to a budget, ms. */
export function bodyAllowanceMs(limits: SandboxLimits, bytes: number, writers: number): number {
  return Math.min(limits.bodyMsAtMost, (bytes / 2 ** 20) * limits.bodyMsPerMiB * (1 + writers));
}

/** Why a selector cannot be used. Line and column count from 1, and are null if nothing points there. */
export interface SourceProblem {
  readonly message: string;
  readonly line: number | null;
  readonly column: number | null;
}

/** Checks and dry runs in progress, at most: each may keep the one selector worker for a second. */
const MAX_OF_USER = 2;
const MAX_IN_ALL = 16;
/** Creates of one user that wait for their check, at most. */
const MAX_WAITING_OF_USER = 32;
/** Calls of a user that wait when a further dry run is rejected. Fewer than for creates: a dry run holds a body of up to a mebibyte. */
export const MAX_WAITING_DRY_RUNS = 2;

/**
 * Bounds the checks and dry runs of selectors that are in progress, by user. They share the selector worker with the
 * exchanges, and hold what was sent until they end. Rejections are `overloaded`.
 */
export function createCheckLimit(): ConcurrencyLimit {
  return new ConcurrencyLimit({
    perKey: MAX_OF_USER,
    total: MAX_IN_ALL,
    maxWaiting: MAX_WAITING_OF_USER,
    rejection: () =>
      new QuaysideError(
        'overloaded',
        `Too many selectors are being checked or tried: at most ${MAX_OF_USER} requests of a user at once, and ${MAX_IN_ALL} in all.`,
        { retryAfterMs: 1000 },
      ),
  });
}
