import type { Snapshot } from 'quickjs-wasi';
import type { WasmModule } from './dispatcher.ts';
import type { SandboxLimits, SourceProblem } from './limits.ts';

/**
 * The messages between the main thread and the selector worker. They hold strings and packed buffers rather than object
 * trees: cloning a tree of a hundred elements costs the main thread more than running their selectors costs the worker.
 */

/** What the worker is started with. */
export interface WorkerSetup {
  readonly wasm: WasmModule;
  readonly limits: SandboxLimits;
  /** Int32 slots: see {@link PROGRESS}. Shared, so that the watchdog need not wait for a message. */
  readonly progress: SharedArrayBuffer;
  /** What an earlier worker made; null for the first one. */
  readonly image: VmImage | null;
}

/**
 * A VM that is hardened and holds the guest, as memory. Freezing some six hundred objects takes 16 ms and
 * more; a copy of this memory takes two, so every VM begins as one. The memory is shared between workers.
 */
export interface VmImage {
  readonly snapshot: Snapshot;
  /** Where `Guest.add` and `Guest.evaluate` are in it. */
  readonly add: number;
  readonly evaluate: number;
}

/** Slots of `WorkerSetup.progress`. */
export const PROGRESS = {
  /** `seq` of the last request that the worker finished. */
  finished: 0,
  /** Grows with every step: a request started, a VM started, its selectors compiled. */
  steps: 1,
  /** Processor time of the worker's thread when it made its last step, ms. */
  cpuMs: 2,
  /** 1 while the VM reads or writes the payload of an element as JSON, else 0. */
  inPayload: 3,
  length: 4,
} as const;

/** What the payload of an element is in a selector, by its content type and encoding. */
export const PAYLOAD_KINDS = { json: 0, utf8: 1, latin1: 2, bytes: 3 } as const;
export type PayloadKind = (typeof PAYLOAD_KINDS)[keyof typeof PAYLOAD_KINDS];

/** The destinations of an exchange, in order: a selector's source, or null for "always". */
export type ProgramSources = readonly (string | null)[];

export type WorkerRequest =
  /** Compiles selectors in a VM of their own, which is then closed. */
  | { readonly kind: 'compile'; readonly seq: number; readonly sources: readonly string[] }
  /**
   * Runs the selectors of a program for some elements. `sources` is sent with the first call of a program to this
   * worker.
   */
  | {
      readonly kind: 'call';
      readonly seq: number;
      readonly program: number;
      readonly sources: ProgramSources | null;
      /** Whether what selectors write to `console` is wanted. */
      readonly logs: boolean;
      readonly elements: PackedElements;
    }
  /** Forgets a program and closes its VM. There is no answer. */
  | { readonly kind: 'close'; readonly program: number };

/** A header of the element of this index; each character of its value is a byte. */
export type NotUtf8Header = readonly [element: number, name: string, value: string];

export interface PackedElements {
  readonly count: number;
  /** JSON: `[[id, tries, mature in seconds, payload kind, {header: value}], …]`. Values are text. */
  readonly input: string;
  /**
   * Headers whose bytes are not UTF-8, so that they stay as they are if no selector changes them. Usually there are
   * none.
   */
  readonly notUtf8: readonly NotUtf8Header[];
  /** Null until some selector of the program has used a payload. */
  readonly bodies: SelectorBodies | null;
}

/** Bodies end to end; body i begins where body i-1 ends. */
interface SelectorBodies {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly ends: readonly number[];
  readonly kinds: readonly PayloadKind[];
}

export type WorkerMessage =
  | { readonly kind: 'ready'; readonly image: VmImage }
  /** `ms` is the processor time that the request took. */
  | { readonly kind: 'answer'; readonly seq: number; readonly ms: number; readonly answer: WorkerAnswer };

export type WorkerAnswer = Compiled | Called | NeedsBodies | Overrun;

interface Compiled {
  readonly outcome: 'compiled';
  /** Per selector; null if it compiles. */
  readonly problems: readonly (SourceProblem | null)[];
}

export interface Called {
  readonly outcome: 'called';
  /** For how many elements the selectors ran: the call stops early rather than use up its budget. */
  readonly count: number;
  /** One {@link VERDICT_CODES} character per element and destination, elements first. */
  readonly codes: string;
  /** For the codes that need more, by position in `codes`, ascending. */
  readonly extras: readonly VerdictExtra[];
  /** What selectors wrote, by position in `codes`, ascending; holds from there to the element's last. */
  readonly changes: readonly Change[];
  /** Changed bodies, end to end. */
  readonly bodies: Uint8Array<ArrayBuffer>;
  /** What selectors wrote to `console`, if it was wanted. */
  readonly logs: readonly LogLine[];
}

/**
 * What a selector wrote to `console`. `at` is its position in `Called.codes`, which counts on from element to element.
 */
export type LogLine = readonly [at: number, text: string];

export const VERDICT_CODES = { no: '0', yes: '1', override: '2', error: '3' } as const;

/**
 * Position, error text, maturity (unix seconds), delay (seconds), tries, and where the selector failed: what is not
 * given is null.
 */
export type VerdictExtra = readonly [
  at: number,
  error: string | null,
  mature: number | null,
  delay: number | null,
  tries: number | null,
  place: SourcePosition | null,
];

/** Line and column, from 1. The guest gives those of the script, the worker those of the selector. */
export type SourcePosition = readonly [line: number, column: number];

/** Headers are null if they did not change; so is `end`, of the body in `Called.bodies`. */
type Change = readonly [at: number, headers: readonly string[] | null, end: number | null];

/** A selector used a payload, and the call had no bodies: it is to be repeated with them. Nothing else happened. */
interface NeedsBodies {
  readonly outcome: 'needs-bodies';
}

/** The call used more than it may. Nothing of it counts; the VM is gone. */
export interface Overrun {
  readonly outcome: 'overrun';
  readonly cause: OverrunCause;
  readonly error: string;
  /** The time was spent on reading or writing the payload of an element, so it does not count against the selector. */
  readonly inPayload: boolean;
  /** As in `Called`, up to where the call was ended. */
  readonly logs?: readonly LogLine[];
}

/**
 * What ended an overrun. `deadline`: the VM was interrupted, or came back too late. `watchdog`: the worker
 * was replaced. `memory`: the VM's heap was full. `crash`: the VM or the worker broke.
 */
export type OverrunCause = 'deadline' | 'watchdog' | 'memory' | 'crash';
