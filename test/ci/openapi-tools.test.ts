import assert from 'node:assert/strict';
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { basic, sharedHarness } from '../http/harness.ts';
import { installOpenApiTools, tool } from './openapi/tools.ts';

const SAMPLE = fileURLToPath(new URL('openapi/sample.ts', import.meta.url));

describe('The OpenAPI document in third-party tools', () => {
  const harness = sharedHarness();
  let folder: string;
  let file: string;

  before(async () => {
    await installOpenApiTools();
    // A package.json makes the sample an ES module wherever the folder is.
    folder = await mkdtemp(join(tmpdir(), 'quayside-openapi-'));
    await writeFile(join(folder, 'package.json'), '{"type":"module"}');
    file = join(folder, 'openapi.json');
    const answer = await harness().client().request('GET', '/openapi.json');
    await writeFile(file, answer.body);
  });

  after(() => rm(folder, { recursive: true, force: true }));

  it('passes redocly lint without a problem', async () => {
    const { code, output } = await tool('redocly', ['lint', file, '--format=json']);
    assert.equal(code, 0, output);
    assert.deepEqual(JSON.parse(output.slice(output.indexOf('{'))).problems, [], output);
  });

  it('yields TypeScript types with which a sample program compiles and runs', async () => {
    const generated = join(folder, 'generated.ts');
    const sample = join(folder, 'sample.ts');
    const generation = await tool('openapi-typescript', [file, '-o', generated]);
    assert.equal(generation.code, 0, generation.output);
    await copyFile(SAMPLE, sample);
    const strict = [
      '--noEmit',
      '--skipLibCheck',
      '--strict',
      '--exactOptionalPropertyTypes',
      '--allowImportingTsExtensions',
    ];
    const modern = ['--target', 'es2024', '--module', 'nodenext', '--lib', 'es2024,dom,dom.iterable'];
    const compilation = await tool('tsc', [...strict, ...modern, sample]);
    assert.equal(compilation.code, 0, compilation.output);
    const { run } = (await import(pathToFileURL(sample).href)) as {
      run: (base: string, authorization: string) => Promise<string[]>;
    };
    const seen = await run(`http://127.0.0.1:${harness().port}`, basic('test1', 'test1'));
    assert.deepEqual(seen.slice(3), [
      'inserted string',
      'committed 200',
      'created 201',
      'reads orders, forwards to mails and others',
      'accepted true,true',
      'listed typed@N 0',
      '400 invalid-parameter limit',
    ]);
  });
});
