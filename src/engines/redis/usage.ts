import type { Usage } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import type { Executor } from './client/executor.ts';
import type { Keys } from './keys.ts';
import type { Registry } from './registry.ts';

export interface UsageParts {
  readonly registry: Registry;
  readonly executor: Executor;
  readonly keys: Keys;
}

/** Queues asked in one go. */
const AT_ONCE = 200;
/**
 * Redis measures up to this many fields, members or nodes of a key, which takes it 3 ms at most. It takes the rest of a larger
 * key to be of the same size: measuring all of a million takes half a second, in which it serves nothing else.
 */
const SAMPLES = 10_000;

/** Waiting and reserved deliveries of all queues, by the order of members in their sorted sets; see `library/queue.lua`. */
export function usage(parts: UsageParts, ns: string, needsBytes: boolean): Promise<Usage> {
  const { executor, keys } = parts;
  return usageOf(parts, ns, needsBytes, (queue) => {
    const { hash, order } = keys.queue(queue);
    return {
      elements: [
        executor.read(order, 'ZLEXCOUNT', [order, '[w', '(x']),
        executor.read(order, 'ZLEXCOUNT', [order, '[l', '(m']),
      ],
      bytes: needsBytes ? [memoryOf(executor, hash), memoryOf(executor, order)] : [],
    };
  });
}

/** The same of lists. */
export function listUsage(parts: UsageParts, ns: string, needsBytes: boolean): Promise<Usage> {
  const { executor, keys } = parts;
  return usageOf(parts, ns, needsBytes, (queue) => {
    const key = keys.list(queue);
    return {
      elements: [executor.read(key, 'LLEN', [key])],
      bytes: needsBytes ? [memoryOf(executor, key)] : [],
    };
  });
}

interface Asked {
  readonly elements: readonly Promise<unknown>[];
  readonly bytes: readonly Promise<unknown>[];
}

async function usageOf(
  { registry }: UsageParts,
  ns: string,
  needsBytes: boolean,
  ask: (queue: QueueKey) => Asked,
): Promise<Usage> {
  const names = await registry.names(ns);
  let elements = 0;
  let bytes = 0;
  for (let from = 0; from < names.length; from += AT_ONCE) {
    const asked = names.slice(from, from + AT_ONCE).map((name) => ask({ ns, name }));
    const [counts, sizes] = await Promise.all([
      Promise.all(asked.flatMap((each) => each.elements)),
      Promise.all(asked.flatMap((each) => each.bytes)),
    ]);
    for (const count of counts) elements += Number(count);
    for (const size of sizes) bytes += Number(size);
  }
  return { elements, bytes: needsBytes ? bytes : null };
}

/** The memory that a key takes; null if it does not exist. Unlike a count that is kept, it cannot drift. */
function memoryOf(executor: Executor, key: string): Promise<unknown> {
  return executor.read(key, 'MEMORY', ['USAGE', key, 'SAMPLES', SAMPLES]);
}
