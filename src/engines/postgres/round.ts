import type { AnyStep, Batch, Call } from './call.ts';
import type { Queue } from './names.ts';
import type { Query, Row } from './statement.ts';
import { lockStreams } from './verbs/lock-streams.ts';

type AnyBatch = Batch<unknown, unknown>;

interface Planned {
  readonly batch: AnyBatch;
  readonly steps: AnyStep[];
  /** The streams of which it locks elements. */
  readonly locked: Set<Queue>;
}

/**
 * Some calls arranged as few statements, one after the other.
 *
 * Steps of one kind share a statement, whatever their queue. A step never stands before one that was called
 * for earlier and is about the same queue; within a statement the verbs keep the order themselves.
 */
export class Round {
  readonly calls: readonly Call[];
  readonly #planned: Planned[] = [];
  readonly #latestOfKind = new Map<unknown, number>();
  readonly #latestOfQueue = new Map<Queue, number>();

  /** @param before a step that comes first, whatever else there is; null for none */
  constructor(calls: readonly Call[], before: AnyStep | null) {
    this.calls = calls;
    if (before !== null) this.#place(before);
    for (const call of calls) for (const step of call.steps) this.#place(step);
  }

  /** The statements to send, in order. */
  queries(): Query[] {
    const queries = this.#sent().map(({ query }) => query);
    this.#lock = lockStreams(this.#planned.map(({ locked }) => locked).filter(({ size }) => size > 0));
    return this.#lock === null ? queries : [this.#lock, ...queries];
  }

  /** Gives each step its answer. `results` has one entry for each of `queries`. */
  read(results: readonly (readonly Row[])[]): void {
    let at = this.#lock === null ? 0 : 1;
    for (const { batch, steps, query } of this.#all()) {
      const rows = query === null ? [] : (results[at++] ?? []);
      const answers = batch.read(rows);
      for (const [index, step] of steps.entries()) step.answer = answers[index];
    }
  }

  #lock: Query | null = null;
  #queries: (Planned & { readonly query: Query | null })[] | null = null;

  #all(): (Planned & { readonly query: Query | null })[] {
    this.#queries ??= this.#planned.map((planned) => ({ ...planned, query: planned.batch.query() }));
    return this.#queries;
  }

  #sent(): (Planned & { readonly query: Query })[] {
    return this.#all().filter(
      (planned): planned is Planned & { readonly query: Query } => planned.query !== null,
    );
  }

  #place(step: AnyStep): void {
    let from = 0;
    for (const { queue } of step.needs) from = Math.max(from, this.#latestOfQueue.get(queue) ?? 0);
    const latest = this.#latestOfKind.get(step.verb);
    let at = latest !== undefined && latest >= from ? latest : -1;
    if (at < 0 || !this.#add(at, step)) at = this.#open(step);
    for (const { queue } of step.needs) this.#latestOfQueue.set(queue, at);
  }

  #open(step: AnyStep): number {
    const at = this.#planned.length;
    this.#planned.push({ batch: step.verb.batch() as AnyBatch, steps: [], locked: new Set() });
    this.#latestOfKind.set(step.verb, at);
    if (!this.#add(at, step)) throw new Error(`an empty ${step.verb.name} statement refused a step`);
    return at;
  }

  #add(at: number, step: AnyStep): boolean {
    const planned = this.#planned[at];
    if (planned === undefined || !planned.batch.add(step.args)) return false;
    planned.steps.push(step);
    if (step.verb.locksElements) {
      for (const { queue } of step.needs) if (queue.isStream) planned.locked.add(queue);
    }
    return true;
  }
}
