import type { CancelTimer, Clock } from '../../../model/clock.ts';
import type { QueueKey } from '../../../model/names.ts';
import { CarryError } from '../client/carrier.ts';
import { slotOf } from '../client/slots.ts';
import type { Keys, QueueKeys } from '../keys.ts';
import type { FlightReply } from './flight.ts';
import { Hold } from './hold.ts';
import { BYE } from './parcels.ts';
import type { LibraryReply } from './reply.ts';
import { bundled, type Task, type TaskKind, type TaskTraits, type Verb } from './task.ts';

/** The number of a flight, 0 where it may be repeated, and up to where the answers are known. */
export interface FlightNumbers {
  readonly number: number;
  readonly received: number;
}

/** Who else is in a flight: queues that it touches, and lanes that its hold has. */
export interface Company {
  readonly others: readonly Lane[];
  readonly held: readonly Lane[];
}

export const ALONE: Company = { others: [], held: [] };

/** What a lane asks of those around it. */
export interface LaneHost {
  readonly clock: Clock;
  readonly keys: Keys;
  /** Lets the lane depart when this turn's calls are all made. */
  schedule(lane: Lane): void;
  fly(lane: Lane, tasks: readonly Task[], numbers: FlightNumbers, company: Company): Promise<FlightReply>;
  task<Call, Result>(
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits,
    resolve: (result: Result) => void,
    reject: (error: unknown) => void,
  ): Task;
  forget(lane: Lane): void;
}

/** What one flight carries at most, unless a single task is larger. */
const MOST_ITEMS = 1_000;
const MOST_BYTES = 4 * 1024 * 1024;
/** A queue that was not used for this long tells the server that its last answer was heard. */
const IDLE_MS = 5_000;
/** A call that was sent more than once may still be on its way until the server would refuse it as late. */
const FENCE_MS = 35_000;
const SETTLE_AGAIN_MS = 500;

/**
 * The calls of one queue. One flight is under way at a time, and what is called meanwhile gathers for the next:
 * so calls take effect in the order in which they were made, through whatever reconnections, and batches grow
 * with the load. Waiting tasks are idle; a hold takes the whole lane.
 */
