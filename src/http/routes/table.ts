import type { ErrorCode } from '../../model/errors.ts';
import { namedObject, Type } from '../../util/schema.ts';
import { SESSION_COOKIE } from '../browser.ts';
import { HTTP_ERRORS, PROBLEM_JSON } from '../errors.ts';
import { STATUS_CODES } from '../node-http.ts';
import type { HttpParts } from '../options.ts';
import type { QueryParameter } from '../parameters.ts';
import { type BodyUse, type ResponseNote, type Route, route } from '../route.ts';
import { MULTIPART, NDJSON } from '../written-elements.ts';
import { browseRoutes } from './browse.ts';
import { consoleRoutes } from './console.ts';
import { definitionRoutes } from './definitions.ts';
import { eventRoutes } from './events.ts';
import { exchangeRoutes } from './exchanges.ts';
import { exportRoutes } from './export.ts';
import { findQueuesRoutes } from './find-queues.ts';
import { insertRoutes } from './inserts.ts';
import { listingRoutes } from './listings.ts';
import { operationRoutes } from './operations.ts';
import { operatorRoutes } from './operators.ts';
import { queueRoutes } from './queues.ts';
import { settleRoutes } from './settlements.ts';
import { takeRoutes } from './takes.ts';
import { tokenRoutes } from './tokens.ts';

/** Every route of this server: the one table for dispatch and the documentation. */
export function routeTable({ options, version }: Pick<HttpParts, 'options' | 'version'>): readonly Route[] {
  const routes: readonly Route[] = [
    ...listingRoutes,
    ...findQueuesRoutes,
    ...queueRoutes,
    ...insertRoutes,
    ...settleRoutes,
    ...takeRoutes,
    ...exchangeRoutes,
    ...exportRoutes,
    ...operationRoutes,
    ...definitionRoutes,
    ...eventRoutes,
    ...browseRoutes,
    ...(options.consoleFolder === null ? [] : consoleRoutes(options.consoleFolder)),
    ...tokenRoutes,
    ...operatorRoutes(options.metricsWithoutLogin),
    documentRoute(version, () => routes),
  ];
  return routes;
}

/** @param routes returns the whole table, once it is complete */
function documentRoute(version: string, routes: () => readonly Route[]): Route {
  let document: string | null = null;
  return route({
    id: 'openApi',
    path: '/openapi.json',
    summary: 'This interface, as an OpenAPI 3.1 document',
    access: 'user',
    responses: [{ status: 200, description: 'The document.', contentType: 'application/json' }],
    handle(call) {
      document ??= JSON.stringify(openApi(routes(), version));
      call.sendText(200, document);
    },
  });
}

/** Problem details (RFC 9457), with the additional members `code` and `parameter`. */
const Problem = namedObject('Problem', {
  title: Type.String(),
  status: Type.Integer(),
  code: Type.String(),
  detail: Type.String(),
  parameter: Type.Optional(Type.String()),
});

/** The route table as an OpenAPI 3.1 document. Further methods of a row get operation ids of their own. */
function openApi(routes: readonly Route[], version: string): object {
  const paths: Record<string, Record<string, object>> = {};
  for (const route of routes) {
    if (route.isPage) continue;
    const path = route.path.replace(/:(\w+)/g, '{$1}');
    const operations = paths[path] ?? {};
    paths[path] = operations;
    for (const [i, method] of route.methods.entries()) {
      const id = i === 0 ? route.id : `${route.id}By${method.charAt(0)}${method.slice(1).toLowerCase()}`;
      operations[method.toLowerCase()] = operation(route, id);
    }
  }
  const schemas: Record<string, unknown> = {};
  withReferences(Problem, schemas);
  const referencingPaths = withReferences(paths, schemas);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Quayside',
      version,
      description: 'Named queues and exchanges over HTTP.',
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/', description: 'The server that serves this document.' }],
    security: [{ basic: [] }, { token: [] }, { consoleSession: [] }],
    paths: referencingPaths,
    components: {
      securitySchemes: {
        basic: { type: 'http', scheme: 'basic' },
        token: { type: 'http', scheme: 'bearer', description: 'An API token; see `createToken`.' },
        consoleSession: {
          type: 'apiKey',
          in: 'cookie',
          name: SESSION_COOKIE,
          description:
            'For pages of this server; see `signIn`. Requests that change something must also have `X-CSRF-Token`.',
        },
      },
      schemas,
    },
  };
}

/**
 * Returns a copy in which each schema with an `$id` is a reference, so that generated clients have a type of that name,
 * and in which maps have the form that OpenAPI generators read. Adds the referenced schemas to `schemas`.
 */
function withReferences(node: unknown, schemas: Record<string, unknown>): unknown {
  if (Array.isArray(node)) return node.map((item) => withReferences(item, schemas));
  if (typeof node !== 'object' || node === null) return node;
  const { $id, patternProperties, ...rest } = node as Readonly<Record<string, unknown>>;
  const copy: Record<string, unknown> = Object.fromEntries(
    Object.entries(rest).map(([key, value]) => [key, withReferences(value, schemas)]),
  );
  if (patternProperties !== undefined) {
    const [values] = Object.values(patternProperties as object);
    copy.additionalProperties = withReferences(values, schemas);
  }
  if (typeof $id !== 'string') return copy;
  schemas[$id] = copy;
  return { $ref: `#/components/schemas/${$id}` };
}

