import type { Storage } from '../../src/engine/storage.ts';

/** Calls that are blocked before they reach the engine until they are released. */
export interface HeldTakes {
  /** The queues of the calls passed to the engine, in their order. */
  readonly queues: readonly string[];
  /** For each of them, the time left for the engine to reply, ms. */
  readonly leftMs: readonly number[];
  release(): void;
}

/** @param isHeld selects the queues whose takes are blocked; default: all */
export function holdTakes(storage: Storage, isHeld = (_queue: string): boolean => true): HeldTakes {
  const take = storage.take.bind(storage);
  const gate = new Gate(isHeld, () => {
    storage.take = take;
  });
  storage.take = async (queue, options) => {
    await gate.pass(queue.name, options.leftMs);
    return take(queue, options);
  };
  return gate;
}

/** Blocks scans in the same way. */
export function holdScans(storage: Storage, isHeld: (queue: string) => boolean): HeldTakes {
  const scan = storage.scan.bind(storage);
  const gate = new Gate(isHeld, () => {
    storage.scan = scan;
  });
  storage.scan = async (queue, options) => {
    await gate.pass(queue.name, options.leftMs);
    return scan(queue, options);
  };
  return gate;
}

class Gate implements HeldTakes {
  readonly queues: string[] = [];
  readonly leftMs: number[] = [];
  readonly #opened = Promise.withResolvers<void>();
  readonly #isHeld: (queue: string) => boolean;
  readonly #restore: () => void;

  constructor(isHeld: (queue: string) => boolean, restore: () => void) {
    this.#isHeld = isHeld;
    this.#restore = restore;
  }

  async pass(queue: string, leftMs = Number.POSITIVE_INFINITY): Promise<void> {
    this.queues.push(queue);
    this.leftMs.push(leftMs);
    if (this.#isHeld(queue)) await this.#opened.promise;
  }

  readonly release = (): void => {
    this.#restore();
    this.#opened.resolve();
  };
}
