/** The reads of one turn of the event loop. */
interface SharedRead<Key, Value> {
  readonly keys: Key[];
  readonly values: Promise<readonly Value[]>;
}

/**
 * Joins the reads of one turn of the event loop, such as those of a listing of queues, into few calls of a store: a
 * call for each queue took most of the processor time of a listing.
 */
export class SharedReads<Key, Value> {
  readonly #maxKeys: () => number;
  readonly #readAll: (keys: readonly Key[]) => Promise<readonly Value[]>;
  /** What further reads of this turn join; null: there is none. */
  #shared: SharedRead<Key, Value> | null = null;

  /**
   * @param maxKeys how many keys one call may have
   * @param readAll returns the value of each key, in their order; if it fails, the reads of all its keys fail
   */
  constructor(maxKeys: () => number, readAll: (keys: readonly Key[]) => Promise<readonly Value[]>) {
    this.#maxKeys = maxKeys;
    this.#readAll = readAll;
  }

  /** The value of one key, read after all calls of this turn. */
  async read(key: Key): Promise<Value> {
    this.#shared ??= this.#start();
    const { keys, values } = this.#shared;
    const index = keys.push(key) - 1;
    if (keys.length >= this.#maxKeys()) this.#shared = null;
    return (await values)[index] as Value;
  }

  #start(): SharedRead<Key, Value> {
    const keys: Key[] = [];
    const values = new Promise((resolve) => setImmediate(resolve)).then(() => {
      if (this.#shared?.keys === keys) this.#shared = null;
      return this.#readAll(keys);
    });
    return { keys, values };
  }
}
