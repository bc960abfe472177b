import { QuaysideError } from '../model/errors.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/**
 * What a selector may cost: see ADR 4. Each limit is a parameter, so that a test can make it the one that is met first.
 * The values in use are `DEFAULT_LIMITS`.
 */
export interface SandboxLimits {
  /** Heap of one VM, bytes. */
  readonly memoryBytes: number;
  /** Native stack of one VM, bytes. */
  readonly stackBytes: number;
  /**
   * Processor time to make the selectors of one exchange ready, ms. A check has it twice: once for parsing them and
   * starting a VM, and once for compiling them in it. The first call of an exchange has it once for all of this.
   */
  readonly compileMs: number;
  /** One call into a VM, for up to `batch` elements, may take this long, ms of processor time. */
  readonly callMs: number;
  /**
   * The worker thread is replaced after it made no progress for this long, ms of wall time, if it was running for at
   * least 40 % of that; else the machine was busy with something else, and it is replaced after four times as long.
   */
  readonly watchdogMs: number;
  /**
   * What each mebibyte of body adds to `callMs` and `watchdogMs`, ms: reading it in and writing it out is the
   * sandbox's own work. Measured 120 to 160 ms a mebibyte for a parse and a stringify inside the VM.
   */
  readonly bodyMsPerMiB: number;
  /** What bodies can add to one call at most, ms. */
  readonly maxBodyMs: number;
  /** Elements in one call, at most. */
  readonly batch: number;
  /** Bytes of bodies in one call, at most; one element is sent however large it is. */
  readonly batchBodyBytes: number;
  /** The longest body that a selector may write, bytes. */
  readonly bodyBytes: number;
  /** Bytes of the bodies that selectors may write for one element, those of all destinations together. */
  readonly elementBytes: number;
  /** Bytes that selectors may write before a call, and a `select`, ends with the element in progress. */
  readonly writtenBytes: number;
  /** VMs kept alive, at most; the least recently used is closed first. An idle one holds about 1.5 MiB. */
  readonly liveVms: number;
  /** Linear memory of all VMs kept alive, bytes, at most: WebAssembly memory grows and never shrinks. */
  readonly liveBytes: number;
  /** Elements in a row that overrun a limit before the rest of a batch is `not-evaluated`. */
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
  batch: 100,
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

/** What bodies of this size, written out by up to `writers` destinations, add to a budget, ms. */
export function bodyAllowanceMs(limits: SandboxLimits, bytes: number, writers: number): number {
  return Math.min(limits.maxBodyMs, (bytes / 2 ** 20) * limits.bodyMsPerMiB * (1 + writers));
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
/**
 * Calls of a user that wait when a further dry run is rejected. Fewer than for creates: a dry run holds a body of up to
 * a mebibyte.
 */
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
