import { hash } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { extname, join } from 'node:path';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import type { ConsoleSession, ConsoleSessions } from '../../access/console-sessions.ts';
import type { User } from '../../access/user.ts';
import { QuaysideError } from '../../model/errors.ts';
import { parse } from '../../model/members.ts';
import { ConsoleSessionRecord, OwnConsoleSessions, STRICT } from '../../model/records.ts';
import { RIGHTS, type Right } from '../../model/rights.ts';
import { quote } from '../../util/quote.ts';
import { namedObject, Type } from '../../util/schema.ts';
import { originOf, SESSION_PATH } from '../browser.ts';
import type { HttpCall } from '../call.ts';
import { routeNotFound, unauthorized } from '../errors.ts';
import { acceptsGzip, rareHeader } from '../head.ts';
import { nameOf } from '../parameters.ts';
import { readJson } from '../request.ts';
import { empty, json, type Route, route } from '../route.ts';
import { isoTime } from '../written-elements.ts';
import { checkNoToken } from './tokens.ts';

/**
 * The headers of the console's pages. The policy allows only what the pages consist of: no script or style from
 * elsewhere or inline, no markup from strings, no embedding in frames. Element bodies that are images are shown from
 * memory (`blob:`).
 */
const PAGE_HEADERS = {
  'content-security-policy': [
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' blob:",
    "font-src 'self'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
    "frame-ancestors 'none'",
    "base-uri 'none'",
    "form-action 'self'",
  ].join('; '),
  'x-frame-options': 'DENY',
  'x-content-type-options': 'nosniff',
  'cross-origin-opener-policy': 'same-origin',
  'cross-origin-resource-policy': 'same-origin',
  'referrer-policy': 'no-referrer',
  vary: 'accept-encoding',
};

/** Makes browsers revalidate the file each time; the response is 304 if it has not changed. */
const REVALIDATED = 'no-cache';
/** For files whose names change with their content. */
const IMMUTABLE = 'public, max-age=31536000, immutable';

const HTML = 'text/html; charset=utf-8';
const TEXT = 'text/plain; charset=utf-8';
const NOT_BUILT =
  'The console is not built. Run `npm run build:console` in the folder of the server, then load this page again.\n';

const CREDENTIALS_BYTES = 4_096;
const SESSIONS_PATH = '/console/sessions';

const SESSION_ID = /^[\w-]{43}$/;
const ENDING_PROBLEMS = ['forbidden', 'invalid-name', 'storage-unavailable', 'outcome-unknown'] as const;
const userParameter = nameOf('user', 'The user, for administrators; defaults to the user of the request.');

const pageResponses = [
  {
    status: 200,
    description: 'The file.',
    contentType: HTML,
    headers: { etag: 'Changes with the content.' },
  },
  empty(304, 'The browser has it already.'),
  { status: 503, description: 'The console is not built.', contentType: TEXT },
] as const;

const pageRoute = {
  access: 'open',
  responseHeaders: PAGE_HEADERS,
  isPage: true,
} as const;

const ConsoleCredentials = namedObject(
  'ConsoleCredentials',
  { user: Type.String(), password: Type.String({ format: 'password' }) },
  STRICT,
);

