import type { Need, Queue } from './names.ts';
import type { Query, Row } from './statement.ts';

/** A kind of step: all steps of one kind that are called for at the same time travel as one statement. */
export interface Verb<A, R> {
  readonly name: string;
  /** Whether its statement locks elements of streams, as those do that may finish one or bring it back. */
  readonly locksElements?: boolean;
  batch(): Batch<A, R>;
}

/** Steps of one kind on their way as one statement. Filled once their queues have numbers. */
export interface Batch<A, R> {
  /**
   * Adds a step. Answers false where it has to go into a later statement, because this one could not tell it
   * from a step that it holds already; nothing was added then.
   */
  add(args: A): boolean;
  /** The statement; null where there is nothing to ask the database. */
  query(): Query | null;
  /** The answers of the steps, in the order in which they were added. */
  read(rows: readonly Row[]): R[];
}

/** A part of a port call that fits into one statement. Most calls have one step. */
export class Step<A = unknown, R = unknown> {
  readonly verb: Verb<A, R>;
  readonly args: A;
  readonly needs: readonly Need[];
  answer: R | undefined;

  constructor(verb: Verb<A, R>, args: A, needs: readonly Need[]) {
    this.verb = verb;
    this.args = args;
    this.needs = needs;
  }
}

/** What a call means for those who gather it with others, and for what its failure says. */
export interface CallKind {
  /** Whether it changes anything: then an answer that does not come leaves it open whether it did. */
  readonly changes: boolean;
  /** Whether it stores elements: a full disk is then its own answer. */
  readonly inserts: boolean;
  /** Bytes and rows that it sends or asks for: they bound what goes into one round trip. */
  readonly bytes: number;
  readonly rows: number;
}

/** Steps as the pipeline holds them, whatever they take and answer. */
export type AnyStep = Step<unknown, unknown>;

/** What becomes of a call. */
export interface CallEnd {
  /** Whether the call may go on with more steps after the first ones; then later calls about its queues wait. */
  readonly mayGoOn: boolean;
  /** Takes the answered steps. Answers more steps, which run next, or null where the call is done. */
  done(steps: readonly AnyStep[]): readonly AnyStep[] | null;
  fail(error: Error): void;
}

/**
 * One call of the Storage port on its way.
 *
 * States: pending -> sent -> settled; pending -> settled where its time is over; sent -> pending where it is
 * known that nothing of it happened and that trying again is right, or where it goes on.
 */
export class Call {
  readonly kind: CallKind;
  /** `monotonic` ms at which the caller must have its answer. */
  answerBy: number;
  steps: readonly AnyStep[];
  settled = false;
  readonly #end: CallEnd;
  readonly #onSettled: () => void;

  constructor(
    kind: CallKind,
    steps: readonly AnyStep[],
    end: CallEnd,
    { answerBy, onSettled }: { answerBy: number; onSettled: () => void },
  ) {
    this.kind = kind;
    this.answerBy = answerBy;
    this.steps = steps;
    this.#end = end;
    this.#onSettled = onSettled;
  }

  get mayGoOn(): boolean {
    return this.#end.mayGoOn;
  }

  needs(): Need[] {
    return this.steps.flatMap((step) => step.needs);
  }

  *queues(): Iterable<Queue> {
    for (const step of this.steps) for (const need of step.needs) yield need.queue;
  }

  /**
   * All steps were answered and are durable. Answers whether the call goes on with more steps.
   * @param answerBy for those steps: a long call is late where it stands still, not where it is long
   */
  succeed(answerBy: number): boolean {
    if (this.settled) return false;
    const more = this.#end.done(this.steps);
    if (more === null) {
      this.#settle();
      return false;
    }
    this.steps = more;
    this.answerBy = answerBy;
    return true;
  }

  fail(error: Error): void {
    if (this.settled) return;
    this.#settle();
    this.#end.fail(error);
  }

  #settle(): void {
    this.settled = true;
    this.#onSettled();
  }
}
