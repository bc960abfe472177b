import {
  type HostFunction,
  JSException,
  type JSValueHandle,
  QuickJS,
  type QuickJSOptions,
} from 'quickjs-wasi';
import { LIMITS } from '../../model/limits.ts';
import type { WasmModule } from '../dispatcher.ts';
import { type GuestLimits, type Host, harden, makeGuest } from '../guest.ts';
import { QUICK_TEXT, type SandboxLimits, type SourceProblem } from '../limits.ts';
import type { Overrun, VmImage } from '../protocol.ts';
import type { Deadline } from './selector-thread.ts';
import { inSelector, type SelectorScript } from './source.ts';

/** A destination as the VM needs it: a script, null for "always", or why it can never be asked. */
export type ProgramStep = SelectorScript | { readonly broken: string } | null;

/** What the VM's own error says when its heap is full. */
const OUT_OF_MEMORY = 'out of memory';
const TOO_LONG: Overrun = {
  outcome: 'overrun',
  cause: 'deadline',
  error: 'the selector took too long',
  inPayload: false,
};
const TOO_MUCH: Overrun = {
  outcome: 'overrun',
  cause: 'memory',
  error: 'the selector used too much memory',
  inPayload: false,
};

const GUEST_LIMITS: GuestLimits = {
  quickText: QUICK_TEXT,
  logLines: 50,
  mature: LIMITS.matureAt / 1000,
  delay: LIMITS.delayMs / 1000,
  tries: LIMITS.tries,
};

export async function makeImage(wasm: WasmModule, limits: SandboxLimits): Promise<VmImage> {
  const vm = await QuickJS.create(options(wasm, limits, () => false));
  const make = vm.evalCode(`"use strict";(payload, seal, converting, log) => {
    const sink = { write: null };
    (${harden})(sink);
    return (${makeGuest})({ payload, seal, converting, log }, ${JSON.stringify(GUEST_LIMITS)}, sink);
  }`);
  const host = CALLBACKS.map((name) => vm.newFunction(name, () => vm.null));
  const guest = vm.callFunction(make, vm.null, ...host);
  const [add, ask] = [guest.getProp('add'), guest.getProp('ask')].map((handle) => vm.exportHandle(handle));
  const snapshot = vm.snapshot();
  const memory = new Uint8Array(new SharedArrayBuffer(snapshot.memory.byteLength));
  memory.set(snapshot.memory);
  return { snapshot: { ...snapshot, memory }, add: add as number, ask: ask as number };
}

/** What the guest calls: the methods of its host, by name. */
const CALLBACKS = ['payload', 'seal', 'converting', 'log'] as const satisfies readonly (keyof Host)[];

type Three = readonly [JSValueHandle, JSValueHandle, JSValueHandle];

/** One VM with the selectors of one exchange. After anything was thrown out of it, it is to be disposed. */
export class SelectorVm {
  readonly #vm: QuickJS;
  readonly #add: JSValueHandle;
  readonly #ask: JSValueHandle;
  readonly #deadline: Deadline;
  readonly #memory: LinearMemory | null;
  #host: Host | null = null;
  /** What went wrong on our side while the VM ran; its call does not count. */
  #fault: Error | null = null;
  /** The last value given to the VM by a callback. The library takes its own hold on it and leaves us ours. */
  #given: JSValueHandle;

  static async restore(
    image: VmImage,
    wasm: WasmModule,
    limits: SandboxLimits,
    deadline: Deadline,
  ): Promise<SelectorVm> {
    let memory: LinearMemory | null = null;
    const withMemory = options(
      wasm,
      limits,
      () => deadline.passed,
      (own) => {
        memory = own;
      },
    );
    const vm = await QuickJS.restore(image.snapshot, withMemory);
    return new SelectorVm(vm, image, deadline, memory);
  }

