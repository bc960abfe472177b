import type { SandboxLimits } from '../limits.ts';
import type { SourceProblem } from '../problem.ts';
import {
  type Compiled,
  type Overrun,
  type PackedElements,
  type ProgramSources,
  PULSE,
  type VmImage,
  type WorkerAnswer,
  type WorkerRequest,
  type WorkerSetup,
} from '../protocol.ts';
import type { WasmModule } from '../wasm.ts';
import { Call, readAnswer } from './call.ts';
import { Deadline } from './deadline.ts';
import { readSelector, SelectorError, type SelectorScript } from './source.ts';
import { type ProgramStep, SelectorVm } from './vm.ts';

type CallRequest = Extract<WorkerRequest, { kind: 'call' }>;

interface Program {
  readonly sources: ProgramSources;
  /** The sources as the VM takes them; null until its first call. */
  steps: readonly ProgramStep[] | null;
}

/**
 * What the selector worker does with a request. One VM per program, that is per exchange, not per selector:
 * the destinations of an element share `env.state`, headers and payload as live objects, which no copy
 * between VMs could keep, and they come from one declaration by one author, so there is nobody to guard from.
 * It is also cheaper: the payload is parsed once for all destinations (50 µs a KiB), a VM takes 2 ms and
 * 1.5 MiB, a call 60 µs. Exchanges never share a VM; elements are kept apart by `harden`.
 */
export class SelectorThread {
  readonly #wasm: WasmModule;
  readonly #limits: SandboxLimits;
  readonly #pulse: Int32Array;
  readonly #image: VmImage;
  readonly #deadline = new Deadline();
  readonly #programs = new Map<number, Program>();
  readonly #vms: VmCache;

  constructor(setup: WorkerSetup, image: VmImage) {
    this.#wasm = setup.wasm;
    this.#limits = setup.limits;
    this.#pulse = new Int32Array(setup.pulse);
    this.#image = image;
    this.#vms = new VmCache(setup.limits);
  }

