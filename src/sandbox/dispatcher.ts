import { readFile } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { SandboxLimits } from './limits.ts';
import {
  type Overrun,
  type PackedElements,
  PROGRESS,
  type ProgramSources,
  type VmImage,
  type WorkerAnswer,
  type WorkerMessage,
  type WorkerRequest,
  type WorkerSetup,
} from './protocol.ts';

/**
 * How many requests the worker has at a time: one that runs and one that waits, so that it need not wait for
 * a busy main thread between them. More would only be lost with it.
 */
const IN_FLIGHT = 2;
/**
 * Only a request that is usually quicker than this is sent while another runs: one of another user may come, and waits
 * for it.
 */
const QUICK_MS = 5;

/** A request to the worker, and whose share of its time it uses. */
type Job =
  | { readonly kind: 'compile'; readonly payer: Payer; readonly sources: readonly string[] }
  | {
      readonly kind: 'call';
      readonly payer: Payer;
      readonly program: number;
      readonly sources: ProgramSources;
      readonly logs: boolean;
      readonly pack: () => PackedElements;
      /** What the bodies in it add to the watchdog's limit, ms. */
      readonly allowanceMs: number;
    };

interface WaitingRequest extends QueuedRequest {
  readonly job: Job;
  readonly resolve: (answer: WorkerAnswer) => void;
  readonly reject: (error: Error) => void;
}

interface SentRequest extends WaitingRequest {
  readonly seq: number;
  readonly limitMs: number;
}

/**
 * Sends requests to the one selector worker, and replaces it when it hangs or ends.
 *
 * States of the worker: none (not started yet, or stopped) -> starting -> ready -> ended, which is followed by starting
 * if requests wait. If a ready worker ends, the request that was running gets an overrun; the one behind it, which had
 * not started, is sent to the next worker. If a worker ends before it was ready, the next one would fail in the same
 * way: all waiting requests are rejected, and the next request tries again.
 */
export class Dispatcher {
  readonly #limits: SandboxLimits;
  readonly #watchdog: Watchdog;
  readonly #ending = new Set<Promise<void>>();
  readonly #waiting = new RequestQueue<WaitingRequest>();
  #sent: SentRequest[] = [];
  /** Programs that the current worker knows. */
  readonly #known = new Set<number>();
  /** Programs whose last call was quick. */
  readonly #quick = new Set<number>();
  #worker: WorkerHandle | null = null;
  /** The worker's successor, started when the worker seems stuck, and kept from then on: a start takes 150 ms. */
  #spare: WorkerHandle | null = null;
  #image: VmImage | null = null;
  #seq = 0;
  #stopping: Promise<void> | null = null;

