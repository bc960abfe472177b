import type { SandboxLimits } from '../limits.ts';
import type { SelectorVm } from './vm.ts';

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
