import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Collects what earlier tests left, for which the garbage collector would otherwise stop a test that measures turns. */
export async function collectGarbage(): Promise<void> {
  await new Promise(setImmediate);
  collect();
}

/** The garbage on the heap that may remain. */
const SETTLED_BYTES = 64 * 1024;

/**
 * Returns the bytes of heap and buffers in use, without garbage: collects until a collection finds none. Two are mostly
 * enough. The second finds what finalizers have released, and V8 frees the buffers that the first has found. Each takes
 * about 0.1 s of processor time in a process that has run hundreds of tests.
 */
export async function memoryInUse(): Promise<number> {
  for (let heapBefore = Number.POSITIVE_INFINITY; ; ) {
    await collectGarbage();
    const { heapUsed, external, arrayBuffers } = process.memoryUsage();
    if (heapBefore - heapUsed < SETTLED_BYTES) return heapUsed + external + arrayBuffers;
    heapBefore = heapUsed;
  }
}

/** Allocates more than the rest of the block that small buffers share, so that the next buffer starts a new block. */
export function useUpBlock(): void {
  for (let bytes = 0; bytes <= Buffer.poolSize; bytes += 1024) Buffer.allocUnsafe(1024);
}
