import findMyWay from 'find-my-way';
import type { ErrorCode } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { RIGHTS, type Right } from '../model/rights.ts';
import type { Schema } from '../util/schema.ts';
import type { HttpCall } from './call.ts';
import { type Parameters, QueryReader } from './parameters.ts';

/**
 * Who may call:
 * - `open`: anybody; credentials that are sent are still checked.
 * - `user`: any known user.
 * - `administrator`: a user without a list of rights.
 * - `member`: a user with any right in the namespace of the path.
 * - a right: a user who has it in the namespace of the path.
 */
type Access = 'open' | 'user' | 'administrator' | 'member' | Right;

export const METHODS = ['GET', 'HEAD', 'PUT', 'POST', 'PATCH', 'DELETE'] as const;
export type Method = (typeof METHODS)[number];
const READS: readonly Method[] = ['GET', 'HEAD'];

/**
 * The request body of a route. `discard`: none; if one is sent, it is read and discarded. `elements`: many elements, as
 * `multipart/mixed` or as lines of NDJSON, whose shape is `request`.
 */
export type BodyUse = 'discard' | 'element' | 'elements' | 'json';

/** Which requests of a console session must send its CSRF token: `writes` are all but GET and HEAD. */
type CsrfRule = 'writes' | 'all' | 'none';

/** The headers that a route reads or writes, by name, for the documentation. */
type HeaderNotes = Readonly<Record<string, string>>;

/** A successful response of a route, for the documentation. */
export interface ResponseNote {
  readonly status: number;
  readonly description: string;
  /** Null: no body. */
  readonly contentType: string | null;
  readonly schema?: Schema;
  readonly headers?: HeaderNotes;
}

/** The headers that all responses of a route have, by name. */
type ConstantHeaders = Readonly<Record<string, string>>;

/**
 * The default headers of all responses. They make a response harmless in a browser, whatever a producer stored: an
 * element may be a page with a script.
 */
export const INERT_HEADERS: ConstantHeaders = {
  'cache-control': 'no-store',
  'content-security-policy':
    "sandbox; default-src 'none'; base-uri 'none'; object-src 'none'; frame-ancestors 'none'",
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
};

/** One row of the route table, which dispatch, access checks, `/openapi.json` and the documentation tests use. */
export interface Route {
  /** Unique; `operationId` in `/openapi.json`. */
  readonly id: string;
  /** GET and HEAD if not given. */
  readonly methods: readonly Method[];
  /** With `:name` for a parameter: `namespace`, `queue`, `id`, `tid`. */
  readonly path: string;
  readonly summary: string;
  readonly access: Access;
  /** The right required in the namespace of the path; null if `access` is not a right. */
  readonly right: Right | null;
  readonly body: BodyUse;
  /** Whether each successful use is written to the audit log, with its user. */
  readonly isAudited: boolean;
  /** Whether a call creates the queue of the path, unless the namespace is at its limit. */
  readonly createsQueue: boolean;
  readonly csrf: CsrfRule;
  /**
   * Whether it is for browsers only, and therefore not in `/openapi.json`, from which clients are generated. It
   * contains nothing of a user: any site may link to it.
   */
  readonly isPage: boolean;
  readonly query: QueryReader<object>;
  /** The shape of a JSON body, or of one line of it, for the documentation; null if there is none. */
  readonly request: Schema | null;
  readonly headers: HeaderNotes;
  readonly responses: readonly ResponseNote[];
  /** Error codes in addition to those that every route may return; see `problemsOf` in `routes/table.ts`. */
  readonly problems: readonly ErrorCode[];
  /** The constant header lines of each response, errors included: pages need a policy of their own. */
  readonly responseLines: string;
  /** Responds to the call, now or later. What it throws or rejects with is sent as an error. */
  handle(call: HttpCall, query: object): Promise<void> | void;
}

/** The members of a row that most rows do not give. */
const DEFAULTS = {
  methods: READS,
  body: 'discard',
  isAudited: false,
  createsQueue: false,
  csrf: 'writes',
  isPage: false,
  request: null,
  headers: {},
  problems: [],
} as const satisfies Partial<Route>;

/** A row as it is declared. */
interface RouteDefinition<Q extends object>
  extends Pick<Route, 'id' | 'path' | 'summary' | 'access' | 'responses'>,
    Partial<Pick<Route, keyof typeof DEFAULTS>> {
  readonly query?: Parameters<Q>;
  /** Not given: {@link INERT_HEADERS}. */
  readonly responseHeaders?: ConstantHeaders;
  handle(call: HttpCall, query: Readonly<Q>): Promise<void> | void;
}

/** Creates a row. Types its handler by its parameters, which the type of the table does not show. */
export function route<Q extends object>(definition: RouteDefinition<Q>): Route {
  const { query, responseHeaders = INERT_HEADERS, ...given } = definition;
  return {
    ...DEFAULTS,
    ...given,
    right: RIGHTS.find((right) => right === given.access) ?? null,
    responseLines: constantLines(responseHeaders),
    query: new QueryReader<Q>(query ?? ({} as Parameters<Q>)),
  };
}

/** Formats flat pairs of names and values as header lines. */
export function headerLines(headers: readonly string[]): string {
  let lines = '';
  for (let at = 0; at + 1 < headers.length; at += 2) lines += `${headers[at]}: ${headers[at + 1]}\r\n`;
  return lines;
}

export function constantLines(headers: ConstantHeaders): string {
  return headerLines(Object.entries(headers).flat());
}

export interface RouteMatch {
  readonly route: Route;
  readonly params: Readonly<Record<string, string | undefined>>;
}

/** Finds the route for a method and a path. */
export class Router {
  readonly #finder = findMyWay({
    // The name check rejects names that are too long, with an error that states the limit.
    maxParamLength: LIMITS.nameBytes * 100,
  });

  constructor(routes: readonly Route[]) {
    // Called before there are routes, so that those of a method are compiled at its first request. Compiling all of
    // them takes 4 % of the start.
    this.#finder.compile();
    for (const route of routes) this.#finder.on([...route.methods], route.path, NEVER_CALLED, route);
  }

  /** Takes a percent-encoded path without its query. Returns decoded parameters; null if no route matches. */
  find(method: string, path: string): RouteMatch | null {
    const found = this.#finder.find(method as Method, path);
    return found === null ? null : { route: found.store as Route, params: found.params };
  }

  /** The methods of a path, for `Allow`; empty if the path does not exist. */
  allowed(path: string): Method[] {
    return METHODS.filter((method) => this.#finder.find(method, path) !== null);
  }
}

/** The finder requires a handler for each route; only its `store` is used here. */
const NEVER_CALLED = (): void => {};

// The schemas of JSON responses are declared in `model/records.ts`, or with their routes, for `/openapi.json`. They
// document the responses and do not validate them; the types of the code do.

/** A response with a JSON body, 200 if no other status is given. */
export function json(
  description: string,
  schema: Schema,
  { status = 200, headers }: { readonly status?: number; readonly headers?: HeaderNotes } = {},
): ResponseNote {
  return { status, description, contentType: 'application/json', schema, ...(headers && { headers }) };
}

/** A response without a body. */
export function empty(status: number, description: string, headers?: HeaderNotes): ResponseNote {
  return { status, description, contentType: null, ...(headers && { headers }) };
}