/** Routes of the console: its pages, which are files, and its sessions. */
export function consoleRoutes(folder: string): readonly Route[] {
  const files = consoleFiles(folder);
  return [
    route({
      ...pageRoute,
      id: 'home',
      path: '/',
      summary: 'Redirect browsers to the console',
      responses: [empty(302, 'To `console/`.')],
      problems: ['unauthorized', 'route-not-found'],
      handle: sendHome,
    }),
    route({
      ...pageRoute,
      id: 'consoleFolder',
      path: '/console',
      summary: 'Redirect browsers to the console',
      responses: [empty(302, 'To `console/`.')],
      handle: redirectToConsole,
    }),
    route({
      ...pageRoute,
      id: 'consolePage',
      path: '/console/',
      summary: 'The page of the console',
      responses: pageResponses,
      handle: (call) => sendFile(call, files, 'index.html', REVALIDATED),
    }),
    route({
      ...pageRoute,
      id: 'consoleFile',
      path: '/console/:file',
      summary: 'A file that the page of the console loads',
      responses: pageResponses,
      problems: ['route-not-found'],
      handle: (call) => sendFile(call, files, call.param('file'), REVALIDATED),
    }),
    route({
      ...pageRoute,
      id: 'consoleAsset',
      path: '/console/assets/:file',
      summary: 'A script, a style or a picture of the console',
      responses: pageResponses,
      problems: ['route-not-found'],
      handle: (call) => sendFile(call, files, `assets/${call.param('file')}`, IMMUTABLE),
    }),
    route({
      id: 'signIn',
      methods: ['POST'],
      path: SESSION_PATH,
      summary: 'Start a console session',
      access: 'open',
      csrf: 'none',
      body: 'json',
      request: ConsoleCredentials,
      responses: [
        json('The session, with its cookie.', ConsoleSessionRecord, {
          headers: { 'set-cookie': 'The cookie `quayside_session`; over TLS `__Host-quayside_session`.' },
        }),
      ],
      problems: ['unauthorized', 'too-many-attempts', 'overloaded'],
      handle: (call) => readJson(call, CREDENTIALS_BYTES, (payload) => signIn(call, payload)),
    }),
    route({
      id: 'consoleSession',
      path: SESSION_PATH,
      summary: 'The console session that the cookie identifies',
      access: 'open',
      responses: [json('The session.', ConsoleSessionRecord)],
      problems: ['unauthorized'],
      handle(call) {
        if (call.session === null) throw unauthorized(call);
        call.sendJson(sessionRecord(call, call.session));
      },
    }),
    route({
      id: 'signOut',
      methods: ['DELETE'],
      path: SESSION_PATH,
      summary: 'End the console session',
      access: 'open',
      responses: [empty(204, 'It has ended, or there was none.', { 'set-cookie': 'Removes the cookie.' })],
      problems: ['storage-unavailable', 'outcome-unknown'],
      handle: signOut,
    }),
    route({
      id: 'consoleSessions',
      path: SESSIONS_PATH,
      summary: 'List the console sessions of a user on all nodes, the last used first',
      access: 'user',
      query: { user: userParameter },
      responses: [json('The sessions.', OwnConsoleSessions)],
      problems: ['forbidden', 'invalid-name'],
      async handle(call, query) {
        checkNoToken(call);
        const { rows, ...list } = await call.front.nodeLists.consoleSessions(call.user, userOf(call, query));
        const sessions = rows.map(({ node, id, startedAt, usedAt, expiresAt, address, browser }) => ({
          node,
          id,
          // After all sessions were ended, `startedAt` of a new one may be later than this clock.
          startedAt: isoTime(Math.min(startedAt, usedAt)),
          usedAt: isoTime(usedAt),
          expiresAt: isoTime(expiresAt),
          address,
          browser,
          isThis: id === call.session?.id,
        }));
        call.sendJson({ ...list, sessions } satisfies OwnConsoleSessions);
      },
    }),
    route({
      id: 'endConsoleSession',
      methods: ['DELETE'],
      path: `${SESSIONS_PATH}/:id`,
      summary: 'Sign out a console session of a user, on all nodes',
      access: 'user',
      isAudited: true,
      query: { user: userParameter },
      responses: [empty(204, 'It has ended, or the user has none of this id.')],
      problems: ENDING_PROBLEMS,
      async handle(call, query) {
        checkNoToken(call);
        const [name, id] = [userOf(call, query), call.param('id')];
        const { rows } = await call.front.nodeLists.consoleSessions(call.user, name);
        const known = rows.find((session) => session.id === id);
        // A session that is not listed may be known to a node that this one has not discovered yet.
        const startedAt = known?.startedAt ?? null;
        const ended = SESSION_ID.test(id)
          ? sessionsOf(call).endListed(name, id, startedAt)
          : Promise.resolve();
        await respondToEnd(call, name, ended);
      },
    }),
    route({
      id: 'endConsoleSessions',
      methods: ['DELETE'],
      path: SESSIONS_PATH,
      summary: 'Sign out all console sessions of a user, on all nodes',
      access: 'user',
      isAudited: true,
      query: { user: userParameter },
      responses: [
        empty(204, 'They have ended, including the session of this request if it is one of the user.'),
      ],
      problems: ENDING_PROBLEMS,
      async handle(call, query) {
        checkNoToken(call);
        const name = userOf(call, query);
        // Do not renew the cookie of a session that ends.
        if (call.session?.user.name === name) call.newCookie = null;
        await respondToEnd(call, name, sessionsOf(call).endAll(name));
      },
    }),
  ];
}

