import type { JsonValue } from '../../../engine/definitions.ts';
import type { ReadySignal } from '../../../engine/signaller.ts';
import type { Clock } from '../../../model/clock.ts';
import type { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Backlog } from '../client/backlog.ts';
import { CarryError } from '../client/carrier.ts';
import { DEADLINE_MS } from '../client/commands.ts';
import type { Arg } from '../client/connection.ts';
import type { Command } from '../client/outcome.ts';
import { type Keys, queueText } from '../keys.ts';
import type { Policies } from '../policies.ts';
import type { FlightReply, Flights } from './flight.ts';
import { type Company, type FlightNumbers, Lane, type LaneHost } from './lane.ts';
import { bundled, type Task, type TaskTraits, type Verb } from './task.ts';

/** What a flight needs done outside its slot. Null: nothing. */
export interface AroundFlights {
  /** Makes queues known, registers when they must be swept. */
  before(
    lane: Lane,
    others: readonly Lane[],
    tasks: readonly Task[],
    deadlineAt: number,
  ): Promise<void> | null;
  /** Done before its calls are answered. `queues`: those of the flight, its own first. */
  behind(queues: readonly Lane[], held: readonly Lane[], reply: FlightReply): Promise<void> | null;
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
  readonly keys: Keys;
  readonly backlog: Backlog;
  readonly flights: Flights;
  readonly policies: Policies;
  /** On one server a call may touch several queues. */
  readonly router: { readonly isCluster: boolean };
  readonly around: AroundFlights;
  readonly signals: CarriedSignals;
}

const STOP_MS = 1_000;

/** The lanes of all queues in use, and what their flights share. */
export class Lanes implements LaneHost {
  readonly clock: Clock;
  readonly keys: Keys;
  readonly #parts: LanesParts;
  readonly #lanes = new Map<string, Lane>();
  readonly #scheduled = new Set<Lane>();
  #departure: NodeJS.Immediate | null = null;
  /** Numbers of a new lane begin above all that were given, so that a call of an older one stays stale. */
  #highest = 0;
  #stopped = false;

  constructor(parts: LanesParts) {
    this.#parts = parts;
    this.clock = parts.clock;
    this.keys = parts.keys;
  }

  get(queue: QueueKey): Lane {
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
    const lane = this.get(queue);
    return new Promise<Result>((resolve, reject) => {
      const refusal = this.refusal(lane);
      if (refusal === null) lane.enqueue(this.task(verb, call, traits, resolve, reject));
      else reject(refusal);
    });
  }

  /** Calls a verb on a lane that the caller holds. @throws QuaysideError */
  flyHeld<Call, Result>(
    lane: Lane,
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits = {},
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      void lane.fly([this.task(verb, call, traits, resolve, reject)]);
    });
  }

  /** Why a call of this lane is in vain now; null: it is not. */
  refusal(lane: Lane): QuaysideError | null {
    if (this.#stopped) return new CarryError('storage-unavailable', 'The engine is stopped.');
    const refusal = this.#parts.backlog.refusal(lane.slot);
    // Names come from requests: a lane that nothing was ever sent on must not stay.
    if (refusal !== null) this.forget(lane);
    return refusal;
  }

  task<Call, Result>(
    verb: Verb<Call, Result>,
    call: Call,
    traits: TaskTraits,
    resolve: (result: Result) => void,
    reject: (error: unknown) => void,
  ): Task {
    const bytes = traits.bytes ?? 0;
    const answered = this.#parts.backlog.add(bytes);
    return {
      verb: verb as Verb<unknown, unknown>,
      call,
      join: traits.join ?? null,
      kind: traits.kind ?? 'counted',
      inserts: traits.inserts ?? false,
      writes: traits.writes ?? traits.kind !== 'free',
      makes: traits.makes ?? false,
      dueMs: traits.dueMs ?? null,
      signal: traits.signal ?? null,
      items: traits.items ?? 1,
      bytes,
      deadlineAt: this.clock.monotonic() + DEADLINE_MS,
      resolve: (result) => {
        answered();
        resolve(result as Result);
      },
      reject: (error) => {
        answered();
        reject(error);
      },
    };
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

  async fly(
    lane: Lane,
    tasks: readonly Task[],
    { number, received }: FlightNumbers,
    { others, held }: Company,
  ): Promise<FlightReply> {
    const { flights, around, signals } = this.#parts;
    this.#highest = Math.max(this.#highest, number);
    const deadlineAt = tasks.reduce(
      (first, task) => Math.min(first, task.deadlineAt),
      Number.POSITIVE_INFINITY,
    );
    const preparing = around.before(lane, others, tasks, deadlineAt);
    if (preparing !== null) await preparing.catch(nothingDone);
    const queues = this.#queuesOf(lane, others);
    const said = saidOf(tasks);
    const reply = await flights.fly({
      slot: lane.slot,
      keys: queues.flatMap(({ keys }) => [keys.hash, keys.order]),
      number,
      received,
      inserts: tasks.some(({ inserts }) => inserts),
      writes: tasks.some(({ writes }) => writes),
      args: [...this.#policyArgs(lane, queues), ...verbArgs(tasks)],
      behind: said.flatMap(({ topic, message }) => signals.carry(topic, message) ?? []),
      deadlineAt,
    });
    for (const { topic, message } of said) signals.carried(topic, message);
    const after = around.behind(queues, held, reply);
    if (after !== null) await after;
    return reply;
  }

  /** The place of a queue among those of a flight, from 1, as the library counts. */
  numberOf(queue: Lane, home: Lane, others: readonly Lane[]): number {
    return this.#queuesOf(home, others).indexOf(queue) + 1;
  }

  forget(lane: Lane): void {
    if (lane.isSettled) this.#lanes.delete(queueText(lane.queue));
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
    for (const lane of lanes) lane.stop();
    this.#lanes.clear();
  }

  /** The flight's own queue, then the dead-letter queue if its letters can go there in the same call. */
  #queuesOf(lane: Lane, others: readonly Lane[]): readonly Lane[] {
    const letters = this.#parts.router.isCluster ? null : this.#parts.policies.letterQueue(lane.queue);
    if (letters === null && others.length === 0) return [lane];
    return [...new Set(letters === null ? [lane, ...others] : [lane, this.get(letters), ...others])];
  }

  #policyArgs({ queue }: Lane, queues: readonly Lane[]): Arg[] {
    const { policies, router } = this.#parts;
    const retentions = policies.retentions(queues.map((each) => each.queue));
    return [retentions, policies.deadLetters(queue, router.isCluster ? 0 : 2)];
  }
}

/** Whatever became of the preparation: what was to follow it was not sent. */
function nothingDone(error: unknown): never {
  const why = error instanceof Error ? error.message : String(error);
  throw new CarryError('storage-unavailable', why);
}

/** One message for all tasks that have the same signal. */
function saidOf(tasks: readonly Task[]): { topic: string; message: JsonValue }[] {
  const counts = new Map<ReadySignal, number>();
  for (const { signal, items } of tasks) {
    if (signal !== null) counts.set(signal, (counts.get(signal) ?? 0) + items);
  }
  return Array.from(counts, ([signal, count]) => ({ topic: signal.topic, message: signal.say(count) }));
}

function verbArgs(tasks: readonly Task[]): Arg[] {
  const args: Arg[] = [];
  for (const { verb, tasks: joined } of bundled(tasks)) {
    args.push(verb.name);
    for (const arg of verb.encode(joined.map(({ call }) => call))) args.push(arg);
  }
  return args;
}
