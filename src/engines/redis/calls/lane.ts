import type { EngineLog } from '../../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../../model/clock.ts';
import type { QueueKey } from '../../../model/names.ts';
import { ExecutionError, type Progress } from '../client/executor.ts';
import { slotOf } from '../client/slots.ts';
import { type Keys, type QueueKeys, queueText } from '../keys.ts';
import type { FlightReply } from './flight.ts';
import { BYE } from './parcels.ts';
import { POSTPONE, TAKE, UndecodableElements } from './take.ts';
import { type Bundle, bundled, type Task, type TaskKind, type TaskTraits, type Verb } from './task.ts';

/** Calls that travel together: one call of the library. */
export interface Batch {
  readonly tasks: readonly Task[];
  /** 0 where it may be repeated. */
  readonly number: number;
  /** The number up to which the answers are known. */
  readonly received: number;
  readonly progress: Progress;
  /** Its calls are answered; what comes later changes nothing here. */
  isOver: boolean;
}

/** How a batch ended. */
export interface Sent {
  readonly reply: FlightReply;
  /** What must follow before calls of the batch are answered. It may touch other queues, so only callers wait for it. */
  readonly after: ((task: Task) => Promise<void> | null) | null;
}

/** What a lane asks of those around it. */
export interface LaneHost {
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly keys: Keys;
  /** Lets the lane depart when this turn's calls are all made. */
  schedule(lane: Lane): void;
  /** @throws ExecutionError */
  send(lane: Lane, batch: Batch): Promise<Sent>;
  task<Call, Result>(
    lane: Lane,
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits,
    resolve: (result: Result) => void,
    reject: (error: unknown) => void,
  ): Task;
  forget(lane: Lane): void;
}

/** What one batch carries at most, unless a single task is larger. */
const MOST_ITEMS = 1_000;
const MOST_BYTES = 4 * 1024 * 1024;
/** A queue that was not used for this long tells the server that its last answer was heard. */
const IDLE_MS = 5_000;
/** A call that was sent more than once may still be on its way until the server would refuse it as late. */
const FENCE_MS = 35_000;
const SETTLE_AGAIN_MS = 500;

/**
 * The calls of one queue. One batch is in flight at a time, and what is called until it ends gathers for the next:
 * so calls take effect in the order in which they were made, through whatever reconnections, and batches grow
 * with the load.
 *
 * A batch waits for no other queue. Each call settles by its deadline, and a batch ends with the first deadline
 * of its calls, whatever it waits for: the library refuses it from then on, since a later one has a higher number.
 */
export class Lane {
  readonly queue: QueueKey;
  readonly keys: QueueKeys;
  readonly slot: number;
  readonly #host: LaneHost;
  readonly #waiting: Task[] = [];
  #inFlight: Batch | null = null;
  readonly #firstNumber: number;
  /** The last number used, and the one up to which nothing is open. */
  #number: number;
  #received: number;
  /** The last number of which the server need not know any more. */
  #forgotten: number;
  #fencedUntil = 0;
  #cancelTimer: CancelTimer | null = null;

  constructor(queue: QueueKey, host: LaneHost, firstNumber: number) {
    this.queue = queue;
    this.#host = host;
    this.keys = host.keys.queue(queue);
    this.slot = slotOf(this.keys.hash);
    this.#firstNumber = firstNumber;
    this.#number = firstNumber;
    this.#received = firstNumber;
    this.#forgotten = firstNumber;
  }

  enqueue(task: Task): void {
    this.#waiting.push(task);
    this.#host.schedule(this);
  }

  /** The next step of something that the calls which wait were made after. */
  enqueueFirst(task: Task): void {
    this.#waiting.unshift(task);
    this.#host.schedule(this);
  }

