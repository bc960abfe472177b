import type { Storage } from '../../src/engine/storage.ts';

/** Delays the count that is read to know whether a queue is full, and records the calls of the engine during it. */
export interface HeldCounts {
  /** Calls of `insert` and `settle`, in the order in which the engine received them. */
  readonly calls: readonly string[];
  /** Resolves when a count is requested. */
  readonly asked: Promise<void>;
  release(): void;
  /** Releases the count and restores the storage. */
  end(): void;
}

export function holdCounts(storage: Storage): HeldCounts {
  const { insert, settle, counts } = storage;
  const calls: string[] = [];
  const asked = Promise.withResolvers<void>();
  const released = Promise.withResolvers<void>();
  storage.insert = (...given) => {
    calls.push('insert');
    return insert.apply(storage, given);
  };
  storage.settle = (...given) => {
    calls.push('settle');
    return settle.apply(storage, given);
  };
  storage.counts = async (...given) => {
    asked.resolve();
    await released.promise;
    return counts.apply(storage, given);
  };
  return {
    calls,
    asked: asked.promise,
    release: released.resolve,
    end: () => {
      released.resolve();
      Object.assign(storage, { insert, settle, counts });
    },
  };
}
