import type { Storage } from '../../src/engine/storage.ts';

/** Holds takes back in front of an engine that reads nothing until it is released. */
export interface HeldTakes {
  /** The queues of the takes that the engine was given, in their order. */
  readonly queues: readonly string[];
  /** Of each of them, how long the engine had to reply when it was given it. */
  readonly leftMs: readonly number[];
  release(): void;
}

/** @param isHeld which queues; not given: all */
export function holdTakes(storage: Storage, isHeld = (_queue: string): boolean => true): HeldTakes {
  const take = storage.take.bind(storage);
  const held = Promise.withResolvers<void>();
  const queues: string[] = [];
  const leftMs: number[] = [];
  storage.take = async (queue, options) => {
    queues.push(queue.name);
    leftMs.push(options.leftMs ?? Number.POSITIVE_INFINITY);
    if (isHeld(queue.name)) await held.promise;
    return take(queue, options);
  };
  return {
    queues,
    leftMs,
    release: () => {
      storage.take = take;
      held.resolve();
    },
  };
}