  private constructor(vm: QuickJS, image: VmImage, deadline: Deadline, memory: LinearMemory | null) {
    this.#vm = vm;
    this.#add = vm.importHandle(image.add);
    this.#ask = vm.importHandle(image.ask);
    this.#deadline = deadline;
    this.#memory = memory;
    this.#given = vm.null;
    const callbacks: Record<(typeof CALLBACKS)[number], (...args: Three) => JSValueHandle> = {
      payload: (element) => this.#payload(element),
      seal: (at, headers, payload) => this.#seal(at, headers, payload),
      converting: (isOn) => {
        this.#host?.converting(isOn.toBoolean());
        return vm.null;
      },
      log: (at, text) => {
        this.#host?.log(at.toNumber(), readText(text));
        return vm.null;
      },
    };
    for (const name of CALLBACKS) {
      vm.registerHostCallback(name, this.#guard(callbacks[name] as HostFunction));
    }
  }

  /** Bytes of linear memory that this VM holds. */
  get bytes(): number {
    return this.#memory?.buffer.byteLength ?? 0;
  }

  /** Adds the destinations. A script that the VM refuses becomes an error of its destination. */
  load(steps: readonly ProgramStep[]): void {
    for (const step of steps) {
      if (step === null) this.#addStep(this.#vm.null);
      else if ('broken' in step) this.#addText(step.broken);
      else {
        const problem = this.compile(step.script, (selector) => this.#addStep(selector, step.isPure));
        if (problem !== null) this.#addText(`SyntaxError: ${problem.message}`);
      }
    }
  }

  /**
   * Compiles a script and gives its value to `use`. Returns what the compiler found wrong, null if nothing.
   * No code of the script's author runs: the script's value is a function.
   */
  compile(script: string, use: (selector: JSValueHandle) => void): SourceProblem | null {
    let selector: JSValueHandle;
    try {
      selector = this.#vm.evalCode(script, 'selector');
    } catch (error) {
      if (!(error instanceof JSException) || error.name !== 'SyntaxError') throw error;
      const [, line, column] = /selector:(\d+)(?::(\d+))?/.exec(error.stack ?? '') ?? [];
      error.dispose();
      return inSelector(error.message, line === undefined ? undefined : Number(line), Number(column ?? 1));
    }
    use(selector);
    selector.dispose();
    return null;
  }

  /**
   * Calls the guest's `ask`. Returns JSON of the guest's own writing.
   * @param logs whether console output is wanted
   * @throws whatever ended the call before its time: see {@link overrun}
   */
  ask(input: string, softMs: number, host: Host, logs = false): string {
    this.#host = host;
    const text = this.#vm.newString(input);
    const soft = this.#vm.newNumber(softMs);
    const wantsLogs = logs ? this.#vm.true : this.#vm.false;
    const answer = this.#vm.callFunction(this.#ask, this.#vm.null, text, soft, wantsLogs);
    const json = readText(answer);
    for (const handle of [text, soft, answer, this.#given]) handle.dispose();
    this.#given = this.#vm.null;
    this.#host = null;
    if (this.#fault !== null) throw this.#fault;
    return json;
  }

  dispose(): void {
    this.#vm.dispose();
  }

  /** What ended a step, from what it threw. */
  overrun(thrown: unknown): Overrun {
    if (this.#deadline.passed) return TOO_LONG;
    const message = thrown instanceof Error ? thrown.message : String(thrown);
    // The second is the library's, for its own part of the heap; the third is an error too large to be read.
    if (message === OUT_OF_MEMORY || message === 'wasm_malloc failed' || message.startsWith('<null>'))
      return TOO_MUCH;
    // A trap of the WebAssembly code, its machine stack at an end, or an answer that makes no sense.
    return {
      outcome: 'overrun',
      cause: 'crash',
      error: `the selector broke its VM: ${message.slice(0, 100)}`,
      inPayload: false,
    };
  }

  #addStep(step: JSValueHandle, isPure = false): void {
    this.#vm.callFunction(this.#add, this.#vm.null, step, isPure ? this.#vm.true : this.#vm.false).dispose();
  }

  #addText(text: string): void {
    const handle = this.#vm.newString(text.slice(0, 200));
    this.#addStep(handle);
    handle.dispose();
  }

  #payload(element: JSValueHandle): JSValueHandle {
    const shown = this.#host?.payload(element.toNumber()) ?? '!there is no element';
    return typeof shown === 'string' ? this.#vm.newString(shown) : this.#vm.newUint8Array(shown);
  }

  #seal(at: JSValueHandle, headers: JSValueHandle, payload: JSValueHandle): JSValueHandle {
    const written = payload.isNull ? null : payload.isString ? readText(payload) : payload.toUint8Array();
    const refusal =
      this.#host?.seal(at.toNumber(), headers.isNull ? null : readText(headers), written) ?? null;
    return refusal === null ? this.#vm.null : this.#vm.newString(refusal);
  }

  /** An error of the host's must not be thrown into the VM: its stack would show our paths to a selector. */
  #guard(callback: (...args: JSValueHandle[]) => JSValueHandle): (...args: JSValueHandle[]) => JSValueHandle {
    return (...args) => {
      this.#given.dispose();
      this.#given = this.#vm.null;
      try {
        this.#given = callback(...args);
        return this.#given;
      } catch (error) {
        this.#fault ??= error instanceof Error ? error : new Error(String(error));
        return this.#vm.null;
      }
    };
  }
}

/**
 * A string of the guest's. With no memory left for a copy the library answers `<null>`, and no string that
 * the guest hands over begins like that.
 */
function readText(handle: JSValueHandle): string {
  const text = handle.toString();
  if (text.startsWith('<')) throw new Error(OUT_OF_MEMORY);
  return text;
}

interface LinearMemory {
  readonly buffer: ArrayBuffer;
}

function options(
  wasm: WasmModule,
  limits: SandboxLimits,
  interruptHandler: () => boolean,
  onMemory: (memory: LinearMemory) => void = () => {},
): QuickJSOptions {
  return {
    wasm,
    memoryLimit: limits.memoryBytes,
    maxStackSize: limits.stackBytes,
    interruptHandler,
    timezoneOffset: 0,
    wasi: (memory) => {
      onMemory(memory);
      // The default writes what a failing VM says to this process's own output.
      return { fd_write: () => 8 };
    },
  };
}
