interface Entry {
  /** Done before the entry's whole group leaves; null: nothing to do. */
  readonly prepare: () => Promise<void> | null;
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
    prepare: () => Promise<void> | null = () => null,
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
      const ready: Entry[] = [];
      for (const entry of group) if (await prepared(entry)) ready.push(entry);
      await Promise.all(ready.map(({ start }) => start()));
    }
    this.#waiting.delete(name);
  }
}

async function prepared({ prepare, refuse }: Entry): Promise<boolean> {
  try {
    await prepare();
    return true;
  } catch (error) {
    refuse(error);
    return false;
  }
}
