import { DeadlineQueue, Expiring } from '../../../engine/deadline-queue.ts';
import type { JsonValue } from '../../../engine/definitions.ts';
import type { EngineLog } from '../../../engine/engine.ts';
import type { ReadySignal } from '../../../engine/signaller.ts';
import type { Clock } from '../../../model/clock.ts';
import type { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Arg, Command } from '../client/connection.ts';
import { DEADLINE_MS, ExecutionError, type Executor } from '../client/executor.ts';
import { type Keys, queueText } from '../keys.ts';
import type { Policies } from '../policies.ts';
import type { FlightReply, Flights } from './flight.ts';
import { type Batch, Lane, type LaneHost, type Sent } from './lane.ts';
import { bundled, type NumberOf, Task, type TaskTraits, type Verb } from './task.ts';

/** What a batch needs done outside its slot. Null: nothing. */
export interface AroundBatches {
  /** Makes queues known, registers when they must be swept. */
  before(
    queue: QueueKey,
    targets: readonly QueueKey[],
    tasks: readonly Task[],
    deadlineAt: number,
  ): Promise<void> | null;
  /** Begins what must follow. `queues`: those of the batch, its own first. */
  behind(queues: readonly QueueKey[], reply: FlightReply): Sent['after'];
}

/** Publishes what is said of stored elements. */
export interface CarriedSignals {
  /** The command to send behind the flight that stores them; null where another server must have it. */
  carry(topic: string, message: JsonValue): Command | null;
  /** That flight is done. */
  carried(topic: string, message: JsonValue): void;
}

interface LanesParts {
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly keys: Keys;
  readonly executor: Pick<Executor, 'rejection' | 'addPending' | 'removePending'>;
  readonly flights: Flights;
  readonly policies: Policies;
  /** On one server a call may touch several queues. */
  readonly topology: { readonly isCluster: boolean };
  readonly around: AroundBatches;
  readonly signals: CarriedSignals;
}

const STOP_MS = 1_000;
const NO_QUEUES: readonly QueueKey[] = [];

