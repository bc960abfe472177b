import { Worker } from 'node:worker_threads';
import type { SandboxLimits } from './limits.ts';
import { PULSE, type VmImage, type WorkerMessage, type WorkerRequest, type WorkerSetup } from './protocol.ts';
import { loadWasm } from './wasm.ts';

/** Bounds of the worker's own heap, in addition to the VMs': replies and bodies pass through it. */
const RESOURCES = { maxOldGenerationSizeMb: 256, maxYoungGenerationSizeMb: 32 };

/** What happens to a worker thread. */
interface WorkerEvents {
  /** Called once, before any message, when requests may be sent. The image serves later workers. */
  onReady(image: VmImage): void;
  onMessage(message: Extract<WorkerMessage, { kind: 'answer' }>): void;
  /** Called once when it ends without having been asked to, or cannot start. */
  onLost(error: Error): void;
}

/** One selector worker thread, from its start to its end. Nothing comes from it after `terminate`. */
export class WorkerHandle {
  readonly #pulse = new Int32Array(new SharedArrayBuffer(PULSE.length * Int32Array.BYTES_PER_ELEMENT));
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
    const handedOver = request.kind === 'call' && request.elements.bodies !== null;
    this.#worker?.postMessage(request, handedOver ? [request.elements.bodies.bytes.buffer] : []);
  }

  /** `seq` of the last request it finished, and the number of steps so far: read without asking it. */
  get pulse(): { readonly finished: number; readonly steps: number } {
    return {
      finished: Atomics.load(this.#pulse, PULSE.finished),
      steps: Atomics.load(this.#pulse, PULSE.steps),
    };
  }

  /** Whether its VM reads or writes the payload of an element: also known of a thread that answers nothing. */
  get isInPayload(): boolean {
    return Atomics.load(this.#pulse, PULSE.inPayload) === 1;
  }

  /** Processor time since its last step, ms; known of a thread that answers nothing, too. */
  async busyMs(): Promise<number> {
    if (this.#worker === null) return 0;
    const before = Atomics.load(this.#pulse, PULSE.cpuMs);
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
      pulse: this.#pulse.buffer as SharedArrayBuffer,
      image: this.#image,
    };
    // Built files are JavaScript; in the working tree Node runs the TypeScript.
    const entry = import.meta.url.endsWith('.ts') ? './thread/worker.ts' : './thread/worker.js';
    const worker = new Worker(new URL(entry, import.meta.url), {
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
    // Whatever is left of it is not to be heard again.
    void this.terminate();
    this.#events.onLost(error);
  }
}

/**
 * All of the environment that the worker has. Without the compile cache that the process has, if any, a worker in the
 * working tree would strip the types of its files again at each start, which takes half of the start's processor time.
 */
function compileCache(): { NODE_COMPILE_CACHE?: string } {
  const { NODE_COMPILE_CACHE } = process.env;
  return NODE_COMPILE_CACHE === undefined ? {} : { NODE_COMPILE_CACHE };
}