  /** Sends what waits, unless a batch is in flight. Called once a turn, so that the turn's calls go together. */
  depart(): void {
    if (this.#inFlight !== null) return;
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    const tasks = this.#gather();
    if (tasks.length > 0) this.#send(tasks);
    else this.#rest();
  }

  /** The deadline of a call has passed: it is answered with what is known of it. */
  expire(task: Task): void {
    const { batch } = task;
    if (batch === null) {
      task.reject(new ExecutionError('storage-unavailable', 'The calls before this one took too long.'));
      while (this.#waiting[0]?.isSettled === true) this.#waiting.shift();
    } else {
      const unsent = (): ExecutionError =>
        new ExecutionError('storage-unavailable', 'Redis cannot be reached now.');
      this.#onError(batch, (batch.progress.giveUp ?? unsent)());
    }
  }

  /** Nothing waits, and every outcome is known. */
  get isSettled(): boolean {
    return this.#waiting.length === 0 && this.#inFlight === null && this.#number === this.#received;
  }

  /** Nothing was ever sent, nor waits to be. */
  get isUnused(): boolean {
    return this.isSettled && this.#number === this.#firstNumber;
  }

  /** Tells the server that the last answer was heard, so that it keeps nothing for this lane. */
  async sayBye(): Promise<void> {
    this.stopTimer();
    const keepsAnswer = this.#number > this.#forgotten;
    if (!keepsAnswer || !this.isSettled || this.#fencedUntil > this.#host.clock.monotonic()) return;
    this.#forgotten = this.#number;
    await new Promise<void>((resolve) => {
      this.#send([this.#host.task(this, BYE, undefined, { kind: 'free' }, resolve, () => resolve())]);
    });
  }

  stopTimer(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
  }

  #send(tasks: readonly Task[]): void {
    const number = tasks[0]?.kind === 'counted' ? ++this.#number : 0;
    const batch = { tasks, number, received: this.#received, progress: { giveUp: null }, isOver: false };
    for (const task of tasks) task.batch = batch;
    this.#inFlight = batch;
    this.#host.send(this, batch).then(
      (sent) => this.#onReply(batch, sent),
      (error: unknown) => this.#onError(batch, error),
    );
  }

  #onReply(batch: Batch, { reply, after }: Sent): void {
    if (batch.isOver) return;
    batch.isOver = true;
    if (reply.repeated) this.#fence();
    const decoded = decodeAll(batch.tasks, reply);
    const failed = decoded.find(({ error }) => error !== null);
    if (failed !== undefined) this.#undoTakes(batch, failed.error);
    else if (batch.number > 0) this.#received = batch.number;
    for (const each of decoded) resolveAll(each, after);
    this.#next();
  }

  /**
   * A reply that cannot be decoded counts as not received, so that the next call of the queue makes the server undo the
   * takes of the batch: all of them. What cannot be decoded is postponed in that call, or it would be taken again at once.
   */
  #undoTakes({ tasks, number }: Batch, error: unknown): void {
    const elements = error instanceof UndecodableElements ? error.elements : [];
    const { log } = this.#host;
    const queue = queueText(this.queue);
    if (elements.length === 0) log.warn({ queue, err: error }, 'a reply of Redis cannot be decoded');
    for (const { id, cause } of elements) {
      log.warn({ queue, id, err: cause }, 'the content of an element cannot be decoded; it is postponed');
    }
    if (number === 0) return;
    for (const task of tasks) if (task.verb.name === TAKE.name) task.reject(error);
    const done = (): void => {};
    const members = elements.map(({ member }) => member);
    if (members.length > 0) this.enqueueFirst(this.#host.task(this, POSTPONE, members, {}, done, done));
  }

  /** A full server refused the batch: what stores nothing goes again without what does. */
  #onError(batch: Batch, error: unknown): void {
    if (batch.isOver) return;
    batch.isOver = true;
    const certain = error instanceof ExecutionError && error.certain;
    // What was not done needs no answer. But while an earlier outcome is unknown, no number may pass it: the server
    // would take the lost answer for heard, and keep for good what it handed out.
    if (certain && this.#received === batch.number - 1) this.#received = batch.number;
    if (!certain) this.#fence();
    const isFull = error instanceof ExecutionError && error.code === 'storage-full';
    const rest = isFull ? batch.tasks.filter(({ inserts }) => !inserts) : [];
    for (const task of batch.tasks) if (!rest.includes(task)) task.reject(error);
    if (rest.length > 0) this.#send(rest);
    else this.#next();
  }

  #next(): void {
    this.#inFlight = null;
    this.#host.schedule(this);
  }

  /** Tasks of one kind from the front, as many as fit; without those that have expired. */
  #gather(): Task[] {
    const tasks: Task[] = [];
    let kind: TaskKind | null = null;
    let items = 0;
    let bytes = 0;
    let used = 0;
    for (const task of this.#waiting) {
      if (!task.isSettled) {
        kind ??= task.kind;
        items += task.items;
        bytes += task.bytes;
        if (task.kind !== kind || (tasks.length > 0 && (items > MOST_ITEMS || bytes > MOST_BYTES))) break;
        tasks.push(task);
      }
      used++;
    }
    this.#waiting.splice(0, used);
    return tasks;
  }

  /** The server must remember the last number for a while: an earlier call may yet arrive. */
  #fence(): void {
    this.#fencedUntil = this.#host.clock.monotonic() + FENCE_MS;
  }

  /** Nothing waits. Sooner or later the lane says bye and is forgotten. */
  #rest(): void {
    const { clock } = this.#host;
    if (this.#number !== this.#received) {
      this.#cancelTimer = clock.after(SETTLE_AGAIN_MS, () => this.#settle());
      return;
    }
    const restMs = Math.max(IDLE_MS, this.#fencedUntil - clock.monotonic());
    this.#cancelTimer = clock.after(restMs, () => {
      void this.sayBye().then(() => this.#host.forget(this));
    });
  }

  /** An empty call, whose only effect is that the server takes back what nobody heard of. */
  #settle(): void {
    const settled = (): void => {};
    this.enqueue(this.#host.task(this, BYE, undefined, {}, settled, settled));
  }
}

interface Decoded {
  readonly bundle: Bundle;
  readonly results: readonly unknown[];
  /** Why there are no results; null if there are. */
  readonly error: unknown;
}

function decodeAll(tasks: readonly Task[], { answers }: FlightReply): Decoded[] {
  return bundled(tasks).map((bundle, i) => {
    try {
      const own = answers[i];
      if (own === undefined) throw new Error('an answer of the library is missing');
      const calls = bundle.tasks.map(({ call }) => call);
      return { bundle, results: bundle.verb.decode(own, calls), error: null };
    } catch (error) {
      return { bundle, results: [], error };
    }
  });
}

function resolveAll({ bundle, results, error }: Decoded, after: Sent['after']): void {
  for (const [at, task] of bundle.tasks.entries()) {
    const result = error ?? results[at];
    const wait = after?.(task) ?? null;
    if (result instanceof Error) task.reject(result);
    else if (wait === null) task.resolve(result);
    else task.resolveAfter(wait, result);
  }
}
