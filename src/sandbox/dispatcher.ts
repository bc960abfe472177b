import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { type Payer, type QueuedRequest, RequestQueue } from './fair-queue.ts';
import type { SandboxLimits } from './limits.ts';
import type {
  Overrun,
  PackedElements,
  ProgramSources,
  VmImage,
  WorkerAnswer,
  WorkerRequest,
} from './protocol.ts';
import { Watchdog } from './watchdog.ts';
import { WorkerHandle } from './worker-handle.ts';

/**
 * How many requests the worker has at a time: one that runs and one that waits, so that it need not wait for
 * a busy main thread between them. More would only be lost with it.
 */
const IN_FLIGHT = 2;
/** Only what is usually quicker than this is sent ahead: another may need the place, and would wait for all of it. */
const QUICK_MS = 5;

/** What is asked of the worker, and who pays for it. */
type Job =
  | { readonly kind: 'compile'; readonly payer: Payer; readonly sources: readonly string[] }
  | {
      readonly kind: 'call';
      readonly payer: Payer;
      readonly program: number;
      readonly sources: ProgramSources;
      readonly logs: boolean;
      readonly pack: () => PackedElements;
      /** What the bodies in it add to the watchdog's patience, ms. */
      readonly allowanceMs: number;
    };

interface Waiting extends QueuedRequest {
  readonly job: Job;
  readonly resolve: (answer: WorkerAnswer) => void;
  readonly reject: (error: Error) => void;
}

interface Sent extends Waiting {
  readonly seq: number;
  readonly limitMs: number;
}

/**
 * Feeds the one selector worker and replaces it when it stops answering.
 *
 * States of the worker: none (not started yet, or stopped) -> starting -> ready -> lost, which is starting
 * again if anything waits. The request that was running when a ready worker was lost gets an overrun; the
 * one behind it, which had not begun, goes to the next worker. A worker lost before it was ready will not do
 * better the next time: everything that waits is rejected, and the next request tries again.
 */
export class Dispatcher {
  readonly #limits: SandboxLimits;
  readonly #watchdog: Watchdog;
  readonly #ending = new Set<Promise<void>>();
  readonly #waiting = new RequestQueue<Waiting>();
  #sent: Sent[] = [];
  /** Programs that the present worker knows. */
  readonly #known = new Set<number>();
  /** Programs whose last call was quick. */
  readonly #quick = new Set<number>();
  #worker: WorkerHandle | null = null;
  /** The worker's successor, made when it seemed stuck and kept from then on: a start takes 150 ms. */
  #spare: WorkerHandle | null = null;
  #image: VmImage | null = null;
  #seq = 0;
  #stopping: Promise<void> | null = null;

