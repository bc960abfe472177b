/** What calls of one kind do. Those that follow each other travel as one. */
export interface Work<Call, Result> {
  /**
   * Answers each call its result; where it rejects, all of them were refused. Its commands must be sent before
   * it first waits for anything else.
   */
  run(calls: readonly Call[], deadlineAt: number): Promise<readonly Result[]>;
}

/** One call, and what it needs. */
export interface Errand<Call, Result> {
  readonly work: Work<Call, Result>;
  readonly call: Call;
  readonly items: number;
  readonly bytes: number;
  /** By the monotonic clock. */
  readonly deadlineAt: number;
  /** Done before the calls that are under way together, once for all of them; null: nothing to do. */
  readonly prepare: (() => Promise<void>) | null;
}

interface Entry extends Errand<unknown, unknown> {
  readonly resolve: (result: unknown) => void;
  readonly reject: (error: unknown) => void;
}

/** What one command carries at most, unless a single call is larger. */
const MOST_ITEMS = 1_000;
const MOST_BYTES = 4 * 1024 * 1024;

/**
 * Keeps the calls of one queue in order: those made in one turn leave together, over one connection, which
 * keeps them in order; later ones wait until these are answered.
 */
export class InOrder {
  readonly #waiting = new Map<string, Entry[]>();

  /** Runs an errand in its turn. */
  run<Call, Result>(name: string, errand: Errand<Call, Result>): Promise<Result> {
    return new Promise((resolve, reject) => {
      const entry = { ...errand, resolve, reject } as Entry;
      const waiting = this.#waiting.get(name);
      if (waiting === undefined) {
        this.#waiting.set(name, [entry]);
        setImmediate(() => void this.#depart(name));
      } else {
        waiting.push(entry);
      }
    });
  }

  async #depart(name: string): Promise<void> {
    for (;;) {
      const group = this.#waiting.get(name)?.splice(0) ?? [];
      if (group.length === 0) break;
      const problem = await preparing(group);
      const ready = problem === null ? group : group.filter(({ prepare }) => prepare === null);
      for (const { prepare, reject } of group) if (problem !== null && prepare !== null) reject(problem);
      await Promise.all(bundled(ready).map(runTogether));
    }
    this.#waiting.delete(name);
  }
}

/** Answers what went wrong; null: nothing. */
async function preparing(group: readonly Entry[]): Promise<unknown> {
  try {
    await group.find(({ prepare }) => prepare !== null)?.prepare?.();
    return null;
  } catch (error) {
    return error;
  }
}

/** Neighbours of the same work, as many as one command may carry. */
function bundled(entries: readonly Entry[]): Entry[][] {
  const bundles: Entry[][] = [];
  let [items, bytes] = [0, 0];
  for (const entry of entries) {
    const last = bundles.at(-1);
    items += entry.items;
    bytes += entry.bytes;
    if (last !== undefined && last[0]?.work === entry.work && items <= MOST_ITEMS && bytes <= MOST_BYTES) {
      last.push(entry);
    } else {
      bundles.push([entry]);
      [items, bytes] = [entry.items, entry.bytes];
    }
  }
  return bundles;
}

/** Never rejects. */
async function runTogether(bundle: readonly Entry[]): Promise<void> {
  const [first] = bundle;
  if (first === undefined) return;
  try {
    const results = await first.work.run(
      bundle.map(({ call }) => call),
      first.deadlineAt,
    );
    for (const [i, { resolve }] of bundle.entries()) resolve(results[i]);
  } catch (error) {
    for (const { reject } of bundle) reject(error);
  }
}