  constructor(clock: Clock, limits: SandboxLimits) {
    this.#limits = limits;
    this.#watchdog = new Watchdog(clock, () => this.#progress(), {
      busyMs: async () => (await this.#worker?.busyMs()) ?? 0,
      onSuspect: () => {
        this.#spare ??= this.#start();
      },
      onStuck: () =>
        this.#replace({
          outcome: 'overrun',
          cause: 'watchdog',
          error: 'the selector could not be interrupted',
          inPayload: this.#worker?.isInPayload ?? false,
        }),
    });
  }

  /** Starts the worker, if none runs, before anything needs it: its first start takes up to 0.7 s. */
  start(): void {
    if (this.#stopping === null) this.#worker ??= this.#start();
  }

  /** @throws QuaysideError `shutting-down`, `internal` */
  request(job: Job): Promise<WorkerAnswer> {
    if (this.#stopping !== null) return Promise.reject(stopped());
    return new Promise((resolve, reject) => {
      const program = job.kind === 'call' ? job.program : 0;
      this.#waiting.push({ job, payer: job.payer, program, resolve, reject });
      this.#sendNext();
    });
  }

  /** Makes the worker forget a program. */
  close(program: number): void {
    this.#quick.delete(program);
    if (this.#known.delete(program)) this.#worker?.send({ kind: 'close', program });
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#close();
    return this.#stopping;
  }

  async #close(): Promise<void> {
    this.#watchdog.stop();
    this.#rejectAll(stopped());
    for (const worker of [this.#worker, this.#spare]) if (worker !== null) this.#terminate(worker);
    this.#worker = null;
    this.#spare = null;
    await Promise.all(this.#ending);
  }

  #sendNext(): void {
    if (this.#waiting.isEmpty) return;
    this.#worker ??= this.#start();
    if (!this.#worker.ready) return;
    while (this.#sent.length < IN_FLIGHT) {
      const next = this.#next();
      if (next === null) break;
      this.#send(this.#worker, next);
    }
    this.#watchdog.check();
  }

  /**
   * While a request runs, only a quick one is sent behind it, of another payer if there is one. So a request that comes
   * now waits for little more than the one that runs.
   */
  #next(): WaitingRequest | null {
    if (this.#sent.length === 0) return this.#waiting.next();
    const isQuick = ({ program }: QueuedRequest): boolean => this.#quick.has(program);
    const isOthers = ({ payer }: QueuedRequest): boolean => this.#sent.every((sent) => sent.payer !== payer);
    return this.#waiting.next((one) => isQuick(one) && isOthers(one)) ?? this.#waiting.next(isQuick);
  }

  #send(worker: WorkerHandle, waiting: WaitingRequest): void {
    this.#seq += 1;
    const seq = this.#seq;
    const { job } = waiting;
    const allowanceMs = job.kind === 'call' ? job.allowanceMs : 0;
    this.#sent.push({ ...waiting, seq, limitMs: this.#limits.watchdogMs + allowanceMs });
    if (job.kind === 'compile') {
      worker.send({ kind: 'compile', seq, sources: job.sources });
      return;
    }
    const { program, logs } = job;
    const sources = this.#known.has(program) ? null : job.sources;
    this.#known.add(program);
    worker.send({ kind: 'call', seq, program, sources, logs, elements: job.pack() });
  }

  #start(): WorkerHandle {
    const worker: WorkerHandle = new WorkerHandle(this.#limits, this.#image, {
      onReady: (image) => {
        this.#image = image;
        this.#sendNext();
      },
      onMessage: ({ seq, ms, answer }) => this.#onAnswer(seq, ms, answer),
      onLost: (error) => this.#onLost(worker, error),
    });
    return worker;
  }

  #onAnswer(seq: number, ms: number, answer: WorkerAnswer): void {
    const head = this.#sent.shift();
    if (head?.seq !== seq) throw new Error('the selector worker answered out of order');
    this.#charge(head, ms);
    head.resolve(answer);
    if (this.#waiting.isEmpty) this.#watchdog.check();
    else this.#sendNext();
  }

  #charge(sent: SentRequest, ms: number): void {
    this.#waiting.charge(sent, ms);
    if (sent.job.kind === 'call' && ms < QUICK_MS) this.#quick.add(sent.program);
    else this.#quick.delete(sent.program);
  }

  #onLost(worker: WorkerHandle, error: Error): void {
    if (worker === this.#spare) {
      this.#spare = null;
      this.#terminate(worker);
    } else if (worker.ready) {
      this.#replace({
        outcome: 'overrun',
        cause: 'crash',
        error: `the selector worker was lost: ${error.message}`,
        inPayload: worker.isInPayload,
      });
    } else {
      this.#known.clear();
      this.#worker = null;
      this.#terminate(worker);
      this.#rejectAll(
        new QuaysideError('internal', 'The selector worker cannot be started.', { cause: error }),
      );
    }
  }

  /** Uses the next worker before the old one is terminated, which may take some time. */
  #replace(overrun: Overrun): void {
    const { head } = this.#progress();
    if (head !== null) this.#charge(head, head.limitMs);
    const others = this.#sent.filter((sent) => sent !== head);
    this.#sent = [];
    for (const waiting of others.reverse()) this.#waiting.putFirst(waiting);
    const old = this.#worker;
    this.#worker = this.#spare;
    this.#spare = null;
    this.#known.clear();
    this.#sendNext();
    if (old !== null) this.#terminate(old);
    head?.resolve(overrun);
  }

  #terminate(worker: WorkerHandle): void {
    const ended = worker.terminate().finally(() => this.#ending.delete(ended));
    this.#ending.add(ended);
  }

  #rejectAll(error: Error): void {
    const all = [...this.#sent, ...this.#waiting.clear()];
    this.#sent = [];
    for (const { reject } of all) reject(error);
  }

  #progress(): { head: SentRequest | null; steps: number } {
    const { finished, steps } = this.#worker?.progress ?? { finished: 0, steps: 0 };
    // A request that the worker has finished is not running, even if this thread was too busy to receive its answer.
    return { head: this.#sent.find(({ seq }) => seq > finished) ?? null, steps };
  }
}