  constructor(clock: Clock, limits: SandboxLimits) {
    this.#limits = limits;
    this.#watchdog = new Watchdog(clock, () => this.#pulse(), {
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

  /** Starts the worker before anything needs it: its first start takes up to 0.7 s. */
  start(): void {
    if (this.#stopping === null) this.#worker ??= this.#start();
  }

  /** @throws QuaysideError `shutting-down`, `internal` */
  request(job: Job): Promise<WorkerAnswer> {
    if (this.#stopping !== null) return Promise.reject(stopped());
    return new Promise((resolve, reject) => {
      const program = job.kind === 'call' ? job.program : 0;
      this.#waiting.push({ job, payer: job.payer, program, resolve, reject });
      this.#feed();
    });
  }

  /** Makes the worker forget a program. */
  close(program: number): void {
    this.#quick.delete(program);
    if (this.#known.delete(program)) this.#worker?.send({ kind: 'close', program });
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#end();
    return this.#stopping;
  }

  async #end(): Promise<void> {
    this.#watchdog.stop();
    this.#rejectAll(stopped());
    for (const worker of [this.#worker, this.#spare]) if (worker !== null) this.#letGo(worker);
    this.#worker = null;
    this.#spare = null;
    await Promise.all(this.#ending);
  }

  #feed(): void {
    if (this.#waiting.isEmpty) return;
    this.#worker ??= this.#start();
    if (!this.#worker.ready) return;
    while (this.#sent.length < IN_FLIGHT) {
      const next = this.#next();
      if (next === null) break;
      this.#send(this.#worker, next);
    }
    this.#watchdog.look();
  }

  /**
   * While a request runs, only a quick one is sent ahead, of another payer if there is one: whatever comes then waits
   * for the one that runs, and no longer.
   */
  #next(): Waiting | null {
    if (this.#sent.length === 0) return this.#waiting.next();
    const isQuick = ({ program }: QueuedRequest): boolean => this.#quick.has(program);
    const isOthers = ({ payer }: QueuedRequest): boolean => this.#sent.every((sent) => sent.payer !== payer);
    return this.#waiting.next((one) => isQuick(one) && isOthers(one)) ?? this.#waiting.next(isQuick);
  }

  #send(worker: WorkerHandle, waiting: Waiting): void {
    this.#seq += 1;
    const seq = this.#seq;
    const { job } = waiting;
    const allowanceMs = job.kind === 'call' ? job.allowanceMs : 0;
    this.#sent.push({ ...waiting, seq, limitMs: this.#limits.watchdogMs + allowanceMs });
    worker.send(this.#requestOf(job, seq));
  }

  #requestOf(job: Job, seq: number): WorkerRequest {
    if (job.kind === 'compile') return { kind: 'compile', seq, sources: job.sources };
    const { program, logs } = job;
    const sources = this.#known.has(program) ? null : job.sources;
    this.#known.add(program);
    return { kind: 'call', seq, program, sources, logs, elements: job.pack() };
  }

  #start(): WorkerHandle {
    const worker: WorkerHandle = new WorkerHandle(this.#limits, this.#image, {
      onReady: (image) => {
        this.#image = image;
        this.#feed();
      },
      onMessage: ({ seq, ms, answer }) => this.#answered(seq, ms, answer),
      onLost: (error) => this.#lost(worker, error),
    });
    return worker;
  }

  #answered(seq: number, ms: number, answer: WorkerAnswer): void {
    const head = this.#sent.shift();
    if (head?.seq !== seq) throw new Error('the selector worker answered out of order');
    this.#charge(head, ms);
    head.resolve(answer);
    this.#watchdog.look();
    this.#feed();
  }

  #charge(sent: Sent, ms: number): void {
    this.#waiting.charge(sent, ms);
    if (sent.job.kind === 'call' && ms < QUICK_MS) this.#quick.add(sent.program);
    else this.#quick.delete(sent.program);
  }

  #lost(worker: WorkerHandle, error: Error): void {
    if (worker === this.#spare) {
      this.#spare = null;
      this.#letGo(worker);
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
      this.#letGo(worker);
      this.#rejectAll(
        new QuaysideError('internal', 'The selector worker cannot be started.', { cause: error }),
      );
    }
  }

  /** Takes the next worker before the old one is ended: that one may take its time to go. */
  #replace(overrun: Overrun): void {
    const { head } = this.#pulse();
    if (head !== null) this.#charge(head, head.limitMs);
    const others = this.#sent.filter((sent) => sent !== head);
    this.#sent = [];
    for (const waiting of others.reverse()) this.#waiting.putFirst(waiting);
    const old = this.#worker;
    this.#worker = this.#spare;
    this.#spare = null;
    this.#known.clear();
    this.#feed();
    if (old !== null) this.#letGo(old);
    head?.resolve(overrun);
  }

  #letGo(worker: WorkerHandle): void {
    const ended = worker.terminate().finally(() => this.#ending.delete(ended));
    this.#ending.add(ended);
  }

  #rejectAll(error: Error): void {
    const all = [...this.#sent, ...this.#waiting.clear()];
    this.#sent = [];
    for (const { reject } of all) reject(error);
  }

  #pulse(): { head: Sent | null; steps: number } {
    const { finished, steps } = this.#worker?.pulse ?? { finished: 0, steps: 0 };
    // What the worker has finished is on its way here, even if this thread was too busy to receive it.
    return { head: this.#sent.find(({ seq }) => seq > finished) ?? null, steps };
  }
}

function stopped(): QuaysideError {
  return new QuaysideError('shutting-down', 'The server is shutting down.');
}
