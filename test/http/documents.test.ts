import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { HTTP_ERRORS } from '../../src/http/errors.ts';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import type { Route } from '../../src/http/route.ts';
import { commonProblemsOf, parametersOf, problemsOf, routeTable } from '../../src/http/routes/table.ts';
import { jsonOf } from '../support/http-client.ts';
import { pageTable } from '../support/page-table.ts';
import { sharedHarness } from './harness.ts';

const PAGE = readFileSync(new URL('../../docs/protocols/http.md', import.meta.url), 'utf8');
const ROUTES = routeTable({ options: HTTP_DEFAULTS, version: '0' });

/** The sections of a page by heading; their text excludes the heading. */
function sections(text: string, level: string): Map<string, string> {
  const parts = text.split(new RegExp(`^${level} `, 'm')).slice(1);
  return new Map(
    parts.map((part) => [part.slice(0, part.indexOf('\n')), part.slice(part.indexOf('\n') + 1)]),
  );
}

function operationSection({ id }: Route): string {
  const operations = sections(PAGE, '##').get('Operations') ?? '';
  const section = sections(operations, '###').get(`\`${id}\``);
  assert.ok(section !== undefined, `docs/protocols/http.md has a section ### \`${id}\``);
  return section;
}

function codes(text: string): Set<string> {
  return new Set([...text.matchAll(/`([a-z-]+)`/g)].map(([, code]) => code ?? ''));
}

describe('docs/protocols/http.md and the code', () => {
  it('list the same operations, methods, paths, rights and statuses', () => {
    const documented = pageTable(PAGE, 'operation');
    const built = ROUTES.map(({ id, methods, path, access, responses }) => [
      `\`${id}\``,
      methods.join(', '),
      `\`${path}\``,
      access,
      [...new Set(responses.map(({ status }) => status))].join(', '),
    ]);
    assert.deepEqual(documented, built);
  });

  it('have one section for each operation and no other sections', () => {
    const operations = sections(PAGE, '##').get('Operations') ?? '';
    const documented = [...sections(operations, '###').keys()].sort();
    assert.deepEqual(documented, ROUTES.map(({ id }) => `\`${id}\``).sort());
  });

  for (const route of ROUTES) {
    it(`list the same parameters of ${route.id}, with the same defaults`, () => {
      const documented = pageTable(operationSection(route), 'parameter').map(([name, where]) => [
        name,
        where,
      ]);
      const built = [
        ...parametersOf(route).map(([name]) => [`\`${name}\``, 'query']),
        ...Object.keys(route.headers).map((name) => [`\`${name}\``, 'header']),
      ];
      assert.deepEqual(documented, built);
      const defaults = new Map(
        pageTable(operationSection(route), 'parameter').map(([name, , value]) => [name, value]),
      );
      for (const [name, { fallback }] of parametersOf(route)) {
        const value = defaults.get(`\`${name}\``) ?? '';
        if (fallback === null) assert.doesNotMatch(value, /`/, `${name} has no constant default`);
        else assert.equal(value, `\`${Number(fallback)}\``, name);
      }
    });

    it(`list the same errors of ${route.id}`, () => {
      const line = /^Errors: ([\s\S]*?)\.$/m.exec(operationSection(route))?.[1] ?? '';
      const common = new Set(commonProblemsOf(route));
      const own = problemsOf(route).filter((code) => !common.has(code) || route.problems.includes(code));
      assert.deepEqual(codes(line), new Set(own));
    });

    it(`list the same headers in the responses of ${route.id}`, () => {
      const names = route.responses.flatMap(({ headers = {} }) => Object.keys(headers));
      const section = operationSection(route).toLowerCase();
      for (const name of names) assert.ok(section.includes(`\`${name}\``), name);
      const documented = pageTable(operationSection(route), 'header').map(([name]) => name);
      if (documented.length > 0)
        assert.deepEqual(
          documented,
          names.map((name) => `\`${name}\``),
        );
    });
  }

  it('list the same errors that any operation of a kind may be answered with', () => {
    const intro = /in addition, any operation[\s\S]*?\n\n/i.exec(PAGE)?.[0] ?? '';
    const built = new Set(ROUTES.flatMap((route) => commonProblemsOf(route)));
    assert.deepEqual(codes(intro), built);
  });

  it('list the same error codes with the same statuses', () => {
    const documented = pageTable(sections(PAGE, '##').get('Errors') ?? '', 'code').map(([code, status]) => [
      code,
      status,
    ]);
    const built = Object.entries(HTTP_ERRORS).map(([code, { status }]) => [`\`${code}\``, String(status)]);
    assert.deepEqual(documented, built);
  });
});

interface OpenApi {
  readonly openapi: string;
  readonly paths: Record<string, Record<string, OpenApiOperation>>;
}

interface OpenApiOperation {
  readonly operationId: string;
  readonly parameters: readonly { readonly name: string; readonly in: string }[];
  readonly responses: Record<string, { readonly content?: object }>;
}

describe('GET /openapi.json', () => {
  const harness = sharedHarness();

  it('has every method of every route, with its parameters and its statuses', async () => {
    const document = jsonOf<OpenApi>(await harness().client().request('GET', '/openapi.json'));
    assert.equal(document.openapi, '3.1.0');
    const ids = new Set<string>();
    let operations = 0;
    // Routes that only browsers load are described on the page instead.
    for (const route of ROUTES.filter(({ isPage }) => !isPage)) {
      for (const method of route.methods) {
        const operation = document.paths[route.path.replace(/:(\w+)/g, '{$1}')]?.[method.toLowerCase()];
        assert.ok(operation, `${method} ${route.path}`);
        operations += 1;
        ids.add(operation.operationId);
        const inQuery = operation.parameters.filter((one) => one.in === 'query').map(({ name }) => name);
        assert.deepEqual(
          inQuery,
          parametersOf(route).map(([name]) => name),
        );
        for (const { status } of route.responses) assert.ok(String(status) in operation.responses);
        for (const code of problemsOf(route)) {
          assert.ok(String(HTTP_ERRORS[code].status) in operation.responses, `${route.id}: ${code}`);
        }
      }
    }
    assert.equal(ids.size, operations, 'operation ids are unique');
    assert.equal(Object.values(document.paths).flatMap((methods) => Object.keys(methods)).length, operations);
  });

  it('names the content type of each error that is not sent as problem details', async () => {
    const { paths } = jsonOf<OpenApi>(await harness().client().request('GET', '/openapi.json'));
    const types = (path: string, status: number): string[] =>
      Object.keys(paths[path]?.get?.responses[status]?.content ?? {});
    const problem = 'application/problem+json';
    assert.deepEqual(types('/q/{namespace}/{queue}', 410), ['text/html; charset=utf-8', problem]);
    assert.deepEqual(types('/q/{namespace}/{queue}', 504), ['application/json', problem]);
    assert.deepEqual(types('/x/{id}', 404), ['text/html; charset=utf-8', problem]);
    assert.deepEqual(types('/q/{namespace}', 404), [problem]);
  });

  it('contains no dangling reference', async () => {
    const text = (await harness().client().request('GET', '/openapi.json')).body.toString();
    const document = JSON.parse(text);
    for (const [, pointer = ''] of text.matchAll(/"\$ref":"#\/([^"]+)"/g)) {
      const found = pointer.split('/').reduce((at, key) => at?.[key], document);
      assert.ok(found, pointer);
    }
  });
});
