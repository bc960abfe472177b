import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

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
  let document: Document;

  before(async () => {
    document = jsonOf<Document>(await harness().client().request('GET', '/openapi.json'));
  });

  it('declares a server, the types, the bodies of /x and the element headers', () => {
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