  /** Returns null if a request has no answer. */
  async handle(request: WorkerRequest): Promise<{ answer: WorkerAnswer; ms: number } | null> {
    const startedMs = this.#step();
    if (request.kind === 'close') {
      this.#programs.delete(request.program);
      this.#vms.drop(request.program);
      return null;
    }
    const answer =
      request.kind === 'compile' ? await this.#compile(request.sources) : await this.#call(request);
    Atomics.store(this.#pulse, PULSE.finished, request.seq);
    return { answer, ms: cpuMs() - startedMs };
  }

  /** Parses and compiles. Of what cannot be interrupted, the watchdog ends this thread. */
  async #compile(sources: readonly string[]): Promise<WorkerAnswer> {
    this.#deadline.start(this.#limits.compileMs);
    const steps = sources.map((source) => this.#read(source));
    const vm = await this.#newVm();
    if (this.#deadline.passed) return this.#overrun(vm, null);
    try {
      this.#deadline.start(this.#limits.compileMs);
      const problems = steps.map((step): SourceProblem | null =>
        step instanceof SelectorError ? step.problem : vm.compile(step.script, () => {}),
      );
      if (this.#deadline.passed) return this.#overrun(vm, null);
      return { outcome: 'compiled', problems } satisfies Compiled;
    } catch (error) {
      return this.#overrun(vm, error);
    } finally {
      vm.dispose();
    }
  }

  #read(source: string): SelectorScript | SelectorError {
    try {
      return readSelector(source);
    } catch (error) {
      if (error instanceof SelectorError) return error;
      throw error;
    }
  }

  #overrun(vm: SelectorVm, thrown: unknown, call: Call | null = null): Overrun {
    const overrun = vm.overrun(thrown);
    if (call === null) return overrun;
    return { ...overrun, inPayload: call.isPayloadToBlame, logs: call.logs };
  }

  async #call({ program: key, sources, elements, logs }: CallRequest): Promise<WorkerAnswer> {
    const known = this.#programs.get(key);
    const program = known ?? { sources: sources ?? [], steps: null };
    if (known === undefined) this.#programs.set(key, program);
    const kept = this.#vms.take(key);
    if (kept === null) this.#deadline.start(this.#limits.compileMs);
    program.steps ??= this.#readSteps(program.sources);
    const { steps } = program;
    const vm = kept ?? (await this.#newVm());
    const selectors = steps.filter((step) => step !== null).length;
    const call = new Call(
      elements,
      { destinations: steps.length, selectors },
      this.#limits,
      this.#deadline,
      (isOn) => Atomics.store(this.#pulse, PULSE.inPayload, isOn ? 1 : 0),
    );
    try {
      if (kept === null) {
        vm.load(steps);
        if (this.#deadline.passed) throw new Error('compiled too late');
        this.#step();
      }
      const answer = this.#ask(vm, steps, call, elements, logs);
      if (answer.outcome === 'overrun') vm.dispose();
      else this.#vms.put(key, vm);
      return answer;
    } catch (error) {
      const overrun = this.#overrun(vm, error, call);
      vm.dispose();
      return overrun;
    } finally {
      Atomics.store(this.#pulse, PULSE.inPayload, 0);
    }
  }

  #ask(
    vm: SelectorVm,
    steps: readonly ProgramStep[],
    call: Call,
    elements: PackedElements,
    logs: boolean,
  ): WorkerAnswer {
    this.#deadline.start(this.#limits.callMs);
    const json = vm.ask(elements.input, this.#limits.callMs / 2, call, logs);
    // A built-in that is never interrupted may come back, late, as if nothing had been.
    if (this.#deadline.passed) return this.#overrun(vm, null, call);
    if (call.needsBodies) return { outcome: 'needs-bodies' };
    return readAnswer(json, elements.count, steps.length, call);
  }

  /** A stored selector was checked when it was stored. Should it not parse any more, its destination says so. */
  #readSteps(sources: ProgramSources): ProgramStep[] {
    return sources.map((source) => {
      if (source === null) return null;
      const step = this.#read(source);
      return step instanceof SelectorError ? { broken: `SyntaxError: ${step.message}` } : step;
    });
  }

  async #newVm(): Promise<SelectorVm> {
    const vm = await SelectorVm.restore(this.#image, this.#wasm, this.#limits, this.#deadline);
    this.#step();
    return vm;
  }

  /** A sign of life for the watchdog: what follows has a limit of its own. Returns the thread's processor time, ms. */
  #step(): number {
    const ms = cpuMs();
    Atomics.store(this.#pulse, PULSE.cpuMs, Math.floor(ms));
    Atomics.add(this.#pulse, PULSE.steps, 1);
    return ms;
  }
}

function cpuMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
}

/**
 * The VMs kept alive between calls, the least recently used first to go: by number, and by linear memory,
 * which a VM never gives back (one that met a large payload once may hold twenty times what it began with).
 */
export class VmCache {
  readonly #limits: Pick<SandboxLimits, 'liveVms' | 'liveBytes'>;
  /** In the order of use: a map keeps the order of insertion. */
  readonly #vms = new Map<number, SelectorVm>();

  constructor(limits: Pick<SandboxLimits, 'liveVms' | 'liveBytes'>) {
    this.#limits = limits;
  }

  /** Takes a program's VM out, to be put back after use. */
  take(program: number): SelectorVm | null {
    const vm = this.#vms.get(program) ?? null;
    this.#vms.delete(program);
    return vm;
  }

  put(program: number, vm: SelectorVm): void {
    this.#vms.set(program, vm);
    let bytes = 0;
    for (const each of this.#vms.values()) bytes += each.bytes;
    for (const [oldest, each] of this.#vms) {
      if (this.#vms.size <= this.#limits.liveVms && bytes <= this.#limits.liveBytes) return;
      bytes -= each.bytes;
      each.dispose();
      this.#vms.delete(oldest);
    }
  }

  drop(program: number): void {
    this.take(program)?.dispose();
  }
}
