import type { Storage } from '../../src/engine/storage.ts';

/**
 * Holds back what a queue holds, which is read to know whether it is full, and notes what the engine is given in that
 * time.
 */
export interface HeldCounts {
  /** `insert` and `settle`, in the order in which the engine was given them. */
  readonly calls: readonly string[];
  /** Resolves when a count is asked for. */
  readonly asked: Promise<void>;
  release(): void;
  /** Releases it, and leaves the storage as it was. */
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
