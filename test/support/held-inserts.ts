import type { Storage } from '../../src/engine/storage.ts';

/** Holds inserts back in front of an engine that stores nothing until it is released. */
export interface HeldInserts {
  /** Bytes of bodies that the engine was given, by queue. */
  readonly bytes: ReadonlyMap<string, number>;
  readonly total: number;
  /** Of each insert, how long the engine had to reply when it was given it. */
  readonly leftMs: readonly number[];
  release(): void;
}

export function holdInserts(storage: Storage): HeldInserts {
  const insert = storage.insert.bind(storage);
  const held = Promise.withResolvers<void>();
  const bytes = new Map<string, number>();
  const leftMs: number[] = [];
  storage.insert = async (queue, elements, options) => {
    leftMs.push(options?.leftMs ?? Number.POSITIVE_INFINITY);
    for (const { body } of elements) bytes.set(queue.name, (bytes.get(queue.name) ?? 0) + body.byteLength);
    await held.promise;
    return insert(queue, elements, options);
  };
  return {
    bytes,
    leftMs,
    get total() {
      return [...bytes.values()].reduce((sum, one) => sum + one, 0);
    },
    release: () => {
      storage.insert = insert;
      held.resolve();
    },
  };
}
