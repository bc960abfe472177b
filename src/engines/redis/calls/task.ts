import { Expiring } from '../../../engine/deadline-queue.ts';
import type { ReadySignal } from '../../../engine/signaller.ts';
import type { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Arg } from '../client/connection.ts';
import type { Batch, Lane } from './lane.ts';

/** One verb's part of a reply of the library. */
export interface Answer {
  /** The queue's tag, with which its ids begin; empty while the queue is unknown. */
  readonly tag: string;
  readonly text: Buffer;
  /** Stored values of elements, where the verb answers any. */
  readonly elements: readonly (Buffer | null)[];
}

/** The place of a queue among those whose keys a batch names, from 1; 0 if its keys are on another server. */
export type NumberOf = (queue: QueueKey) => number;

/**
 * A verb of the library (`library/*.lua`): how calls of it become arguments, and its answer theirs. Calls that
 * follow each other with the same `join` travel as one.
 */
export interface Verb<Call, Result> {
  readonly name: string;
  encode(calls: readonly Call[], numberOf: NumberOf): readonly Arg[];
  /** One result per call, in their order; an error for a call that was refused. */
  decode(answer: Answer, calls: readonly Call[]): readonly (Result | QuaysideError)[];
}

/**
 * - `counted`: must not be done twice, so it is numbered and its answer kept.
 * - `free`: may be done again: it only looks, or does what is already due.
 */
export type TaskKind = 'counted' | 'free';

/** What a storage verb says of a call, besides the call. */
export interface TaskTraits {
  /** Null: travels alone. */
  readonly join?: string | null;
  readonly kind?: TaskKind;
  /** It stores what needs memory: refused where the server has none left. */
  readonly inserts?: boolean;
  /** Where changes wait for replicas, this one does. Where it is not given: if it is counted. */
  readonly writes?: boolean;
  /** It makes its queue known. */
  readonly makes?: boolean;
  /** Other queues in which it inserts. */
  readonly targets?: readonly QueueKey[];
  /** It moves elements to other queues, and is answered when they are there. */
  readonly moves?: boolean;
  /** Leases, or retention, of this length may begin: the queue must be swept by then. */
  readonly dueMs?: number | null;
  /** What is said when it is done; null: nothing. */
  readonly signal?: ReadySignal | null;
  /** Elements or references, and bytes that it sends. */
  readonly items?: number;
  readonly bytes?: number;
}

export interface TaskParts {
  readonly lane: Lane;
  readonly deadlineAt: number;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
  /** Called once, when the caller has its answer. */
  readonly onSettled: (task: Task) => void;
}

const NO_TARGETS: readonly QueueKey[] = [];

/** One call of a verb, from when it is made until its caller has an answer. */
export class Task extends Expiring {
  readonly verb: Verb<unknown, unknown>;
  readonly call: unknown;
  readonly join: string | null;
  readonly kind: TaskKind;
  readonly inserts: boolean;
  readonly writes: boolean;
  readonly makes: boolean;
  readonly targets: readonly QueueKey[];
  readonly moves: boolean;
  readonly dueMs: number | null;
  readonly signal: ReadySignal | null;
  readonly items: number;
  readonly bytes: number;
  readonly deadlineAt: number;
  /** The batch that it travels in; null before. */
  batch: Batch | null = null;
  #isSettled = false;
  /** The result, while what must precede the answer is not done. */
  #result: { readonly value: unknown } | null = null;
  readonly #parts: TaskParts;

  constructor(verb: Verb<unknown, unknown>, call: unknown, traits: TaskTraits, parts: TaskParts) {
    super();
    this.verb = verb;
    this.call = call;
    this.join = traits.join ?? null;
    this.kind = traits.kind ?? 'counted';
    this.inserts = traits.inserts ?? false;
    this.writes = traits.writes ?? traits.kind !== 'free';
    this.makes = traits.makes ?? false;
    this.targets = traits.targets ?? NO_TARGETS;
    this.moves = traits.moves ?? false;
    this.dueMs = traits.dueMs ?? null;
    this.signal = traits.signal ?? null;
    this.items = traits.items ?? 1;
    this.bytes = traits.bytes ?? 0;
    this.deadlineAt = parts.deadlineAt;
    this.#parts = parts;
  }

  /** The caller has its answer. */
  get isSettled(): boolean {
    return this.#isSettled;
  }

  resolve(result: unknown): void {
    if (this.#settle()) this.#parts.resolve(result);
  }

  reject(error: unknown): void {
    if (this.#settle()) this.#parts.reject(error);
  }

  /** It is done and cannot be undone, so this is the result, when `settled` is or at the deadline. */
  resolveAfter(settled: Promise<void>, value: unknown): void {
    this.#result = { value };
    void settled.then(() => this.resolve(value));
  }

  expire(): void {
    if (this.#result !== null) this.resolve(this.#result.value);
    else this.#parts.lane.expire(this);
  }

  #settle(): boolean {
    if (this.#isSettled) return false;
    this.#isSettled = true;
    this.#parts.onSettled(this);
    return true;
  }
}

/** Tasks next to each other that one verb serves. */
export interface Bundle {
  readonly verb: Verb<unknown, unknown>;
  readonly tasks: Task[];
}

export function bundled(tasks: readonly Task[]): Bundle[] {
  const bundles: Bundle[] = [];
  let join: string | null = null;
  for (const task of tasks) {
    const last = bundles.at(-1);
    if (last !== undefined && task.join !== null && task.join === join) last.tasks.push(task);
    else bundles.push({ verb: task.verb, tasks: [task] });
    join = task.join;
  }
  return bundles;
}
