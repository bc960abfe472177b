import assert from 'node:assert/strict';
import { before, describe, it } from 'node:test';
import { jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

interface Schema {
  readonly type?: string;
  readonly $ref?: string;
  readonly additionalProperties?: unknown;
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

  const schemaOf = (schema: Schema | undefined): Schema | undefined =>
    schema?.$ref === undefined
      ? schema
      : (document.components.schemas[schema.$ref.slice('#/components/schemas/'.length)] as Schema);

  it('says that unknown members of JSON bodies are rejected, as they are', async () => {
    const client = harness().client();
    let count = 0;
    for (const [path, methods] of Object.entries(document.paths)) {
      for (const [method, { requestBody }] of Object.entries(methods)) {
        const body = requestBody?.content['application/json'];
        if (body === undefined) continue;
        const { additionalProperties } = schemaOf(body.schema) ?? {};
        assert.equal(additionalProperties, false, `${method} ${path}`);
        const target = path.replace('{namespace}', 'N').replace(/\{\w+\}/g, 'x');
        const json = JSON.stringify({ unheard_of: 1 });
        const answer = await client.request(method.toUpperCase(), target, { body: json });
        const { code, parameter } = jsonOf<{ code: string; parameter: string }>(answer);
        assert.deepEqual([code, parameter], ['invalid-parameter', 'unheard_of'], `${method} ${path}`);
        count += 1;
      }
    }
    assert.ok(count >= 9, `${count} bodies`);
  });

  it('combines no schema with another one that forbids its members', () => {
    const closed: string[] = [];
    const visit = (node: unknown, path: string): void => {
      if (typeof node !== 'object' || node === null) return;
      for (const [key, inner] of Object.entries(node)) visit(inner, `${path}/${key}`);
      const { allOf = [] } = node as { allOf?: readonly Schema[] };
      if (allOf.some((part) => schemaOf(part)?.additionalProperties === false)) closed.push(path);
    };
    visit(document, '');
    assert.deepEqual(closed, []);
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