/** The user whose sessions a request is about. @throws QuaysideError `forbidden` */
function userOf({ user }: HttpCall, query: { readonly user: string | null }): string {
  if (query.user === null || query.user === user.name) return user.name;
  if (user.isAdministrator) return query.user;
  throw new QuaysideError(
    'forbidden',
    `User ${quote(user.name)} may not see or end the sessions of user ${quote(query.user)}: only administrators may.`,
    { parameter: 'user' },
  );
}

/** Redirects browsers. Other clients get the response of a path that does not exist. */
function sendHome(call: HttpCall): void {
  if (call.head.accept?.toLowerCase().includes('text/html') === true) redirectToConsole(call);
  else if (call.login === null) throw unauthorized(call);
  else throw routeNotFound(call);
}

/** Redirects to the console by a relative URL, which works under any path that a proxy gives this server. */
function redirectToConsole(call: HttpCall): void {
  call.sendEmpty(302, ['location', 'console/', 'cache-control', REVALIDATED]);
}

async function sendFile(
  call: HttpCall,
  files: ReturnType<typeof consoleFiles>,
  name: string,
  cacheControl: string,
): Promise<void> {
  const built = await files();
  if (built === null) {
    call.sendText(503, NOT_BUILT, ['cache-control', 'no-store', 'retry-after', '5'], TEXT);
    return;
  }
  const file = built.get(name);
  if (file === undefined) throw routeNotFound(call);
  const { rawHeaders } = call.request;
  const headers = ['etag', file.entityTag, 'cache-control', cacheControl];
  if (rareHeader(rawHeaders, 'if-none-match')?.includes(file.entityTag) === true) {
    call.sendEmpty(304, headers);
    return;
  }
  const gzipped = acceptsGzip(rawHeaders) ? file.gzipped : null;
  if (gzipped !== null) headers.push('content-encoding', 'gzip');
  await call.sendPieces([gzipped ?? file.bytes], headers, file.contentType);
}

async function signIn(call: HttpCall, payload: unknown): Promise<void> {
  const { user: name, password } = parse(ConsoleCredentials, payload);
  const user = await call.front.parts.authenticator.login(basicHeader(name, password), call.address);
  // Only now: a failed sign-in must not end the session of the page that is open. The old session ends on this node
  // immediately. Do not wait for the engine: if it cannot store the end now, it does so later.
  call.session?.end().catch(() => {});
  const session = sessionsOf(call).open(user, originOf(call));
  if (session === null) throw wrongCredentials();
  call.front.audit(call, user);
  call.newCookie = session.renewedToken;
  call.sendJson(sessionRecord(call, session));
}

/** Formats the credentials as Basic authentication, so that the same rules and limits apply. */
function basicHeader(name: string, password: string): string {
  // A colon would move a part of the name into the password.
  if (name.includes(':')) throw wrongCredentials();
  return `Basic ${Buffer.from(`${name}:${password}`).toString('base64')}`;
}

async function signOut(call: HttpCall): Promise<void> {
  const { session } = call;
  // Remove the cookie even if the engine cannot store the end: the session ends on this node, and the end is stored
  // later.
  call.newCookie = '';
  if (session !== null) {
    const stored = session.end();
    call.front.audit(call, session.user);
    await stored;
  }
  call.sendEmpty(204);
}

