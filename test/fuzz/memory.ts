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
