import type { SandboxLimits } from '../limits.ts';
import {
  type Compiled,
  type CompileProblem,
  type PackedElements,
  type ProgramStep,
  PULSE,
  type VmImage,
  type WorkerAnswer,
  type WorkerRequest,
  type WorkerSetup,
} from '../protocol.ts';
import type { WasmModule } from '../wasm.ts';
import { readAnswer } from './answer.ts';
import { Call } from './call.ts';
import { Deadline } from './deadline.ts';
import { SelectorVm } from './vm.ts';
import { VmCache } from './vm-cache.ts';

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
  readonly #programs = new Map<number, readonly ProgramStep[]>();
  readonly #vms: VmCache;

  constructor(setup: WorkerSetup, image: VmImage) {
    this.#wasm = setup.wasm;
    this.#limits = setup.limits;
    this.#pulse = new Int32Array(setup.pulse);
    this.#image = image;
    this.#vms = new VmCache(setup.limits);
  }

  /** Answers null where a request has no answer. */
  async handle(request: WorkerRequest): Promise<WorkerAnswer | null> {
    this.#step();
    if (request.kind === 'close') {
      this.#programs.delete(request.program);
      this.#vms.drop(request.program);
      return null;
    }
    if (request.kind === 'call' && request.steps !== null) this.#programs.set(request.program, request.steps);
    const answer =
      request.kind === 'compile'
        ? await this.#compile(request.scripts)
        : await this.#call(request.program, request.elements);
    Atomics.store(this.#pulse, PULSE.finished, request.seq);
    return answer;
  }

  async #compile(scripts: readonly string[]): Promise<WorkerAnswer> {
    const vm = await this.#newVm();
    try {
      this.#deadline.start(this.#limits.compileMs);
      const problems = scripts.map((script): CompileProblem | null => vm.compile(script, () => {}));
      return this.#deadline.passed
        ? vm.overrun(null)
        : ({ outcome: 'compiled', problems } satisfies Compiled);
    } catch (error) {
      return vm.overrun(error);
    } finally {
      vm.dispose();
    }
  }

  async #call(program: number, elements: PackedElements): Promise<WorkerAnswer> {
    const steps = this.#programs.get(program) ?? [];
    const kept = this.#vms.take(program);
    const vm = kept ?? (await this.#newVm());
    try {
      if (kept === null) {
        this.#deadline.start(this.#limits.compileMs);
        vm.load(steps);
        if (this.#deadline.passed) throw new Error('compiled too late');
        this.#step();
      }
      const answer = this.#ask(vm, steps, elements);
      if (answer.outcome === 'overrun') vm.dispose();
      else this.#vms.put(program, vm);
      return answer;
    } catch (error) {
      const overrun = vm.overrun(error);
      vm.dispose();
      return overrun;
    }
  }

  #ask(vm: SelectorVm, steps: readonly ProgramStep[], elements: PackedElements): WorkerAnswer {
    const selectors = steps.filter((step) => step !== null).length;
    const call = new Call(elements, { destinations: steps.length, selectors }, this.#limits, this.#deadline);
    this.#deadline.start(this.#limits.callMs);
    const json = vm.ask(elements.input, this.#limits.callMs / 2, call);
    // A built-in that is never interrupted may come back, late, as if nothing had been.
    if (this.#deadline.passed) return vm.overrun(null);
    if (call.needsBodies) return { outcome: 'needs-bodies' };
    return readAnswer(json, elements.count, steps.length, call);
  }

  async #newVm(): Promise<SelectorVm> {
    const vm = await SelectorVm.restore(this.#image, this.#wasm, this.#limits, this.#deadline);
    this.#step();
    return vm;
  }

  /** A sign of life for the watchdog: what follows has its time anew. */
  #step(): void {
    const { user, system } = process.threadCpuUsage();
    Atomics.store(this.#pulse, PULSE.cpuMs, Math.floor((user + system) / 1000));
    Atomics.add(this.#pulse, PULSE.steps, 1);
  }
}
