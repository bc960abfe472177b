import type { Snapshot } from 'quickjs-wasi';
import type { SandboxLimits, SourceProblem } from './limits.ts';
import type { WasmModule } from './worker-handle.ts';

/**
 * The messages between the main thread and the selector worker. They contain strings and packed buffers instead of
 * object trees: cloning a tree of a hundred elements costs the main thread more than running their selectors costs the
 * worker.
 */

/** The start parameters of the worker. */
export interface WorkerSetup {
  readonly wasm: WasmModule;
  readonly limits: SandboxLimits;
  /** Int32 slots: see {@link PROGRESS}. Shared memory, so that the watchdog does not depend on messages. */
  readonly progress: SharedArrayBuffer;
  /** The image that an earlier worker created; null for the first worker. */
  readonly image: VmImage | null;
}

/**
 * A memory snapshot of a hardened VM that contains the guest. Freezing some six hundred objects takes at least 16 ms,
 * copying this memory 2 ms, so every VM starts as a copy. The memory is shared between workers.
 */
export interface VmImage {
  readonly snapshot: Snapshot;
  /** Handles of `Guest.add` and `Guest.evaluate` in the snapshot. */
  readonly add: number;
  readonly evaluate: number;
}

/** Slots of `WorkerSetup.progress`. */
export const PROGRESS = {
  /** `seq` of the last finished request. */
  finished: 0,
  /** Incremented with each step: a request started, a VM started, its selectors compiled. */
  steps: 1,
  /** Processor time of the worker's thread at its last step, ms. */
  cpuMs: 2,
  /** 1 while the VM parses or serializes a payload as JSON, otherwise 0. */
  inPayload: 3,
  length: 4,
} as const;

/** The payload's type in a selector, which depends on content type and encoding. */
export const PAYLOAD_KINDS = { json: 0, utf8: 1, latin1: 2, bytes: 3 } as const;
export type PayloadKind = (typeof PAYLOAD_KINDS)[keyof typeof PAYLOAD_KINDS];

/** The selector of a destination that stores no maturity. */
export interface TimelessSelector {
  readonly source: string;
  /** Thrown for a selector that sets a maturity in the future. */
  readonly lateError: string;
}

/** The destinations of an exchange in order: a selector, or null to accept every element. */
export type ProgramSources = readonly (string | TimelessSelector | null)[];

export type WorkerRequest =
  /** Compiles selectors in a temporary VM. */
  | { readonly kind: 'compile'; readonly seq: number; readonly sources: readonly string[] }
  /**
   * Runs the selectors of a program for some elements. `sources` is set only in the first call of a program to this
   * worker.
   */
  | {
      readonly kind: 'call';
      readonly seq: number;
      readonly program: number;
      readonly sources: ProgramSources | null;
      /** Whether to return console output. */
      readonly logs: boolean;
      readonly elements: PackedElements;
    }
  /** Forgets a program and closes its VM. There is no answer. */
  | { readonly kind: 'close'; readonly program: number };

/** A header of the element at this index; each character of its value represents a byte. */
export type NotUtf8Header = readonly [element: number, name: string, value: string];

export interface PackedElements {
  readonly count: number;
  /** JSON: `[{header: value}, …]`. The values are decoded text. */
  readonly headers: string;
  /** JSON: id, tries, mature in seconds and payload kind of each element, flat. Parsed when a selector reads one. */
  readonly fields: string;
  /** Headers that are not valid UTF-8, whose bytes must be preserved unless a selector changes them. Usually empty. */
  readonly notUtf8: readonly NotUtf8Header[];
  /** Null until a selector of the program has used a payload. */
  readonly bodies: SelectorBodies | null;
}

/** Concatenated bodies; body i starts where body i-1 ends. */
interface SelectorBodies {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly ends: readonly number[];
  readonly kinds: readonly PayloadKind[];
}

export type WorkerMessage =
  | { readonly kind: 'ready'; readonly image: VmImage }
  /** `ms` is the processor time of the request. */
  | { readonly kind: 'answer'; readonly seq: number; readonly ms: number; readonly answer: WorkerAnswer };

export type WorkerAnswer = Compiled | Called | NeedsBodies | Overrun;

interface Compiled {
  readonly outcome: 'compiled';
  /** Per selector; null if it compiles. */
  readonly problems: readonly (SourceProblem | null)[];
}

export interface Called {
  readonly outcome: 'called';
  /** Number of evaluated elements: a call ends early instead of exhausting its budget. */
  readonly count: number;
  /** One {@link VERDICT_CODES} character per element and destination, grouped by element. */
  readonly codes: string;
  /** Details for some codes, in ascending order of their position in `codes`. */
  readonly extras: readonly VerdictExtra[];
  /**
   * Changes by selectors, in ascending order of their position in `codes`. A change also applies to the element's later
   * destinations.
   */
  readonly changes: readonly Change[];
  /** Concatenated changed bodies. */
  readonly bodies: Uint8Array<ArrayBuffer>;
  /** Console output, if requested. */
  readonly logs: readonly LogLine[];
}

/** One line of console output. `at` is the selector's position in `Called.codes`. */
export type LogLine = readonly [at: number, text: string];

export const VERDICT_CODES = { no: '0', yes: '1', override: '2', error: '3' } as const;

/**
 * Position in `codes`, error message, maturity (Unix seconds), delay (seconds), tries, and position of the error;
 * absent values are null.
 */
export type VerdictExtra = readonly [
  at: number,
  error: string | null,
  mature: number | null,
  delay: number | null,
  tries: number | null,
  place: SourcePosition | null,
];

/** Line and column, from 1. The guest returns positions in the script, the worker positions in the selector. */
export type SourcePosition = readonly [line: number, column: number];

/** `headers` is null if unchanged. `end` is the end of the body in `Called.bodies`; null if the body is unchanged. */
type Change = readonly [at: number, headers: readonly string[] | null, end: number | null];

/** A selector used a payload, but the call had no bodies. It had no effect, and must be repeated with bodies. */
interface NeedsBodies {
  readonly outcome: 'needs-bodies';
}

/** The call exceeded a limit. Its results are discarded, and the VM has been closed. */
export interface Overrun {
  readonly outcome: 'overrun';
  readonly cause: OverrunCause;
  readonly error: string;
  /** Whether the time was spent on converting a payload, so that the selector is not to blame. */
  readonly inPayload: boolean;
  /** As in `Called`, until the call was ended. */
  readonly logs?: readonly LogLine[];
}

/**
 * The cause of an overrun. `deadline`: the VM was interrupted, or returned too late. `watchdog`: the worker was
 * replaced. `memory`: the VM's heap was full. `crash`: the VM or the worker failed.
 */
export type OverrunCause = 'deadline' | 'watchdog' | 'memory' | 'crash';