/** Content types of request bodies. The first one has the schema `request` of the route. */
const BODY_TYPES = {
  element: ['*/*'],
  elements: [NDJSON, MULTIPART],
  json: ['application/json'],
} as const satisfies Record<Exclude<BodyUse, 'discard'>, readonly string[]>;

function operation(route: Route, operationId: string): object {
  return {
    operationId,
    summary: route.summary,
    ...(route.access === 'open' && { security: [] }),
    parameters: [...pathParameters(route), ...queryParameters(route), ...headerParameters(route)],
    ...(route.body !== 'discard' && {
      requestBody: {
        required: route.body !== 'element',
        content: Object.fromEntries(
          BODY_TYPES[route.body].map((type, i) => [
            type,
            i > 0 || route.request === null ? {} : { schema: route.request },
          ]),
        ),
      },
    }),
    responses: { ...responses(route), ...problems(route) },
  };
}

function pathParameters({ path }: Route): object[] {
  return [...path.matchAll(/:(\w+)/g)].map(([, name]) => ({
    name,
    in: 'path',
    required: true,
    schema: { type: 'string', minLength: 1 },
  }));
}

function queryParameters(route: Route): object[] {
  return parametersOf(route).map(([name, { description, schema }]) => ({
    name,
    in: 'query',
    description,
    schema,
  }));
}

function headerParameters({ headers }: Route): object[] {
  // OpenAPI gives the content type with the body.
  const { 'content-type': _, ...others } = headers;
  return Object.entries(others).map(([name, description]) => ({
    name,
    in: 'header',
    description,
    schema: { type: 'string' },
  }));
}

/** One entry per status; alternative forms of a response become alternatives of its schema. */
function responses(route: Route): Record<string, object> {
  const byStatus = Map.groupBy(route.responses, ({ status }) => status);
  return Object.fromEntries(
    [...byStatus].map(([status, notes]) => [String(status), describeResponse(notes)]),
  );
}

function describeResponse(notes: readonly ResponseNote[]): object {
  const headers = notes.flatMap((note) => Object.entries(note.headers ?? {}));
  const contentType = notes.find((note) => note.contentType !== null)?.contentType;
  const schemas = notes.flatMap(({ schema }) => (schema === undefined ? [] : [schema]));
  const schema = schemas.length > 1 ? { anyOf: schemas } : schemas[0];
  return {
    description: notes.map(({ description }) => description).join(' '),
    ...(headers.length > 0 && {
      headers: Object.fromEntries(
        headers.map(([name, description]) => [name, { description, schema: { type: 'string' } }]),
      ),
    }),
    ...(contentType !== undefined &&
      contentType !== null && { content: { [contentType]: schema === undefined ? {} : { schema } } }),
  };
}

function problems(route: Route): Record<string, object> {
  const byStatus = Map.groupBy(problemsOf(route), (code) => HTTP_ERRORS[code].status);
  const usedStatuses = new Set(route.responses.map(({ status }) => status));
  return Object.fromEntries(
    [...byStatus]
      .filter(([status]) => !usedStatuses.has(status))
      .map(([status, codes]) => [String(status), problem(status, codes)]),
  );
}

function problem(status: number, codes: readonly ErrorCode[]): object {
  return {
    description: `${STATUS_CODES[status]}: ${codes.join(', ')}`,
    content: Object.fromEntries([
      ...codes
        .flatMap((code) => HTTP_ERRORS[code].specResponse ?? [])
        .map(({ contentType }) => [contentType, {}]),
      [PROBLEM_JSON, { schema: Problem }],
    ]),
  };
}

/** The query parameters of a route, for the documentation. */
export function parametersOf({ query }: Route): [string, QueryParameter<unknown>][] {
  return Object.entries(query.parameters);
}

const ALWAYS: readonly ErrorCode[] = [
  'malformed-request',
  'invalid-header',
  'expectation-failed',
  'forbidden-origin',
  'internal',
];
const WITH_LOGIN: readonly ErrorCode[] = ['unauthorized', 'token-expired', 'too-many-attempts', 'overloaded'];
const IN_NAMESPACE: readonly ErrorCode[] = ['namespace-not-found', 'storage-unavailable', 'outcome-unknown'];

/** The error codes that follow from a route's access, path, parameters and body. */
export function commonProblemsOf(route: Route): ErrorCode[] {
  const { access, right, path, body, createsQueue } = route;
  const codes = [...ALWAYS];
  if (access !== 'open') codes.push(...WITH_LOGIN);
  if (right !== null || access === 'administrator') codes.push('forbidden');
  if (parametersOf(route).length > 0) codes.push('invalid-parameter');
  if (body !== 'discard') codes.push('body-too-large');
  if (body === 'json' || body === 'elements') codes.push('invalid-body', 'invalid-parameter');
  if (path.includes(':namespace')) codes.push(...IN_NAMESPACE);
  if (path.includes(':queue')) codes.push('invalid-name');
  if (path.includes(':queue') && createsQueue) codes.push('too-many-queues');
  return codes;
}

/** All error codes that a route may return, its own first. */
export function problemsOf(route: Route): ErrorCode[] {
  return [...new Set([...route.problems, ...commonProblemsOf(route)])];
}
