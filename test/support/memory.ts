import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Collects what earlier tests left, for which the garbage collector would otherwise stop a test that measures turns. */
export async function collectGarbage(): Promise<void> {
  await new Promise(setImmediate);
  collect();
}

/** Returns the bytes of heap and buffers in use, without garbage. */
export async function memoryInUse(): Promise<number> {
  for (let i = 0; i < 3; i++) await collectGarbage();
  const { heapUsed, external, arrayBuffers } = process.memoryUsage();
  return heapUsed + external + arrayBuffers;
}

/** Allocates more than the rest of the block that small buffers share, so that the next buffer starts a new block. */
export function useUpBlock(): void {
  for (let bytes = 0; bytes <= Buffer.poolSize; bytes += 1024) Buffer.allocUnsafe(1024);
}
