import { readFile } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import { workerEntry } from '../util/worker-entry.ts';
import type { SandboxLimits } from './limits.ts';
import {
  PROGRESS,
  type VmImage,
  type WorkerMessage,
  type WorkerRequest,
  type WorkerSetup,
} from './protocol.ts';

/** Limits of the worker's own heap, which holds replies and bodies; the VMs' memory is separate. */
const RESOURCES = { maxOldGenerationSizeMb: 256, maxYoungGenerationSizeMb: 32 };

/** Events of a worker thread. */
interface WorkerEvents {
  /** Called once, before any message, when requests may be sent. The image is passed to later workers. */
  onReady(image: VmImage): void;
  onMessage(message: Extract<WorkerMessage, { kind: 'answer' }>): void;
  /** Called once if it exits without `terminate`, or cannot start. */
  onLost(error: Error): void;
}

/** One selector worker thread. Emits no events after `terminate`. */
export class WorkerHandle {
  readonly #progress = new Int32Array(new SharedArrayBuffer(PROGRESS.length * Int32Array.BYTES_PER_ELEMENT));
  readonly #events: WorkerEvents;
  readonly #limits: SandboxLimits;
  readonly #image: VmImage | null;
  #worker: Worker | null = null;
  #terminated: Promise<void> | null = null;
  ready = false;

  constructor(limits: SandboxLimits, image: VmImage | null, events: WorkerEvents) {
    this.#limits = limits;
    this.#image = image;
    this.#events = events;
    this.#start().catch((error: unknown) =>
      this.#lost(error instanceof Error ? error : new Error(String(error))),
    );
  }

  send(request: WorkerRequest): void {
    const hasBodies = request.kind === 'call' && request.elements.bodies !== null;
    this.#worker?.postMessage(request, hasBodies ? [request.elements.bodies.bytes.buffer] : []);
  }

  /** `seq` of the last finished request, and the number of steps so far, read from shared memory. */
  get progress(): { readonly finished: number; readonly steps: number } {
    return {
      finished: Atomics.load(this.#progress, PROGRESS.finished),
      steps: Atomics.load(this.#progress, PROGRESS.steps),
    };
  }

  /** Whether its VM is converting a payload; available even if the thread hangs. */
  get isInPayload(): boolean {
    return Atomics.load(this.#progress, PROGRESS.inPayload) === 1;
  }

  /** Processor time since its last step, ms; available even if the thread hangs. */
  async busyMs(): Promise<number> {
    if (this.#worker === null) return 0;
    const before = Atomics.load(this.#progress, PROGRESS.cpuMs);
    const { user, system } = await this.#worker.cpuUsage();
    return (user + system) / 1000 - before;
  }

  terminate(): Promise<void> {
    this.#terminated ??= (async () => {
      await this.#worker?.terminate();
    })();
    return this.#terminated;
  }

  async #start(): Promise<void> {
    const module = await loadWasm();
    if (this.#terminated !== null) return;
    const setup: WorkerSetup = {
      wasm: module,
      limits: this.#limits,
      progress: this.#progress.buffer as SharedArrayBuffer,
      image: this.#image,
    };
    const worker = new Worker(workerEntry('./thread/worker.ts', import.meta.url), {
      workerData: setup,
      resourceLimits: RESOURCES,
      env: compileCache(),
      execArgv: [],
      name: 'selectors',
    });
    this.#worker = worker;
    worker.on('message', (message: WorkerMessage) => this.#receive(message));
    worker.on('error', (error) => this.#lost(error instanceof Error ? error : new Error(String(error))));
    worker.on('exit', (code) => this.#lost(new Error(`the selector worker ended with code ${code}`)));
  }

  #receive(message: WorkerMessage): void {
    if (this.#terminated !== null) return;
    if (message.kind === 'ready') {
      this.ready = true;
      this.#events.onReady(message.image);
    } else {
      this.#events.onMessage(message);
    }
  }

  #lost(error: Error): void {
    if (this.#terminated !== null) return;
    // Ignore its remaining messages and its exit from now on.
    void this.terminate();
    this.#events.onLost(error);
  }
}

/**
 * The worker's whole environment: only the compile cache, if the process has one. Without it, a worker in the source
 * tree would strip types again at each start, which takes half of the start's processor time.
 */
function compileCache(): { NODE_COMPILE_CACHE?: string } {
  const { NODE_COMPILE_CACHE } = process.env;
  return NODE_COMPILE_CACHE === undefined ? {} : { NODE_COMPILE_CACHE };
}

// The types of WebAssembly are part of the DOM library, which a server does not include.
const { compile } = (
  globalThis as unknown as { WebAssembly: { compile(bytes: Uint8Array): Promise<WasmModule> } }
).WebAssembly;

/** A compiled WebAssembly module: opaque, and shared between threads without copying. */
export type WasmModule = object;

let loading: Promise<WasmModule> | null = null;

/** Reads and compiles the VM's code (off the main thread), once per process at the first use. */
export function loadWasm(): Promise<WasmModule> {
  loading ??= readFile(new URL(import.meta.resolve('quickjs-wasi/quickjs.wasm')))
    .then(compile)
    .catch((error: unknown) => {
      // Allow another attempt: the failure may be temporary, such as a lack of file descriptors.
      loading = null;
      throw error;
    });
  return loading;
}
