import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import type { SandboxLimits } from './limits.ts';
import type { Overrun, PackedElements, ProgramSources, VmImage, WorkerAnswer } from './protocol.ts';
import { type Payer, type QueuedRequest, RequestQueue } from './request-queue.ts';
import { Watchdog } from './watchdog.ts';
import { WorkerHandle } from './worker-handle.ts';

/**
 * Requests sent to the worker at a time: one runs and one waits, so that the worker does not idle while the main thread
 * is busy. More would only be lost with the worker.
 */
const IN_FLIGHT = 2;
/**
 * Only requests of programs that are usually quicker than this are sent while another request runs, because a later
 * request of another user has to wait for them.
 */
const QUICK_MS = 5;

/** A request to the worker, with the user whose share of its time it uses. */
type Job =
  | { readonly kind: 'compile'; readonly payer: Payer; readonly sources: readonly string[] }
  | {
      readonly kind: 'call';
      readonly payer: Payer;
      readonly program: number;
      readonly sources: ProgramSources;
      readonly logs: boolean;
      readonly pack: () => PackedElements;
      /** Time that its bodies add to the watchdog's limit, ms. */
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
 * Sends requests to the only selector worker, and replaces the worker when it hangs or exits.
 *
 * States of the worker: none (not started yet, or stopped) -> starting -> ready -> ended, followed by starting if
 * requests wait. If a ready worker ends, its running request gets an overrun; the request behind it has not started and
 * is sent to the next worker. If a worker ends before it is ready, the next one would fail in the same way: all waiting
 * requests are rejected, and a later request tries again.
 */
export class Dispatcher {
  readonly #limits: SandboxLimits;
  readonly #watchdog: Watchdog;
  readonly #terminating = new Set<Promise<void>>();
  readonly #waiting = new RequestQueue<WaitingRequest>();
  #sent: SentRequest[] = [];
  /** Programs that the current worker knows. */
  readonly #known = new Set<number>();
  /** Programs whose last call was quick. */
  readonly #quick = new Set<number>();
  #worker: WorkerHandle | null = null;
  /** A standby worker, started when the current one seems stuck and then retained: starting takes 150 ms. */
  #standby: WorkerHandle | null = null;
  #image: VmImage | null = null;
  #seq = 0;
  #stopping: Promise<void> | null = null;

  constructor(clock: Clock, limits: SandboxLimits) {
    this.#limits = limits;
    this.#watchdog = new Watchdog(clock, () => this.#progress(), {
      busyMs: async () => (await this.#worker?.busyMs()) ?? 0,
      onSuspect: () => {
        this.#standby ??= this.#start();
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

  /** Starts the worker in advance unless it runs: the first start takes up to 0.7 s. */
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
    for (const worker of [this.#worker, this.#standby]) if (worker !== null) this.#terminate(worker);
    this.#worker = null;
    this.#standby = null;
    await Promise.all(this.#terminating);
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
   * While a request runs, only a quick one is sent behind it, preferably of another payer. So a new request waits for
   * little more than the running one.
   */
  #next(): WaitingRequest | null {
    if (this.#sent.length === 0) return this.#waiting.next();
    const isQuick = ({ program }: QueuedRequest): boolean => this.#quick.has(program);
    const isOfOtherPayer = ({ payer }: QueuedRequest): boolean =>
      this.#sent.every((sent) => sent.payer !== payer);
    return this.#waiting.next((one) => isQuick(one) && isOfOtherPayer(one)) ?? this.#waiting.next(isQuick);
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
    if (worker === this.#standby) {
      this.#standby = null;
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

  /** Switches to the next worker before terminating the old one, which may take some time. */
  #replace(overrun: Overrun): void {
    const { head } = this.#progress();
    if (head !== null) this.#charge(head, head.limitMs);
    const others = this.#sent.filter((sent) => sent !== head);
    this.#sent = [];
    for (const waiting of others.reverse()) this.#waiting.putFirst(waiting);
    const old = this.#worker;
    this.#worker = this.#standby;
    this.#standby = null;
    this.#known.clear();
    this.#sendNext();
    if (old !== null) this.#terminate(old);
    head?.resolve(overrun);
  }

  #terminate(worker: WorkerHandle): void {
    const terminated = worker.terminate().finally(() => this.#terminating.delete(terminated));
    this.#terminating.add(terminated);
  }

  #rejectAll(error: Error): void {
    const all = [...this.#sent, ...this.#waiting.clear()];
    this.#sent = [];
    for (const { reject } of all) reject(error);
  }

  #progress(): { head: SentRequest | null; steps: number } {
    const { finished, steps } = this.#worker?.progress ?? { finished: 0, steps: 0 };
    // Skip requests that the worker has finished but whose answer this thread has not received yet.
    return { head: this.#sent.find(({ seq }) => seq > finished) ?? null, steps };
  }
}

function stopped(): QuaysideError {
  return new QuaysideError('shutting-down', 'The server is shutting down.');
}
