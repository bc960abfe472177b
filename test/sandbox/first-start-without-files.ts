import { closeSync, openSync } from 'node:fs';
import { patientSandbox } from './elements.ts';

/**
 * A process without free file descriptors when its sandbox reads the code of its VM; for the second selector they are
 * free again.
 */
const sandbox = patientSandbox();
const check = (): Promise<string> =>
  sandbox.check([{ path: 'selector', source: 'env => true' }], '').then(
    () => 'works',
    (error: { code: string }) => error.code,
  );

// Resolve the package first, so that only reading its file fails.
import.meta.resolve('quickjs-wasi/quickjs.wasm');
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch {
  // No descriptor is left.
}
const without = await check();
for (const fd of held) closeSync(fd);
const outcomes = [without, await check()];
await sandbox.stop();
process.stdout.write(JSON.stringify(outcomes));
