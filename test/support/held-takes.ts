import type { Storage } from '../../src/engine/storage.ts';

/** Holds calls back in front of an engine that reads nothing until it is released. */
export interface HeldTakes {
  /** The queues of the calls that the engine was given, in their order. */
  readonly queues: readonly string[];
  /** Of each of them, how long the engine had to reply when it was given it. */
  readonly leftMs: readonly number[];
  release(): void;
}

/** @param isHeld which queues; not given: all */
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

/** The same for scans. */
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
