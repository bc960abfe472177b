import assert from 'node:assert/strict';
import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { installOpenApiTools, tool } from '../openapi/tools.ts';
import { jsonOf } from '../support/http-client.ts';
import { basic, sharedHarness } from './harness.ts';

const SAMPLE = fileURLToPath(new URL('../openapi/sample.ts', import.meta.url));

interface Schema {
  readonly type?: string;
  readonly $ref?: string;
}

interface Operation {
  readonly parameters: readonly { readonly name: string; readonly in: string; readonly schema: Schema }[];
  readonly requestBody?: { readonly content: Record<string, { readonly schema?: Schema }> };
  readonly responses: Record<
    string,
    { readonly headers?: object; readonly content?: Record<string, { readonly schema?: Schema }> }
  >;
}

interface Document {
  readonly servers: readonly { readonly url: string }[];
  readonly paths: Record<string, Record<string, Operation>>;
  readonly components: { readonly schemas: Record<string, object> };
}

describe('The OpenAPI document', () => {
  const harness = sharedHarness();
  let folder: string;
  let file: string;
  let document: Document;

  before(async () => {
    await installOpenApiTools();
    // Its own package.json, so that the sample is a module wherever the folder is.
    folder = await mkdtemp(join(tmpdir(), 'quayside-openapi-'));
    await writeFile(join(folder, 'package.json'), '{"type":"module"}');
    file = join(folder, 'openapi.json');
    const answer = await harness().client().request('GET', '/openapi.json');
    document = jsonOf<Document>(answer);
    await writeFile(file, answer.body);
  });

  after(() => rm(folder, { recursive: true, force: true }));

  it('has nothing that redocly lint complains about', async () => {
    const { code, output } = await tool('redocly', ['lint', file, '--format=json']);
    assert.equal(code, 0, output);
    assert.deepEqual(JSON.parse(output.slice(output.indexOf('{'))).problems, [], output);
  });

  it('generates types on which a program compiles, and the program runs', async () => {
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

  it('names a server, its types, the bodies of /x, and the headers of elements', () => {
    assert.deepEqual(
      document.servers.map(({ url }) => url),
      ['/'],
    );
    const { paths, components } = document;
    for (const name of ['QueueInformation', 'ExchangeInformation', 'PendingConsumer', 'Node', 'Problem']) {
      assert.ok(name in components.schemas, name);
    }
    const bodyOf = (path: string, method: string): unknown =>
      paths[path]?.[method]?.requestBody?.content['application/json']?.schema;
    assert.deepEqual(bodyOf('/x/{id}', 'put'), { $ref: '#/components/schemas/ExchangeDeclaration' });
    assert.deepEqual(bodyOf('/x/{id}', 'post'), { $ref: '#/components/schemas/ExchangeDeclaration' });
    assert.deepEqual(bodyOf('/x/{id}/test', 'post'), { $ref: '#/components/schemas/ExchangeTrialRequest' });
    const element = paths['/q/{namespace}/{queue}'];
    assert.ok(element?.put?.parameters.some((one) => one.in === 'header' && one.name === 'x-ks-hdr-*'));
    assert.ok('x-ks-hdr-*' in (element?.get?.responses[200]?.headers ?? {}));
  });

  it('describes every flag as a boolean', () => {
    const operations = Object.values(document.paths).flatMap((methods) => Object.values(methods));
    const flags = operations.flatMap(({ parameters }) =>
      parameters.filter(({ name }) => ['reserve', 'array', 'tree', 'reload', 'verbose'].includes(name)),
    );
    assert.ok(flags.length > 10);
    for (const { name, schema } of flags) assert.equal(schema.type, 'boolean', name);
  });
});
