import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

/** Bytes of the heap and of buffers that are in use, garbage not counted. */
export async function memoryInUse(): Promise<number> {
  for (let i = 0; i < 3; i++) {
    await new Promise(setImmediate);
    collect();
  }
  const { heapUsed, external, arrayBuffers } = process.memoryUsage();
  return heapUsed + external + arrayBuffers;
}

/** Allocates more than what is left of the block that small buffers share: the next one begins another. */
export function useUpBlock(): void {
  for (let bytes = 0; bytes <= Buffer.poolSize; bytes += 1024) Buffer.allocUnsafe(1024);
}
