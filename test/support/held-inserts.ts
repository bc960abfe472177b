import type { Storage } from '../../src/engine/storage.ts';

/** Inserts that are blocked before they reach the engine until they are released. */
export interface HeldInserts {
  /** Bytes of the bodies passed to the engine, by queue. */
  readonly bytes: ReadonlyMap<string, number>;
  readonly total: number;
  /** For each insert, the time left for the engine to reply, ms. */
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