function stopped(): QuaysideError {
  return new QuaysideError('shutting-down', 'The server is shutting down.');
}

/** Bounds of the worker's own heap, in addition to the VMs': replies and bodies pass through it. */
const RESOURCES = { maxOldGenerationSizeMb: 256, maxYoungGenerationSizeMb: 32 };

/** What happens to a worker thread. */
interface WorkerEvents {
  /** Called once, before any message, when requests may be sent. The image serves later workers. */
  onReady(image: VmImage): void;
  onMessage(message: Extract<WorkerMessage, { kind: 'answer' }>): void;
  /** Called once when it ends without `terminate`, or cannot start. */
  onLost(error: Error): void;
}

/** One selector worker thread. It calls no event after `terminate`. */
class WorkerHandle {
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
    const handedOver = request.kind === 'call' && request.elements.bodies !== null;
    this.#worker?.postMessage(request, handedOver ? [request.elements.bodies.bytes.buffer] : []);
  }

  /** `seq` of the last request it finished, and the number of steps so far: read from shared memory. */
  get progress(): { readonly finished: number; readonly steps: number } {
    return {
      finished: Atomics.load(this.#progress, PROGRESS.finished),
      steps: Atomics.load(this.#progress, PROGRESS.steps),
    };
  }

  /** Whether its VM reads or writes the payload of an element; known also if the thread hangs. */
  get isInPayload(): boolean {
    return Atomics.load(this.#progress, PROGRESS.inPayload) === 1;
  }

  /** Processor time since its last step, ms; known also if the thread hangs. */
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
    // From now on its remaining messages and its exit are ignored.
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

// The types of WebAssembly come with a browser's library, which a server has no use for otherwise.
const { compile } = (
  globalThis as unknown as { WebAssembly: { compile(bytes: Uint8Array): Promise<WasmModule> } }
).WebAssembly;

/** A compiled WebAssembly module: opaque, and shared between threads rather than copied. */
export type WasmModule = object;

let loading: Promise<WasmModule> | null = null;

/** The VM's code, read and compiled (off the main thread) once per process, at its first use. */
export function loadWasm(): Promise<WasmModule> {
  loading ??= readFile(new URL(import.meta.resolve('quickjs-wasi/quickjs.wasm')))
    .then(compile)
    .catch((error: unknown) => {
      // A process that had no file descriptor left may have some the next time.
      loading = null;
      throw error;
    });
  return loading;
}

/**
 * The user whose share of the worker's time a request uses: the owner of an exchange, or the caller of a check. Empty:
 * the node itself; no user has an empty name.
 */
export type Payer = string;

/** A request that waits, and its program; checks have program 0. */
export interface QueuedRequest {
  readonly payer: Payer;
  readonly program: number;
}

/** Processor time that all requests of a key have used, ms, and that of the last one. */
interface KeyUsage {
  used: number;
  readonly last: number;
}

/**
 * Self-clocked fair queueing. Next is the key that will have used the least time if its request takes as long as its
 * last one. A key that had no request waiting starts with the least that any waiting key has used, so that idle time
 * gives no credit. Of keys that have used the same, the one with quick requests is next.
 */
class FairQueue<K, V> {
  readonly #waiting = new Map<K, V>();
  readonly #usage = new Map<K, KeyUsage>();
  /** The least time that a waiting key has used. */
  #least = 0;

  get isEmpty(): boolean {
    return this.#waiting.size === 0;
  }

  get values(): IterableIterator<V> {
    return this.#waiting.values();
  }

  get(key: K): V | undefined {
    return this.#waiting.get(key);
  }

  add(key: K, value: V): void {
    this.#waiting.set(key, value);
    const usage = this.#usage.get(key);
    if (usage === undefined) this.#usage.set(key, { used: this.#least, last: 0 });
    else usage.used = Math.max(usage.used, this.#least);
  }

  remove(key: K): void {
    this.#waiting.delete(key);
  }

  has(mayGo: (key: K) => boolean): boolean {
    for (const key of this.#waiting.keys()) if (mayGo(key)) return true;
    return false;
  }

  /** The next key among those that may go (null: all); of equal ones the one that came first. */
  next(mayGo: ((key: K, value: V) => boolean) | null): [K, V] | null {
    let next: [K, V] | null = null;
    let nextEnd = Infinity;
    let least = Infinity;
    for (const [key, value] of this.#waiting) {
      const { used, last } = this.#usage.get(key) ?? NOT_USED;
      least = Math.min(least, used);
      if (used + last >= nextEnd || mayGo?.(key, value) === false) continue;
      nextEnd = used + last;
      next = [key, value];
    }
    if (next === null) return null;
    this.#least = Math.max(this.#least, least);
    // The last among those that are equal.
    this.#waiting.delete(next[0]);
    this.#waiting.set(...next);
    return next;
  }

  charge(key: K, ms: number): void {
    const used = Math.max(this.#usage.get(key)?.used ?? 0, this.#least) + ms;
    this.#usage.set(key, { used, last: ms });
    if (this.isEmpty) this.#least = Math.max(this.#least, used);
    if (this.#usage.size <= 2 * this.#waiting.size + MAX_IDLE_KEYS) return;
    for (const [idle, usage] of this.#usage) {
      if (usage.used <= this.#least && !this.#waiting.has(idle)) this.#usage.delete(idle);
    }
  }
}

const NOT_USED: KeyUsage = { used: 0, last: 0 };
/** Keys with nothing waiting that are remembered before those that no longer matter are dropped. */
const MAX_IDLE_KEYS = 1000;

/**
 * Requests that wait for the one worker. Its time is shared fairly among payers, and among the programs of each payer.
 * So however much one user runs, and however slow it is, it delays a request of another user by one request, and a slow
 * exchange delays a quick one of the same user by no more than that.
 */
export class RequestQueue<T extends QueuedRequest> {
  readonly #payers = new FairQueue<Payer, FairQueue<number, T[]>>();
  /** Kept while the payer has nothing waiting: it knows what each program used. */
  readonly #programs = new Map<Payer, FairQueue<number, T[]>>();
  /** Requests that had been sent to a worker that ended before it started them. */
  #first: T[] = [];

  get isEmpty(): boolean {
    return this.#payers.isEmpty && this.#first.length === 0;
  }

  push(item: T): void {
    const { payer, program } = item;
    const own = this.#programs.get(payer) ?? new FairQueue<number, T[]>();
    this.#programs.set(payer, own);
    const items = own.get(program);
    if (items === undefined) own.add(program, [item]);
    else items.push(item);
    if (this.#payers.get(payer) === undefined) this.#payers.add(payer, own);
  }

  /** Before everything else: for requests whose turn it was already. */
  putFirst(item: T): void {
    this.#first.unshift(item);
  }

  /** The next request, of those that may go; null: any may. */
  next(mayGo: ((request: QueuedRequest) => boolean) | null = null): T | null {
    if (this.#first.length > 0) {
      const first = mayGo === null ? 0 : this.#first.findIndex(mayGo);
      if (first >= 0) return this.#first.splice(first, 1)[0] ?? null;
    }
    const [payer, programs] =
      this.#payers.next(mayGo && ((key, own) => own.has((program) => mayGo({ payer: key, program })))) ?? [];
    if (payer === undefined || programs === undefined) return null;
    const [program, items] = programs.next(mayGo && ((each) => mayGo({ payer, program: each }))) ?? [];
    if (program === undefined || items === undefined) return null;
    const item = items.shift() ?? null;
    if (items.length === 0) programs.remove(program);
    if (programs.isEmpty) this.#payers.remove(payer);
    return item;
  }

  /** Notes how long a request took. */
  charge({ payer, program }: QueuedRequest, ms: number): void {
    this.#payers.charge(payer, ms);
    this.#programs.get(payer)?.charge(program, ms);
  }

  /** Removes and returns all. */
  clear(): T[] {
    const waiting = [...this.#payers.values].flatMap((programs) => [...programs.values].flat());
    const all = [...this.#first, ...waiting];
    this.#first = [];
    for (const { payer, program } of waiting) {
      this.#programs.get(payer)?.remove(program);
      this.#payers.remove(payer);
    }
    return all;
  }
}

/** How far the watched thread has come: it is not stuck while this changes. */
export interface Progress {
  /** The request that it should be running; null: none, and then there is nothing to watch. */
  readonly head: { readonly limitMs: number } | null;
  readonly steps: number;
}

/** What a watchdog queries, and what it reports. */
interface WatchdogEvents {
  /** Processor time that the thread has used since its last progress, ms. May reject once it has ended. */
  busyMs(): Promise<number>;
  /** No progress for two fifths of the limit: time to start a successor. Called once for each standstill. */
  onSuspect(): void;
  /** The thread is stuck. The watchdog has stopped. */
  onStuck(): void;
}

/** How many times the progress is checked within the limit. */
const CHECKS_PER_LIMIT = 10;
/** Checks without progress before a successor is started. */
const SUSPECT_AFTER_CHECKS = 4;
/** The part of the limit that a stuck thread must have been running for; else it is the machine that is busy. */
const MIN_BUSY_PART = 0.4;
/** How many times the limit a thread may make no progress, running or not. */
const MAX_LIMITS = 4;

/**
 * Detects a thread that has made no progress for longer than its request may take. It reads what the thread wrote to
 * shared memory, not its messages: if the main thread itself was busy for a second, the thread's answers are still in
 * its event queue, and the thread is not stuck. Nor is a thread that the machine did not let run: under a load of six
 * on two cores, harmless selectors had to wait for 250 ms and more.
 */
export class Watchdog {
  readonly #clock: Clock;
  readonly #readProgress: () => Progress;
  readonly #events: WatchdogEvents;
  #seen: Progress = { head: null, steps: 0 };
  #seenAt = 0;
  #suspected = false;
  #isConfirming = false;
  #cancel: CancelTimer | null = null;

  constructor(clock: Clock, readProgress: () => Progress, events: WatchdogEvents) {
    this.#clock = clock;
    this.#readProgress = readProgress;
    this.#events = events;
  }

  /** To be called whenever the head changes. The watchdog then checks regularly while there is a head. */
  check(): void {
    const { head, standstillMs } = this.#readStandstill();
    if (head === null) return;
    if (standstillMs >= head.limitMs * MAX_LIMITS) {
      this.#giveUp();
      return;
    }
    if (standstillMs >= head.limitMs) void this.#confirmStuck(head.limitMs * MIN_BUSY_PART);
    if (!this.#suspected && standstillMs >= (head.limitMs / CHECKS_PER_LIMIT) * SUSPECT_AFTER_CHECKS) {
      this.#suspected = true;
      this.#events.onSuspect();
    }
    this.#cancel ??= this.#clock.after(head.limitMs / CHECKS_PER_LIMIT, () => {
      this.#cancel = null;
      this.check();
    });
  }

  /** Stops checking until the next {@link check}. */
  stop(): void {
    this.#cancel?.();
    this.#cancel = null;
    this.#seen = { head: null, steps: 0 };
    this.#suspected = false;
  }

  #readStandstill(): { head: Progress['head']; standstillMs: number } {
    const now = this.#clock.monotonic();
    const { head, steps } = this.#readProgress();
    if (head !== this.#seen.head || steps !== this.#seen.steps) {
      this.#seen = { head, steps };
      this.#seenAt = now;
      this.#suspected = false;
    }
    return { head, standstillMs: now - this.#seenAt };
  }

  async #confirmStuck(atLeastMs: number): Promise<void> {
    if (this.#isConfirming) return;
    this.#isConfirming = true;
    const standstill = this.#seen;
    // The query fails if the thread has just ended, which `onLost` handles.
    const busyMs = await this.#events.busyMs().catch(() => 0);
    this.#isConfirming = false;
    this.#readStandstill();
    if (busyMs >= atLeastMs && this.#seen === standstill && standstill.head !== null) this.#giveUp();
  }

  #giveUp(): void {
    this.stop();
    this.#events.onStuck();
  }
}
