import type { ReadySignal } from '../../../engine/signaller.ts';
import type { QuaysideError } from '../../../model/errors.ts';
import type { Arg } from '../client/connection.ts';

/** One verb's part of a reply of the library. */
export interface Answer {
  /** The queue's tag, with which its ids begin; empty while the queue is unknown. */
  readonly tag: string;
  readonly text: Buffer;
  /** Stored values of elements, where the verb answers any. */
  readonly elements: readonly (Buffer | null)[];
}

/**
 * A verb of the library (`library/*.lua`): how calls of it become arguments, and its answer theirs. Calls that
 * follow each other with the same `join` travel as one.
 */
export interface Verb<Call, Result> {
  readonly name: string;
  encode(calls: readonly Call[]): readonly Arg[];
  /** One result per call, in their order; an error for a call that was refused. */
  decode(answer: Answer, calls: readonly Call[]): readonly (Result | QuaysideError)[];
}

/**
 * - `counted`: must not be done twice, so it is numbered and its answer kept.
 * - `free`: may be done again: it only looks, or does what is already due.
 */
export type TaskKind = 'counted' | 'free';

export interface Task {
  readonly verb: Verb<unknown, unknown>;
  readonly call: unknown;
  /** Null: travels alone. */
  readonly join: string | null;
  readonly kind: TaskKind;
  /** It stores what needs memory: refused where the server has none left. */
  readonly inserts: boolean;
  /** Where changes wait for replicas, this one does. */
  readonly writes: boolean;
  /** It makes its queue known. */
  readonly makes: boolean;
  /** Leases, or retention, of this length may begin: the queue must be swept by then. */
  readonly dueMs: number | null;
  /** What is said when it is done; null: nothing. */
  readonly signal: ReadySignal | null;
  /** Elements or references, and bytes that it sends. */
  readonly items: number;
  readonly bytes: number;
  /** By the monotonic clock. */
  readonly deadlineAt: number;
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** What a storage verb says of a call, besides the call. */
export interface TaskTraits {
  readonly join?: string;
  readonly kind?: TaskKind;
  readonly inserts?: boolean;
  /** Where it is not given: if it is counted. */
  readonly writes?: boolean;
  readonly makes?: boolean;
  readonly dueMs?: number | null;
  readonly signal?: ReadySignal | null;
  readonly items?: number;
  readonly bytes?: number;
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