/** The lanes of all queues in use, and what their batches share. */
export class Lanes implements LaneHost {
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly keys: Keys;
  readonly #parts: LanesParts;
  readonly #deadlines: DeadlineQueue;
  readonly #lanes = new Map<string, Lane>();
  readonly #scheduled = new Set<Lane>();
  readonly #onSettled = (task: Task): void => {
    this.#deadlines.remove(task);
    this.#parts.executor.removePending(task.bytes);
  };
  #departure: NodeJS.Immediate | null = null;
  /** Numbers of a new lane begin above all that were given, so that a call of an older one stays stale. */
  #highest = 0;
  #stopped = false;

  constructor(parts: LanesParts) {
    this.#parts = parts;
    this.clock = parts.clock;
    this.log = parts.log;
    this.keys = parts.keys;
    this.#deadlines = new DeadlineQueue(parts.clock, DEADLINE_MS);
  }

  #lane(queue: QueueKey): Lane {
    const text = queueText(queue);
    let lane = this.#lanes.get(text);
    if (lane === undefined) {
      lane = new Lane(queue, this, this.#highest);
      this.#lanes.set(text, lane);
    }
    return lane;
  }

  /** Calls a verb of a queue. @throws QuaysideError */
  call<Call, Result>(
    queue: QueueKey,
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits = {},
  ): Promise<Result> {
    return this.#call(queue, verb, call, traits, (lane, task) => lane.enqueue(task));
  }

  /**
   * The same in front of all calls that wait: called in the microtask in which an earlier step of the same thing was
   * answered, before other calls can go. @throws QuaysideError
   */
  callNext<Call, Result>(queue: QueueKey, verb: Verb<Call, Result>, call: Call): Promise<Result> {
    return this.#call(queue, verb, call, {}, (lane, task) => lane.enqueueFirst(task));
  }

  /** What takes several calls, one after the other, has the time of one for all of them. @throws QuaysideError */
  inTime<Result>(result: Promise<Result>): Promise<Result> {
    return new Promise((resolve, reject) => {
      const late = (): void => reject(new ExecutionError('outcome-unknown', 'Redis did not answer in time.'));
      const entry = new Late(this.#deadlines.next(), late);
      this.#deadlines.add(entry);
      result.then(resolve, reject).finally(() => this.#deadlines.remove(entry));
    });
  }

  #call<Call, Result>(
    queue: QueueKey,
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits,
    enqueue: (lane: Lane, task: Task) => void,
  ): Promise<Result> {
    const lane = this.#lane(queue);
    return new Promise<Result>((resolve, reject) => {
      const refusal = this.#refusal(lane);
      if (refusal === null) enqueue(lane, this.task(lane, verb, call, traits, resolve, reject));
      else reject(refusal);
    });
  }

  /** Why a call of this lane is in vain now; null: it is not. */
  #refusal(lane: Lane): QuaysideError | null {
    if (this.#stopped) return new ExecutionError('storage-unavailable', 'The engine is stopped.');
    const refusal = this.#parts.executor.rejection(lane.slot);
    // Names come from requests: a lane that nothing was ever sent on must not stay.
    if (refusal !== null && lane.isUnused) this.forget(lane);
    return refusal;
  }

  task<Call, Result>(
    lane: Lane,
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits,
    resolve: (result: Result) => void,
    reject: (error: unknown) => void,
  ): Task {
    this.#parts.executor.addPending(traits.bytes ?? 0);
    const task = new Task(verb as Verb<unknown, unknown>, call, traits, {
      lane,
      deadlineAt: this.#deadlines.next(),
      resolve: resolve as (result: unknown) => void,
      reject,
      onSettled: this.#onSettled,
    });
    this.#deadlines.add(task);
    return task;
  }

  schedule(lane: Lane): void {
    if (this.#stopped) return;
    this.#scheduled.add(lane);
    this.#departure ??= setImmediate(() => {
      this.#departure = null;
      const ready = [...this.#scheduled];
      this.#scheduled.clear();
      for (const each of ready) each.depart();
    });
  }

  async send(lane: Lane, { tasks, number, received, progress }: Batch): Promise<Sent> {
    const { flights, around, signals } = this.#parts;
    this.#highest = Math.max(this.#highest, number);
    const deadlineAt = tasks.reduce(
      (first, task) => Math.min(first, task.deadlineAt),
      Number.POSITIVE_INFINITY,
    );
    const targets = this.#targetsOf(lane.queue, tasks);
    const preparing = around.before(lane.queue, targets, tasks, deadlineAt);
    if (preparing !== null) await preparing.catch(nothingDone);
    const queues = this.#queuesOf(lane.queue, targets);
    const said = saidOf(tasks);
    const reply = await flights.fly({
      slot: lane.slot,
      keys: this.#keysOf(lane, queues),
      number,
      received,
      inserts: tasks.some(({ inserts }) => inserts),
      writes: tasks.some(({ writes }) => writes),
      args: [...this.#policyArgs(lane, queues), ...verbArgs(tasks, numberIn(queues))],
      behind: said.flatMap(({ topic, message }) => signals.carry(topic, message) ?? []),
      progress,
      deadlineAt,
    });
    for (const { topic, message } of said) signals.carried(topic, message);
    return { reply, after: around.behind(queues, reply) };
  }

  forget(lane: Lane): void {
    const text = queueText(lane.queue);
    // Another lane may have taken its place. That one must stay: two lanes of one queue would give the same numbers.
    if (!lane.isSettled || this.#lanes.get(text) !== lane) return;
    this.#lanes.delete(text);
    lane.stopTimer();
  }

  /** Lets the server forget what it keeps for this engine, as far as it answers soon. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#departure !== null) clearImmediate(this.#departure);
    const lanes = [...this.#lanes.values()];
    let cancel: () => void = () => {};
    const patience = new Promise<void>((resolve) => {
      cancel = this.clock.after(STOP_MS, resolve);
    });
    await Promise.race([patience, Promise.all(lanes.map((lane) => lane.sayBye()))]);
    cancel();
    for (const lane of lanes) lane.stopTimer();
    this.#lanes.clear();
    this.#deadlines.stop();
  }

  /** Other queues into which a batch moves elements in its own step: none on a cluster, where their keys are elsewhere. */
  #targetsOf(queue: QueueKey, tasks: readonly Task[]): readonly QueueKey[] {
    const moving = this.#parts.topology.isCluster ? [] : tasks.filter(({ targets }) => targets.length > 0);
    if (moving.length === 0) return NO_QUEUES;
    const targets = new Map<string, QueueKey>();
    for (const task of moving) for (const target of task.targets) targets.set(queueText(target), target);
    targets.delete(queueText(queue));
    return [...targets.values()];
  }

  /** The queues whose keys a batch names: its own, the dead-letter queue, which comes second, and the targets. */
  #queuesOf(queue: QueueKey, targets: readonly QueueKey[]): readonly QueueKey[] {
    const { topology, policies } = this.#parts;
    const letters = topology.isCluster ? null : policies.letterQueue(queue);
    if (letters === null) return targets.length === 0 ? [queue] : [queue, ...targets];
    const text = queueText(letters);
    return [queue, letters, ...targets.filter((target) => queueText(target) !== text)];
  }

  #keysOf(lane: Lane, queues: readonly QueueKey[]): string[] {
    const keys = [lane.keys.hash, lane.keys.order];
    for (let i = 1; i < queues.length; i++) {
      const { hash, order } = this.keys.queue(queues[i] as QueueKey);
      keys.push(hash, order);
    }
    return keys;
  }

  #policyArgs({ queue }: Lane, queues: readonly QueueKey[]): Arg[] {
    const { policies, topology } = this.#parts;
    return [policies.retentions(queues), policies.deadLetters(queue, topology.isCluster ? 0 : 2)];
  }
}

function numberIn(queues: readonly QueueKey[]): NumberOf {
  let numbers: Map<string, number> | null = null;
  return (queue) => {
    numbers ??= new Map(queues.map((each, i) => [queueText(each), i + 1]));
    return numbers.get(queueText(queue)) ?? 0;
  };
}

class Late extends Expiring {
  readonly deadlineAt: number;
  readonly expire: () => void;

  constructor(deadlineAt: number, expire: () => void) {
    super();
    this.deadlineAt = deadlineAt;
    this.expire = expire;
  }
}

/** Whatever became of the preparation: what was to follow it was not sent. */
function nothingDone(error: unknown): never {
  const why = error instanceof Error ? error.message : String(error);
  throw new ExecutionError('storage-unavailable', why);
}

/** One message for all tasks that have the same signal. */
function saidOf(tasks: readonly Task[]): { topic: string; message: JsonValue }[] {
  const counts = new Map<ReadySignal, number>();
  for (const { signal, items } of tasks) {
    if (signal !== null) counts.set(signal, (counts.get(signal) ?? 0) + items);
  }
  return Array.from(counts, ([signal, count]) => ({ topic: signal.topic, message: signal.say(count) }));
}

function verbArgs(tasks: readonly Task[], numberOf: NumberOf): Arg[] {
  const args: Arg[] = [];
  for (const { verb, tasks: joined } of bundled(tasks)) {
    args.push(verb.name);
    const calls = joined.map(({ call }) => call);
    for (const arg of verb.encode(calls, numberOf)) args.push(arg);
  }
  return args;
}
