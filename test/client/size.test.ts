import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gzipSync } from 'node:zlib';
import { build } from 'vite';

const ENTRY = fileURLToPath(new URL('../../src/client/entry.ts', import.meta.url));

/** Bytes that a browser loads for a program with these imports, minified and compressed. */
async function loadedBytes(imported: string): Promise<number> {
  const built = await build({
    configFile: false,
    logLevel: 'silent',
    plugins: [
      {
        name: 'entry',
        resolveId: (id) => (id === 'entry' ? ENTRY : null),
        load: (id) => (id === ENTRY ? `export { ${imported} } from './index.ts';` : null),
      },
    ],
    build: {
      write: false,
      target: 'es2022',
      minify: true,
      modulePreload: false,
      rolldownOptions: { input: 'entry', preserveEntrySignatures: 'strict' },
    },
  });
  assert.ok('output' in built);
  const [chunk, ...others] = built.output;
  assert.deepEqual(others, []);
  return gzipSync(chunk.code, { level: 9 }).length;
}

const CLIENT =
  'Quayside, ConnectionError, LeaseLostError, QuaysideError, StoppedError, TimeoutError, ValidationError';

describe('the size of the client library in a browser', () => {
  it('is at most 8 KiB for inserting, taking, settling and browsing', async () => {
    const bytes = await loadedBytes(CLIENT);
    assert.ok(bytes <= 8 * 1024, `${bytes} bytes`);
  });

  it('is at most 9.75 KiB with the worker', async () => {
    const bytes = await loadedBytes(`${CLIENT}, Worker, RetryLater, Bury`);
    assert.ok(bytes <= 9.75 * 1024, `${bytes} bytes`);
  });
});