export class Lane {
  readonly queue: QueueKey;
  readonly keys: QueueKeys;
  readonly slot: number;
  readonly #host: LaneHost;
  readonly #waiting: (Task | Hold)[] = [];
  #hold: Hold | null = null;
  #flying = false;
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
    this.#number = firstNumber;
    this.#received = firstNumber;
    this.#forgotten = firstNumber;
  }

  enqueue(entry: Task | Hold): void {
    this.#waiting.push(entry);
    this.#host.schedule(this);
  }

  /** The hold that had the lane is done. */
  release(): void {
    this.#hold = null;
    this.#host.schedule(this);
  }

  /** Sends what waits, unless a flight is under way. Called once a turn, so that the turn's calls go together. */
  depart(): void {
    if (this.#flying || this.#hold !== null) return;
    this.#dropExpired();
    const first = this.#waiting[0];
    if (first === undefined) {
      this.#rest();
      return;
    }
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    if (first instanceof Hold) {
      this.#waiting.shift();
      this.#hold = first;
      first.arrive(this);
      return;
    }
    this.#flying = true;
    void this.fly(this.#gather(first.kind)).finally(() => {
      this.#flying = false;
      this.#host.schedule(this);
    });
  }

  /**
   * One flight with these tasks, which are answered. Used by the lane itself and by a hold that has it.
   */
  async fly(tasks: readonly Task[], company: Company = ALONE): Promise<void> {
    const [first] = tasks;
    if (first === undefined) return;
    const number = first.kind === 'counted' ? ++this.#number : 0;
    try {
      const reply = await this.#host.fly(this, tasks, { number, received: this.#received }, company);
      if (number > 0) this.#received = number;
      if (reply.repeated) this.#fence();
      this.#answer(tasks, reply);
    } catch (error) {
      await this.#failed(tasks, company, number, error);
    }
    // A hold may make many flights, and what waits behind it must be told in time.
    this.#dropExpired();
  }

  /** What the server must hear before this lane can be forgotten. */
  get isSettled(): boolean {
    return (
      this.#waiting.length === 0 && !this.#flying && this.#hold === null && this.#number === this.#received
    );
  }

  /** Tells the server that the last answer was heard, so that it keeps nothing for this lane. */
  async sayBye(): Promise<void> {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    const keepsAnswer = this.#number > this.#forgotten;
    if (!keepsAnswer || !this.isSettled || this.#fencedUntil > this.#host.clock.monotonic()) return;
    this.#forgotten = this.#number;
    this.#flying = true;
    try {
      await this.fly([
        this.#host.task(
          BYE,
          undefined,
          { kind: 'free' },
          () => {},
          () => {},
        ),
      ]);
    } finally {
      this.#flying = false;
      if (this.#waiting.length > 0) this.#host.schedule(this);
    }
  }

  /** Refuses what still waits. */
  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = null;
    for (const entry of this.#waiting.splice(0)) {
      if (entry instanceof Hold) entry.abandon();
      else entry.reject(new CarryError('storage-unavailable', 'The engine is being stopped.'));
    }
  }

  /** Tasks of one kind from the front of the line, as many as fit. */
  #gather(kind: TaskKind): Task[] {
    const tasks: Task[] = [];
    let items = 0;
    let bytes = 0;
    for (const entry of this.#waiting) {
      if (entry instanceof Hold || entry.kind !== kind) break;
      items += entry.items;
      bytes += entry.bytes;
      if (tasks.length > 0 && (items > MOST_ITEMS || bytes > MOST_BYTES)) break;
      tasks.push(entry);
    }
    this.#waiting.splice(0, tasks.length);
    return tasks;
  }

  /** Whoever waited too long is told so: nothing of it was sent. */
  #dropExpired(): void {
    const now = this.#host.clock.monotonic();
    while (this.#waiting.length > 0) {
      const [first] = this.#waiting;
      if (first === undefined || (first.deadlineAt > now && !(first instanceof Hold && first.isOver))) return;
      this.#waiting.shift();
      if (first instanceof Hold) {
        if (!first.isOver) first.abandon();
      } else {
        first.reject(new CarryError('storage-unavailable', 'The calls before this one took too long.'));
      }
    }
  }

  #answer(tasks: readonly Task[], reply: LibraryReply): void {
    for (const [i, bundle] of bundled(tasks).entries()) {
      const answer = reply.answers[i];
      if (answer === undefined) throw new Error('an answer of the library is missing');
      const results = bundle.verb.decode(
        answer,
        bundle.tasks.map(({ call }) => call),
      );
      for (const [at, task] of bundle.tasks.entries()) {
        const result = results[at];
        if (result instanceof Error) task.reject(result);
        else task.resolve(result);
      }
    }
  }

  /** A full server refused the flight: what stores nothing goes again without what does. */
  async #failed(tasks: readonly Task[], company: Company, number: number, error: unknown): Promise<void> {
    const certain = error instanceof CarryError && error.certain;
    // What was not done needs no answer. But while an earlier outcome is unknown, no number may pass it: the server
    // would take the lost answer for heard, and keep for good what it handed out.
    if (certain && this.#received === number - 1) this.#received = number;
    if (!certain) this.#fence();
    const refused = error instanceof CarryError && error.code === 'storage-full';
    const rest = refused ? tasks.filter(({ inserts }) => !inserts) : [];
    for (const task of tasks) if (!rest.includes(task)) task.reject(error);
    if (rest.length > 0) await this.fly(rest, company);
  }

  /** The server must remember the last number for a while: an earlier call may yet arrive. */
  #fence(): void {
    this.#fencedUntil = this.#host.clock.monotonic() + FENCE_MS;
  }

  /** Nothing waits. Sooner or later the lane says bye and is forgotten. */
  #rest(): void {
    this.#cancelTimer?.();
    const { clock } = this.#host;
    if (this.#number !== this.#received) {
      this.#cancelTimer = clock.after(SETTLE_AGAIN_MS, () => this.#settle());
      return;
    }
    const restMs = Math.max(IDLE_MS, this.#fencedUntil - clock.monotonic());
    this.#cancelTimer = clock.after(restMs, () => {
      void this.sayBye().finally(() => this.#host.forget(this));
    });
  }

  /** An empty call, whose only effect is that the server takes back what nobody heard of. */
  #settle(): void {
    const settled = (): void => {};
    this.enqueue(this.#host.task(BYE, undefined, {}, settled, settled));
  }
}