/**
 * Responds to an end of sessions. Audits it even if the engine cannot store it: the sessions have ended on this node.
 */
async function respondToEnd(call: HttpCall, of: string, end: Promise<void>): Promise<void> {
  call.auditFields = { of };
  try {
    await end;
    call.sendEmpty(204);
  } catch (error) {
    call.fail(error);
  }
}

function sessionRecord(call: HttpCall, { user, csrfToken, expiresAt }: ConsoleSession): ConsoleSessionRecord {
  const { broker, clock, version } = call.front.parts;
  const visible = broker.namespaces().filter(({ name }) => user.maySee(name));
  return {
    user: user.name,
    isAdministrator: user.isAdministrator,
    rights: Object.fromEntries(visible.map(({ name }) => [name, rightsIn(user, name)])),
    maskedBodies: visible
      .map(({ name }) => name)
      .filter((name) => user.may('browse', name) && !user.maySeeBodies(name)),
    csrfToken,
    expiresAt: new Date(expiresAt).toISOString(),
    server: {
      version,
      node: broker.nodes().find(({ isSelf }) => isSelf)?.id ?? '',
      now: new Date(clock.now()).toISOString(),
    },
  };
}

function rightsIn(user: User, namespace: string): Right[] {
  return RIGHTS.filter((right) => user.may(right, namespace));
}

function sessionsOf({ front: { parts } }: HttpCall): ConsoleSessions {
  if (parts.consoleSessions === undefined) throw new Error('The console is served without sessions.');
  return parts.consoleSessions;
}

function wrongCredentials(): QuaysideError {
  return new QuaysideError('unauthorized', 'The user name or the password is wrong.');
}

/** A file of the console, ready to be sent. */
interface ConsoleFile {
  readonly contentType: string;
  readonly bytes: Buffer;
  /** Null if compression saves nothing. */
  readonly gzipped: Buffer | null;
  readonly entityTag: string;
}

const INDEX = 'index.html';
/** The folder of files that have a hash of their content in their names. */
const ASSETS = 'assets';

const CONTENT_TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json',
  '.map': 'application/json',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.woff2': 'font/woff2',
};
const OTHER_TYPE = 'application/octet-stream';

const compress = promisify(gzip);

/**
 * Returns a function that returns the built files of the console by their path in the folder, with `/`; null if the
 * console is not built. They are read and compressed at their first use, so that a server whose console is not used
 * starts without them. Requests look up names among these files and never form a path.
 */
function consoleFiles(folder: string): () => Promise<ReadonlyMap<string, ConsoleFile> | null> {
  let files: Promise<ReadonlyMap<string, ConsoleFile>> | null = null;
  return async () => {
    files ??= readFiles(folder);
    try {
      return await files;
    } catch (error) {
      // Retry at the next request: the console may be built while the server runs.
      files = null;
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
      throw error;
    }
  };
}

async function readFiles(folder: string): Promise<ReadonlyMap<string, ConsoleFile>> {
  const names = [...(await filesIn(folder, '')), ...(await filesIn(join(folder, ASSETS), `${ASSETS}/`))];
  if (!names.includes(INDEX)) {
    throw Object.assign(new Error(`${folder} has no ${INDEX}`), { code: 'ENOENT' });
  }
  return new Map(await Promise.all(names.map(async (name) => [name, await readOne(folder, name)] as const)));
}

async function filesIn(folder: string, prefix: string): Promise<string[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map(({ name }) => prefix + name);
}

async function readOne(folder: string, name: string): Promise<ConsoleFile> {
  const bytes = await readFile(join(folder, name));
  const gzipped = await compress(bytes);
  return {
    contentType: CONTENT_TYPES[extname(name)] ?? OTHER_TYPE,
    bytes,
    gzipped: gzipped.length < bytes.length ? gzipped : null,
    entityTag: `"${hash('sha256', bytes, 'base64url').slice(0, 22)}"`,
  };
}
