interface Entry {
  /** Done before the group leaves, once for all of its entries that have one; null: nothing to do. */
  readonly prepare: (() => Promise<void>) | null;
  readonly start: () => Promise<unknown>;
  readonly refuse: (error: unknown) => void;
}

/**
 * Keeps the calls of one queue in order: those made in one turn leave together, over one connection, which
 * keeps them in order; later ones wait until these are answered.
 */
export class InOrder {
  readonly #waiting = new Map<string, Entry[]>();

  /** Runs `call` in its turn. Its commands must be sent before it first waits for anything else. */
  run<Result>(
    name: string,
    call: () => Promise<Result>,
    prepare: (() => Promise<void>) | null = null,
  ): Promise<Result> {
    const { promise, resolve, reject } = Promise.withResolvers<Result>();
    const entry: Entry = { prepare, start: () => call().then(resolve, reject), refuse: reject };
    const waiting = this.#waiting.get(name);
    if (waiting === undefined) {
      this.#waiting.set(name, [entry]);
      setImmediate(() => void this.#depart(name));
    } else {
      waiting.push(entry);
    }
    return promise;
  }

  async #depart(name: string): Promise<void> {
    for (;;) {
      const group = this.#waiting.get(name)?.splice(0) ?? [];
      if (group.length === 0) break;
      const problem = await preparing(group);
      const [ready, refused] = problem === null ? [group, []] : parted(group);
      for (const { refuse } of refused) refuse(problem);
      await Promise.all(ready.map(({ start }) => start()));
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

function parted(group: readonly Entry[]): [ready: Entry[], refused: Entry[]] {
  return [group.filter(({ prepare }) => prepare === null), group.filter(({ prepare }) => prepare !== null)];
}
