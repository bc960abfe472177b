import { closeSync, openSync } from 'node:fs';
import { patientSandbox } from './elements.ts';

/**
 * A process that has no file descriptor left when its sandbox reads the code of its VM, and for its second selector has
 * again.
 */
const sandbox = patientSandbox();
const check = (): Promise<string> =>
  sandbox.check([{ path: 'selector', source: 'env => true' }], '').then(
    () => 'works',
    (error: { code: string }) => error.code,
  );

// Node remembers where the package is, so that only the reading fails.
import.meta.resolve('quickjs-wasi/quickjs.wasm');
const held: number[] = [];
try {
  for (;;) held.push(openSync('/dev/null', 'r'));
} catch {
  // None is left.
}
const without = await check();
for (const fd of held) closeSync(fd);
const outcomes = [without, await check()];
await sandbox.stop();
process.stdout.write(JSON.stringify(outcomes));
