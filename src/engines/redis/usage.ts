import type { Usage } from '../../engine/storage.ts';
import type { Executor } from './client/executor.ts';
import type { Keys } from './keys.ts';
import type { Registry } from './registry.ts';

export interface UsageParts {
  readonly registry: Registry;
  readonly executor: Executor;
  readonly keys: Keys;
  /** The queues are lists. */
  readonly isList: boolean;
}

/** Queues asked in one go. */
const AT_ONCE = 200;
/**
 * Redis measures up to this many fields, members or nodes of a key, which takes it 3 ms at most. It takes the rest of a larger
 * key to be of the same size: measuring all of a million takes half a second, in which it serves nothing else.
 */
const SAMPLES = 10_000;

/** What the queues of a namespace hold: see `library/queue.lua` and `library/list.lua`. */
export async function usage(
  { registry, executor, keys, isList }: UsageParts,
  ns: string,
  needsBytes: boolean,
): Promise<Usage> {
  const names = await registry.names(ns);
  let elements = 0;
  let bytes = 0;
  for (let from = 0; from < names.length; from += AT_ONCE) {
    const counting: Promise<unknown>[] = [];
    const measuring: Promise<unknown>[] = [];
    for (const name of names.slice(from, from + AT_ONCE)) {
      const { hash, order } = keys.queue({ ns, name });
      const list = keys.list({ ns, name });
      if (isList) {
        counting.push(executor.read(list, 'LLEN', [list]));
      } else {
        counting.push(executor.read(order, 'ZLEXCOUNT', [order, '[w', '(x']));
        counting.push(executor.read(order, 'ZLEXCOUNT', [order, '[l', '(m']));
      }
      if (!needsBytes) continue;
      for (const key of isList ? [list] : [hash, order]) measuring.push(memoryOf(executor, key));
    }
    for (const count of await Promise.all(counting)) elements += Number(count);
    for (const size of await Promise.all(measuring)) bytes += Number(size);
  }
  return { elements, bytes: needsBytes ? bytes : null };
}

/** The memory that a key takes; null if it does not exist. Unlike a count that is kept, it cannot drift. */
function memoryOf(executor: Executor, key: string): Promise<unknown> {
  return executor.read(key, 'MEMORY', ['USAGE', key, 'SAMPLES', SAMPLES]);
}
