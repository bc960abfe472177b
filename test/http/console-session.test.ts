import assert from 'node:assert/strict';
import type { IncomingMessage } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { Networks } from '../../src/access/networks.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import type { Definitions } from '../../src/engine/definitions.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { MEMORY_SQLITE } from '../engines/sqlite.ts';
import type { EngineUnderTest } from '../engines.ts';
import { SILENT_LOG } from '../support/broker.ts';
import { makeCertificate } from '../support/certificate.ts';
import { type Answer, headerOf, jsonOf, type QueueClient, queuePath } from '../support/http-client.ts';
import { memoryInUse } from '../support/memory.ts';
import { until } from '../support/until.ts';
import { basic, Harness, sharedHarness } from './harness.ts';
import { RawConnection, rawRequest } from './raw.ts';

const USERS: readonly UserDefinition[] = [
  { name: 'ops', password: 'ops-password', rights: null },
  {
    name: 'support',
    password: 'support-password',
    rights: { N: ['browse', 'manage'], jobs: ['read'] },
    maskBodies: true,
  },
];

interface Session {
  readonly user: string;
  readonly isAdministrator: boolean;
  readonly rights: Readonly<Record<string, readonly string[]>>;
  readonly maskedBodies: readonly string[];
  readonly csrfToken: string;
  readonly expiresAt: string;
  readonly server: { readonly version: string; readonly node: string };
}

interface OwnSession {
  readonly id: string;
  readonly address: string;
  readonly isThis: boolean;
}

type HeaderFields = Readonly<Record<string, string>>;

/** Headers that browsers add to requests of a same-origin page. */
const PAGE = { 'sec-fetch-site': 'same-origin', 'sec-fetch-mode': 'cors' };

function signIn(
  client: QueueClient,
  user: string,
  password = `${user}-password`,
  headers: HeaderFields = {},
): Promise<Answer> {
  return client.request('POST', '/console/session', {
    headers: { ...PAGE, 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ user, password }),
  });
}

/** The only cookie of a response: `name=value`, then its attributes. */
function setCookie({ rawHeaders }: Answer): string[] {
  const values = rawHeaders.filter((_, i) => rawHeaders[i - 1] === 'set-cookie');
  assert.equal(values.length, 1);
  return values[0]?.split('; ') ?? [];
}

function cookieOf(answer: Answer): string {
  return setCookie(answer)[0] ?? '';
}

function attributesOf(answer: Answer): string[] {
  return setCookie(answer).slice(1);
}

/** The headers of a request that a signed-in page sends. */
async function signedIn(client: QueueClient, user = 'ops'): Promise<HeaderFields> {
  const answer = await signIn(client, user);
  assert.equal(answer.status, 200, answer.body.toString());
  return { ...PAGE, cookie: cookieOf(answer), 'x-csrf-token': jsonOf<Session>(answer).csrfToken };
}

function session(client: QueueClient, headers: HeaderFields): Promise<Answer> {
  return client.request('GET', '/console/session', { headers });
}

describe('A session of the console', () => {
  const harness = sharedHarness({ users: USERS });
  const stranger = (): QueueClient => harness().client(null);

  it('starts with the password and returns the user, their rights and the server', async () => {
    const answer = await signIn(stranger(), 'support');
    assert.equal(answer.status, 200);
    assert.equal(headerOf(answer, 'cache-control'), 'no-store');
    const { user, isAdministrator, rights, maskedBodies, expiresAt, server } = jsonOf<Session>(answer);
    assert.equal(user, 'support');
    assert.equal(isAdministrator, false);
    assert.deepEqual(rights, { N: ['manage', 'browse'], jobs: ['read', 'browse'] });
    assert.deepEqual(maskedBodies, ['N']);
    assert.equal(server.version, '0.0.0-test');
    assert.notEqual(server.node, '');
    assert.equal(Date.parse(expiresAt), harness().opened.clock.now() + 1_800_000);
  });

  it('stores only the visible part of the User-Agent', async () => {
    const client = stranger();
    const SESSIONS = 200;
    /** @returns the bytes that are in use after the sign-ins */
    const agents = async (length: number): Promise<number> => {
      for (let i = 0; i < SESSIONS; i += 1) {
        const answer = await signIn(client, 'ops', undefined, {
          'user-agent': `Browser ${'x'.repeat(length)}`,
        });
        assert.equal(answer.status, 200);
      }
      return memoryInUse();
    };
    const first = await agents(200);
    const second = await agents(200);
    const third = await agents(12_000);
    const [short, long] = [second - first, third - second];
    assert.ok(long - short < (SESSIONS * 12_000) / 4, `${short} and ${long} bytes`);
  });

  it('is returned to a page that was reloaded', async () => {
    const client = stranger();
    const answer = await signIn(client, 'ops');
    const again = await session(client, { ...PAGE, cookie: `theme=dark; ${cookieOf(answer)}` });
    assert.equal(again.status, 200);
    assert.deepEqual({ ...jsonOf<object>(again), server: null }, { ...jsonOf<object>(answer), server: null });
  });

  it('has a cookie that scripts cannot read and other sites cannot use', async () => {
    const answer = await signIn(stranger(), 'ops');
    assert.match(cookieOf(answer), /^quayside_session=[\w.-]{40,}$/);
    assert.deepEqual(attributesOf(answer), ['Path=/', 'HttpOnly', 'SameSite=Strict']);
  });

  it('does not start with a wrong password, an unknown user or a misplaced colon', async () => {
    for (const [user, password] of [
      ['ops', 'wrong'],
      ['nobody', 'ops-password'],
      ['ops:ops', 'password'],
      ['ops', ''],
    ] as const) {
      const answer = await signIn(stranger(), user, password);
      assert.equal(answer.status, 401);
      assert.equal(jsonOf<{ code: string }>(answer).code, 'unauthorized');
      assert.equal(answer.headers['set-cookie'], undefined);
    }
  });

  it('accepts only a user and a password, and no error repeats the password', async () => {
    const client = stranger();
    for (const [body, parameter, detail] of [
      ['{"user":"ops"}', 'password', /^password is missing; it must be a string\.$/],
      ['{"user":1,"password":"x"}', 'user', /^user must be a string, not 1\.$/],
      ['{"user":"ops","password":["hush"]}', 'password', /^password must be a string, not "object"\.$/],
      ['{"user":"ops","password":"hush","remember":true}', 'remember', /^Unknown member remember\./],
    ] as const) {
      const answer = await client.request('POST', '/console/session', { headers: PAGE, body });
      assert.equal(answer.status, 400);
      const problem = jsonOf<{ parameter: string; detail: string }>(answer);
      assert.equal(problem.parameter, parameter);
      assert.match(problem.detail, detail);
      assert.doesNotMatch(answer.body.toString(), /hush/);
    }
    const broken = await client.request('POST', '/console/session', { headers: PAGE, body: '{' });
    assert.equal(jsonOf<{ code: string }>(broken).code, 'invalid-body');
    const large = await client.request('POST', '/console/session', {
      headers: PAGE,
      body: 'x'.repeat(5_000),
    });
    assert.equal(large.status, 413);
  });

  it('authenticates its user on every route, with that user’s rights', async () => {
    const client = stranger();
    const headers = await signedIn(client, 'support');
    assert.equal((await client.status('jobs', 'q', { headers })).status, 200);
    assert.equal((await client.insert('jobs', 'q', 'x', { headers })).status, 403);
    assert.equal((await client.status('hidden', 'q', { headers })).status, 404);
    assert.equal((await client.request('GET', '/operations', { headers })).status, 200);
    assert.equal((await client.request('GET', '/definitions', { headers })).status, 403);
  });

  it('takes precedence over Basic credentials of another user that the browser adds', async () => {
    const client = stranger();
    const headers = { ...(await signedIn(client, 'support')), authorization: basic('ops', 'ops-password') };
    assert.equal((await client.request('GET', '/definitions', { headers })).status, 403);
    await client.request('DELETE', '/console/session', { headers });
    assert.equal((await client.request('GET', '/definitions', { headers })).status, 401);
  });

  it('ends with a sign-out, which deletes the cookie in the browser', async () => {
    const client = stranger();
    const headers = await signedIn(client);
    const answer = await client.request('DELETE', '/console/session', { headers });
    assert.equal(answer.status, 204);
    assert.equal(cookieOf(answer), 'quayside_session=');
    assert.ok(attributesOf(answer).includes('Max-Age=0'));
    assert.equal((await session(client, headers)).status, 401);
    assert.equal((await client.status('N', 'q', { headers })).status, 401);
    assert.equal((await client.request('DELETE', '/console/session', { headers: PAGE })).status, 204);
  });

  it('is listed with the other sessions of its user, who can sign each of them out', async () => {
    const client = stranger();
    const [one, other] = [await signedIn(client, 'support'), await signedIn(client, 'support')];
    const foreign = await signedIn(client);
    const list = async (headers: HeaderFields): Promise<readonly OwnSession[]> => {
      const answer = await client.request('GET', '/console/sessions', {
        headers: { ...headers, 'user-agent': 'B' },
      });
      return jsonOf<{ sessions: OwnSession[] }>(answer).sessions;
    };
    const seen = await list(one);
    const ids = seen.map(({ id }) => id);
    assert.equal(seen.filter(({ isThis }) => isThis).length, 1);
    assert.ok(seen.length >= 2 && seen.every(({ address }) => address !== ''));
    const [otherId] = (await list(other)).filter(({ isThis }) => isThis).map(({ id }) => id);
    assert.ok(ids.includes(otherId ?? ''));
    assert.ok((await list(foreign)).every(({ id }) => !ids.includes(id)));
    const end = (headers: HeaderFields): Promise<Answer> =>
      client.request('DELETE', `/console/sessions/${otherId}`, { headers });
    assert.equal((await end({ ...PAGE, cookie: one.cookie ?? '' })).status, 403, 'without a CSRF token');
    assert.equal((await end(foreign)).status, 204);
    assert.equal((await session(client, other)).status, 200, 'another user cannot end it');
    assert.equal((await end(one)).status, 204);
    assert.equal((await session(client, other)).status, 401);
    assert.ok((await list(one)).every(({ id }) => id !== otherId));
    const crossSite = { ...one, 'sec-fetch-site': 'cross-site' };
    assert.equal((await client.request('GET', '/console/sessions', { headers: crossSite })).status, 403);
  });

  it('is listed for administrators, who can sign out one or all sessions of a user', async () => {
    const client = stranger();
    const admin = await signedIn(client);
    const [one, other] = [await signedIn(client, 'support'), await signedIn(client, 'support')];
    const ask = (method: string, path: string, headers: HeaderFields): Promise<Answer> =>
      client.request(method, `/console/sessions${path}`, { headers });
    const { sessions } = jsonOf<{ sessions: OwnSession[] }>(await ask('GET', '?user=support', admin));
    const mine = jsonOf<{ sessions: OwnSession[] }>(await ask('GET', '', one)).sessions;
    assert.deepEqual(sessions.map(({ id }) => id).sort(), mine.map(({ id }) => id).sort());
    const id = mine.find(({ isThis }) => isThis)?.id ?? '';
    for (const [method, path] of [
      ['GET', '?user=ops'],
      ['DELETE', '?user=ops'],
      ['DELETE', `/${id}?user=ops`],
    ] as const) {
      const answer = await ask(method, path, one);
      assert.equal(answer.status, 403);
      const { detail } = jsonOf<{ detail: string }>(answer);
      assert.match(detail, /^User "support" may not see or end the sessions of user "ops": only admin/);
    }
    assert.equal((await ask('DELETE', `/${'x'.repeat(43)}?user=support`, admin)).status, 204);
    assert.equal((await session(client, one)).status, 200);
    assert.equal((await ask('DELETE', `/${id}?user=support`, admin)).status, 204);
    assert.equal((await session(client, one)).status, 401);
    assert.equal((await session(client, other)).status, 200);
    assert.equal((await ask('DELETE', '?user=support', admin)).status, 204);
    assert.equal((await session(client, other)).status, 401);
    assert.equal((await session(client, admin)).status, 200);
    const next = await signedIn(client, 'support');
    assert.equal((await session(client, next)).status, 200, 'a session that starts afterwards is valid');
    const [line] = harness().log.filter(
      ({ fields }) => fields.event === 'admin' && fields.action === 'endConsoleSessions',
    );
    assert.deepEqual([line?.fields.user, line?.fields.of], ['ops', 'support']);
  });

  it('is replaced at each sign-in, which ends the previous session', async () => {
    const client = stranger();
    const planted = await signedIn(client);
    const answer = await signIn(client, 'ops', undefined, { cookie: planted.cookie ?? '' });
    assert.notEqual(cookieOf(answer), planted.cookie);
    assert.notEqual(jsonOf<Session>(answer).csrfToken, planted['x-csrf-token']);
    assert.equal((await session(client, planted)).status, 401);
    assert.equal((await session(client, { ...PAGE, cookie: cookieOf(answer) })).status, 200);
  });

  it('is rejected if its cookie is forged or malformed', async () => {
    const client = stranger();
    const { cookie = '' } = await signedIn(client);
    const [body = '', signature = ''] = cookie.replace('quayside_session=', '').split('.');
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as object;
    const forged = Buffer.from(JSON.stringify({ ...claims, name: 'support' })).toString('base64url');
    for (const value of [
      `${forged}.${signature}`,
      body,
      `${body}.`,
      `.${signature}`,
      `${body}.${signature}.`,
      '%',
      'null.x',
      'x'.repeat(4_000),
    ]) {
      assert.equal((await session(client, { ...PAGE, cookie: `quayside_session=${value}` })).status, 401);
    }
  });

  it('is logged with its user when it starts and ends', async () => {
    const client = stranger();
    const headers = await signedIn(client, 'support');
    await client.request('DELETE', '/console/session', { headers });
    const lines = harness().log.filter(({ fields }) => fields.event === 'admin' && fields.user === 'support');
    assert.deepEqual(
      lines.slice(-2).map(({ fields }) => fields.action),
      ['signIn', 'signOut'],
    );
    assert.doesNotMatch(JSON.stringify(harness().log), /support-password|quayside_session/);
  });
});

describe('The end of a session that the engine fails to store', () => {
  /** Definitions are written once this resolves; they fail if it rejects. */
  let writable = Promise.resolve();
  const engine: EngineUnderTest = {
    ...MEMORY_SQLITE,
    async open(options) {
      const opened = await MEMORY_SQLITE.open(options);
      const real = opened.engine.definitions;
      const definitions: Definitions = {
        get: (kind, key) => real.get(kind, key),
        list: (kind) => real.list(kind),
        put: async (...write) => {
          await writable;
          return real.put(...write);
        },
        delete: (kind, key, expected) => real.delete(kind, key, expected),
        watch: (listener) => real.watch(listener),
      };
      return { ...opened, engine: Object.create(opened.engine, { definitions: { value: definitions } }) };
    },
  };
  const harness = sharedHarness({ engine, users: USERS, consoleSecret: 'shared by all nodes' });
  const stranger = (): QueueClient => harness().client(null);
  const stored = async (user: string): Promise<boolean> =>
    (await harness().opened.engine.definitions.get('ended-sessions', user)) !== null;
  const lastAudited = (): unknown =>
    harness().log.findLast(({ fields }) => fields.event === 'admin')?.fields.action;

  const storedLater = (user: string): Promise<void> =>
    until(async () => {
      await harness().passTime(1000);
      return stored(user);
    });

  function rejectWrites(): void {
    writable = Promise.reject(new QuaysideError('storage-unavailable', 'The engine is away.'));
    writable.catch(() => {});
  }

  it('takes effect at once, deletes the cookie, is audited, and is stored later', async () => {
    const client = stranger();
    const headers = await signedIn(client);
    rejectWrites();
    const answer = await client.request('DELETE', '/console/session', { headers });
    assert.equal(answer.status, 503);
    assert.deepEqual([cookieOf(answer), attributesOf(answer).at(-1)], ['quayside_session=', 'Max-Age=0']);
    assert.equal(lastAudited(), 'signOut');
    assert.equal((await session(client, headers)).status, 401);
    await harness().passTime(1000);
    assert.ok(!(await stored('ops')));
    writable = Promise.resolve();
    await storedLater('ops');
  });

  it('is audited whether one session or all sessions of the user end', async () => {
    const client = stranger();
    for (const [path, action] of [
      [`/${'x'.repeat(43)}`, 'endConsoleSession'],
      ['', 'endConsoleSessions'],
    ] as const) {
      const headers = await signedIn(client, 'support');
      rejectWrites();
      const answer = await client.request('DELETE', `/console/sessions${path}`, { headers });
      assert.deepEqual([answer.status, answer.headers['set-cookie']], [503, undefined]);
      assert.equal(lastAudited(), action);
      writable = Promise.resolve();
      await storedLater('support');
    }
  });

  it('does not delay the sign-in that replaces the session', async () => {
    const client = stranger();
    const { cookie = '', ...headers } = await signedIn(client);
    const { promise, resolve } = Promise.withResolvers<void>();
    writable = promise;
    const answer = await signIn(client, 'ops', undefined, { cookie });
    assert.equal(answer.status, 200);
    assert.equal((await session(client, { ...headers, cookie })).status, 401);
    resolve();
  });
});

describe('A request with the cookie of a session', () => {
  const harness = sharedHarness({ users: USERS, http: { allowedOrigins: ['https://jobs.example'] } });

  /** One request per kind of change, including a GET that pops. */
  const writes = (queue: string): readonly (readonly [string, string])[] => [
    ['PUT', queuePath('N', queue)],
    ['POST', queuePath('N', queue)],
    ['GET', `${queuePath('N', queue)}?to=0`],
    ['GET', `${queuePath('N', queue)}?to=0&reserve=1`],
    ['PATCH', `${queuePath('N', queue)}/pause`],
    ['DELETE', queuePath('N', queue)],
    ['POST', `${queuePath('N', queue)}/take`],
    ['POST', '/operations'],
    ['PUT', '/x/e'],
    ['DELETE', '/console/session'],
  ];

  it('changes nothing without the session’s CSRF token', async () => {
    const client = harness().client(null);
    const queue = harness().queue();
    const { 'x-csrf-token': _, ...headers } = await signedIn(client);
    const other = await signedIn(client, 'support');
    for (const [method, path] of writes(queue)) {
      for (const token of [undefined, '', 'wrong', other['x-csrf-token']]) {
        const tried = token === undefined ? headers : { ...headers, 'x-csrf-token': token };
        const answer = await client.request(method, path, { headers: tried });
        assert.equal(answer.status, 403, `${method} ${path} with ${token}`);
        const { code, parameter } = jsonOf<{ code: string; parameter: string }>(answer);
        assert.deepEqual([code, parameter], ['forbidden-origin', 'x-csrf-token']);
      }
    }
    assert.equal((await client.status('N', queue, { headers })).status, 200);
    const [namespace] = harness().broker.namespaces();
    assert.deepEqual(await namespace?.queueNames(), []);
  });

  it('inserts and pops with the CSRF token', async () => {
    const client = harness().client(null);
    const queue = harness().queue();
    const headers = await signedIn(client);
    assert.equal((await client.insert('N', queue, 'a', { headers })).status, 200);
    const popped = await client.get('N', queue, { headers, to: 0 });
    assert.equal(popped.body.toString(), 'a');
  });

  it('is not replaced by Basic credentials that the browser remembers, also if another tab has signed out', async () => {
    const headers = await signedIn(harness().client(null), 'support');
    const remembering = harness().client('ops:ops-password');
    const { cookie: _, ...withoutCookie } = headers;
    assert.equal((await remembering.status('N', 'q', { headers: withoutCookie })).status, 401);
    assert.equal(
      (await remembering.status('N', 'q', { headers: { ...headers, cookie: 'a=b' } })).status,
      401,
    );
    await remembering.request('DELETE', '/console/session', { headers });
    assert.equal((await remembering.status('N', 'q', { headers })).status, 401);
  });

  it('is not authenticated if another page or the address bar sent it', async () => {
    const client = harness().client(null);
    const headers = await signedIn(client);
    const allowed = { origin: 'https://jobs.example', 'sec-fetch-site': 'cross-site' };
    for (const [site, status] of [
      [{ 'sec-fetch-site': 'none' }, 401],
      [allowed, 401],
      [{ ...allowed, 'sec-fetch-site': 'same-origin' }, 401],
      [{ 'sec-fetch-site': 'same-site' }, 403],
      [{ 'sec-fetch-site': 'cross-site' }, 403],
      [{ 'sec-fetch-site': 'same-origin', origin: 'https://evil.example' }, 403],
    ] as const) {
      const answer = await client.status('N', 'q', { headers: { ...headers, ...site } });
      assert.equal(answer.status, status, JSON.stringify(site));
    }
  });

  it('is authenticated over plain HTTP, too, where browsers do not send Sec-Fetch-Site', async () => {
    const client = harness().client(null);
    const queue = harness().queue();
    const { cookie = '', 'x-csrf-token': token = '' } = await signedIn(client);
    assert.equal((await client.status('N', queue, { headers: { cookie } })).status, 200);
    assert.equal((await session(client, { cookie })).status, 200);
    for (const [method, path] of writes(queue)) {
      const answer = await client.request(method, path, { headers: { cookie } });
      assert.equal(answer.status, 403, `${method} ${path}`);
    }
    const headers = { cookie, 'x-csrf-token': token };
    assert.equal((await client.insert('N', queue, 'a', { headers })).status, 200);
  });

  it('never makes a browser prompt for a password', async () => {
    const client = harness().client(null);
    const challenge = async (path: string, headers: HeaderFields): Promise<string> => {
      const answer = await client.request('GET', path, { headers });
      assert.equal(answer.status, 401);
      return headerOf(answer, 'www-authenticate');
    };
    for (const headers of [
      { cookie: 'quayside_session=ended' },
      { 'x-csrf-token': 'x' },
      { 'x-requested-with': 'fetch' },
    ]) {
      assert.equal(await challenge('/q', { ...PAGE, ...headers }), 'Session realm="Quayside"');
    }
    assert.equal(await challenge('/console/session', PAGE), 'Session realm="Quayside"');
    assert.match(await challenge('/q', { cookie: 'theme=dark' }), /^Basic /);
    assert.match(await challenge('/q', {}), /^Basic /);
  });

  it('does not affect programs that send Basic credentials', async () => {
    const client = harness().client('ops:ops-password');
    const queue = harness().queue();
    assert.equal((await client.insert('N', queue, 'a')).status, 200);
    assert.equal((await client.get('N', queue, { to: 0 })).body.toString(), 'a');
    const wrong = await harness().client('ops:wrong').request('GET', '/q');
    assert.match(headerOf(wrong, 'www-authenticate'), /^Basic realm="Quayside"/);
  });
});

describe('The end of a session', () => {
  const MINUTE = 60_000;
  let harness: Harness;
  let client: QueueClient;

  before(async () => {
    harness = await Harness.start({ users: USERS });
    client = harness.client(null);
  });

  after(() => harness.close());

  it('comes after the idle time without a request', async () => {
    const headers = await signedIn(client);
    await harness.passTime(30 * MINUTE - 1);
    assert.equal((await session(client, headers)).status, 200);
    await harness.passTime(1);
    assert.equal((await session(client, headers)).status, 401);
  });

  it('is postponed by each request, whose response may renew the cookie', async () => {
    let headers = await signedIn(client);
    for (let i = 0; i < 5; i += 1) {
      await harness.passTime(20 * MINUTE);
      const answer = await client.status('N', 'q', { headers });
      assert.equal(answer.status, 200);
      assert.deepEqual(attributesOf(answer), ['Path=/', 'HttpOnly', 'SameSite=Strict']);
      const { csrfToken } = jsonOf<Session>(await session(client, headers));
      assert.equal(csrfToken, headers['x-csrf-token']);
      headers = { ...headers, cookie: cookieOf(answer) };
      const next = await client.status('N', 'q', { headers });
      assert.equal(next.headers['set-cookie'], undefined, 'the cookie is not renewed by every response');
    }
  });

  it('comes 12 hours after the sign-in at the latest', async () => {
    let headers = await signedIn(client);
    for (let i = 1; i < 36; i += 1) {
      await harness.passTime(20 * MINUTE);
      const answer = await session(client, headers);
      assert.equal(answer.status, 200, `after ${i * 20} minutes`);
      headers = { ...headers, cookie: cookieOf(answer) };
    }
    await harness.passTime(20 * MINUTE);
    assert.equal((await session(client, headers)).status, 401);
  });

  it('ends its streams of events', async () => {
    const subscribers = (count: number): Promise<void> =>
      until(() => harness.events.counts.subscribers === count);
    const signedOut = await signedIn(client);
    const kept = await signedIn(client);
    const first = client.request('GET', '/events', { headers: signedOut });
    const second = client.request('GET', '/events', { headers: kept });
    await subscribers(2);
    await client.request('DELETE', '/console/session', { headers: signedOut });
    assert.equal((await first).status, 200);
    await subscribers(1);
    await harness.passTime(12 * 60 * MINUTE);
    assert.equal((await second).status, 200);
    await subscribers(0);
  });

  it('ends the streams of events of all sessions that are ended together', async () => {
    const headers = await signedIn(client);
    const stream = client.request('GET', '/events', { headers: await signedIn(client) });
    await until(() => harness.events.counts.subscribers === 1);
    assert.equal((await client.request('DELETE', '/console/sessions', { headers })).status, 204);
    assert.equal(harness.events.counts.subscribers, 0);
    assert.equal((await stream).status, 200);
    assert.equal((await session(client, headers)).status, 401, 'the requesting session ends, too');
  });

  const sizeOf = async (queue: string, headers: HeaderFields): Promise<number> =>
    jsonOf<{ totalSize: number }>(await client.status('N', queue, { headers })).totalSize;

  /** A session that was used until a second before its maximum lifetime. */
  const longUsed = async (): Promise<HeaderFields> => {
    // After all sessions were ended, the start of a new one may be recorded up to a minute late.
    await harness.passTime(MINUTE);
    let headers = await signedIn(client);
    for (let i = 1; i < 36; i += 1) {
      await harness.passTime(20 * MINUTE);
      headers = { ...headers, cookie: cookieOf(await session(client, headers)) };
    }
    await harness.passTime(20 * MINUTE - 1000);
    return headers;
  };

  interface End {
    readonly when: string;
    readonly begin: () => Promise<HeaderFields>;
    readonly end: (headers: HeaderFields) => Promise<unknown>;
  }

  const ends: readonly End[] = [
    {
      when: 'by a sign-out',
      begin: () => signedIn(client),
      end: (headers) => client.request('DELETE', '/console/session', { headers }),
    },
    {
      when: 'with all sessions of the user',
      begin: () => signedIn(client),
      end: async (headers) => {
        // A second end of all sessions in the same millisecond would spare sessions started after the first.
        await harness.passTime(1);
        await client.request('DELETE', '/console/sessions', { headers });
      },
    },
    { when: 'after 12 hours', begin: longUsed, end: () => harness.passTime(1000) },
  ];
  for (const { when, begin, end } of ends) {
    it(`ends its waiting takes, which take nothing: ${when}`, async () => {
      const headers = await begin();
      const queue = harness.queue();
      const take = (path: string, body: object): Promise<Answer> =>
        client.request('POST', path, { headers, body: JSON.stringify(body) });
      const calls = [
        client.get('N', queue, { headers }),
        take(`${queuePath('N', queue)}/take`, { min: 2, count: 2 }),
        take('/take', { from: [{ ns: 'N', queue }] }),
      ];
      await harness.waiting(calls.length);
      await end(headers);
      assert.equal(harness.broker.waiting, 0);
      const later = await signedIn(client);
      for (let i = 0; i < 4; i += 1) await client.insert('N', queue, 'a', { headers: later });
      const statuses = (await Promise.all(calls)).map(({ status }) => status);
      assert.deepEqual(statuses, [401, 401, 401]);
      assert.equal(await sizeOf(queue, later), 4);
    });
  }

  it('does not overwrite the cookie of a later session with a renewed one', async () => {
    const headers = await signedIn(client);
    await harness.passTime(20 * MINUTE);
    // The cookie is old enough to be renewed by the response.
    const get = client.get('N', harness.queue(), { headers });
    await harness.waiting(1);
    await client.request('DELETE', '/console/session', { headers });
    assert.equal(harness.broker.waiting, 0);
    const { status, headers: fields } = await get;
    assert.deepEqual([status, fields['set-cookie']], [401, undefined]);
  });

  const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;

  /** As many lines of an export as are stored at once. */
  const batch = (from: number): string =>
    Array.from({ length: 500 }, (_, i) => {
      const [id, insertedAt] = [String(from + i), '2026-01-01T00:00:00.000Z'];
      return `${JSON.stringify({ id, mature: 1_700_000_000, insertedAt, tries: 0, headers: {}, text: id })}\n`;
    }).join('');

  /** Sends the head of a request with a chunked body. */
  const begun = async (line: string, headers: HeaderFields): Promise<RawConnection> => {
    const connection = await RawConnection.open(harness.port);
    const fields = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
    connection.send(rawRequest([line, 'Host: test', ...fields, 'Transfer-Encoding: chunked']));
    return connection;
  };

  for (const { when, begin, end } of ends) {
    it(`ends its import, which keeps what was stored by then: ${when}`, async () => {
      const headers = await begin();
      const queue = harness.queue();
      const connection = await begun(`POST ${queuePath('N', queue)}/import HTTP/1.1`, headers);
      connection.send(chunk(batch(0)));
      const other = await signedIn(client);
      await until(async () => (await sizeOf(queue, other)) === 500);
      await end(headers);
      connection.send(`${chunk(batch(500))}0\r\n\r\n`);
      const [answer] = await connection.answers(1);
      assert.equal(answer?.status, 401);
      assert.equal(JSON.parse(answer.body).imported, 500);
      assert.equal(await sizeOf(queue, await signedIn(client)), 500);
      connection.destroy();
    });
  }

  it('ends an insert whose body is incomplete, which stores nothing', async () => {
    const headers = await signedIn(client);
    const queue = harness.queue();
    const connection = await begun(`PUT ${queuePath('N', queue)} HTTP/1.1`, headers);
    connection.send(chunk('la'));
    // A response on another connection means that the bytes sent before it have been read.
    await session(client, headers);
    await client.request('DELETE', '/console/session', { headers });
    connection.send(`${chunk('te')}0\r\n\r\n`);
    const [answer] = await connection.answers(1);
    assert.equal(answer?.status, 401);
    assert.equal(await sizeOf(queue, await signedIn(client)), 0);
    connection.destroy();
  });

  it('ends a listing that waits for an earlier one', async () => {
    const headers = await signedIn(client);
    const kept = await signedIn(client);
    const { storage } = harness.opened.engine;
    const { queues } = storage;
    const [entered, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    storage.queues = async (ns) => {
      entered.resolve();
      await released.promise;
      return queues.call(storage, ns);
    };
    const first = client.queues('N', { headers: kept });
    await entered.promise;
    const second = client.queues('jobs', { headers });
    // A response on another connection means that the request has been read.
    await session(client, kept);
    await client.request('DELETE', '/console/session', { headers });
    storage.queues = queues;
    released.resolve();
    assert.deepEqual([(await first).status, (await second).status], [200, 401]);
  });

  it('aborts its export', async () => {
    const headers = await signedIn(client);
    const queue = harness.queue();
    const lines = Array.from({ length: 500 }, (_, i) => ({ text: String(i) }));
    assert.equal((await client.insertLines('N', queue, lines, { headers })).status, 200);
    const { storage } = harness.opened.engine;
    const { scan } = storage;
    const [entered, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    let scans = 0;
    storage.scan = async (...given) => {
      scans += 1;
      if (scans === 2) {
        entered.resolve();
        await released.promise;
      }
      return scan.apply(storage, given);
    };
    const exported = client.request('GET', `${queuePath('N', queue)}/export`, { headers });
    await entered.promise;
    storage.scan = scan;
    await client.request('DELETE', '/console/session', { headers });
    released.resolve();
    await assert.rejects(exported, { code: 'ECONNRESET' });
  });

  it('invalidates its renewed cookies, too', async () => {
    const headers = await signedIn(client);
    await harness.passTime(20 * MINUTE);
    const renewed = cookieOf(await session(client, headers));
    await client.request('DELETE', '/console/session', { headers });
    assert.equal((await session(client, { ...PAGE, cookie: renewed })).status, 401);
  });
});

describe('The password of a session’s user', () => {
  const NAMESPACES = ['N', 'jobs', 'events', 'hidden'];
  const definitions = (password: string, rights: UserDefinition['rights'] = null): UserDefinition[] => [
    { name: 'ops', password, rights },
  ];
  let authenticator: PasswordAuthenticator;
  let harness: Harness;

  before(async () => {
    harness = await Harness.start({
      authenticator: ({ clock }) => {
        const accounts = readAccounts(definitions('ops-password'), NAMESPACES);
        authenticator = new PasswordAuthenticator({
          accounts,
          clock,
          log: { ...SILENT_LOG, debug: () => {} },
        });
        return authenticator;
      },
      accountNamed: (name) => authenticator.accountNamed(name),
    });
  });

  after(() => harness.close());

  it('ends the session if it changes or the user is removed, while changed rights apply at once', async () => {
    const client = harness.client(null);
    const headers = await signedIn(client);
    const reload = (users: UserDefinition[]): unknown =>
      authenticator.replaceAccounts(readAccounts(users, NAMESPACES));
    reload(definitions('ops-password', { N: ['browse'] }));
    const { rights } = jsonOf<Session>(await session(client, headers));
    assert.deepEqual(rights, { N: ['browse'] });
    reload(definitions('another-password'));
    assert.equal((await session(client, headers)).status, 401);
    reload(definitions('ops-password'));
    assert.equal((await session(client, headers)).status, 200);
    reload([{ name: 'other', password: 'ops-password', rights: null }]);
    assert.equal((await session(client, headers)).status, 401);
  });

  it('can be guessed no more often than with Basic authentication', async () => {
    const client = harness.client(null);
    authenticator.replaceAccounts(readAccounts(definitions('ops-password'), NAMESPACES));
    const statuses: number[] = [];
    for (let i = 0; i < 11; i += 1) statuses.push((await signIn(client, 'guessed', `wrong-${i}`)).status);
    assert.deepEqual(statuses, [...Array(10).fill(401), 429]);
  });
});

describe('Nodes with the same console.secret', () => {
  const users: readonly UserDefinition[] = USERS;
  const secret = 'a secret of at least 32 characters';

  it('accept each other’s sessions, but not those made with another secret', async () => {
    const nodes = await Promise.all(
      [secret, secret, `${secret}!`, undefined].map((consoleSecret) =>
        Harness.start({ users, ...(consoleSecret !== undefined && { consoleSecret }) }),
      ),
    );
    const [first, ...others] = nodes.map((node) => node.client(null));
    assert.ok(first !== undefined);
    const headers = await signedIn(first);
    const statuses = await Promise.all(others.map(async (client) => (await session(client, headers)).status));
    assert.deepEqual(statuses, [200, 401, 401]);
    const written = await others[0]?.insert('N', 'q', 'x', { headers });
    assert.equal(written?.status, 200);
    for (const node of nodes) await node.close();
  });
});

describe('The cookie over TLS', () => {
  it('is Secure, with a name that no other host can set', async () => {
    const tls = makeCertificate();
    const harness = await Harness.start({ users: USERS, http: { tls } });
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    const options = { method: 'POST', ca: tls.cert, agent: false, headers: PAGE };
    httpsRequest(`https://127.0.0.1:${harness.port}/console/session`, options, resolve)
      .on('error', reject)
      .end(JSON.stringify({ user: 'ops', password: 'ops-password' }));
    const response = await promise;
    await text(response);
    assert.equal(response.statusCode, 200);
    assert.match(
      response.headers['set-cookie']?.[0] ?? '',
      /^__Host-quayside_session=[\w.-]+; Path=\/; HttpOnly; SameSite=Strict; Secure$/,
    );
    await harness.close();
  });
});

describe('The cookie behind a proxy that terminates TLS', () => {
  const trusted = sharedHarness({ users: USERS, http: { trustedProxies: new Networks(['127.0.0.1']) } });
  const untrusted = sharedHarness({ users: USERS });

  it('is Secure if a trusted proxy says so', async () => {
    for (const [headers, isSecure] of [
      [{ 'x-forwarded-proto': 'https' }, true],
      [{ 'x-forwarded-proto': 'http, HTTPS' }, true],
      [{ 'x-forwarded-proto': 'https, http' }, false],
      [{ forwarded: 'for=192.0.2.1;proto=https;host=a' }, true],
      [{ forwarded: 'for="x;proto=https";proto=http' }, false],
      [{}, false],
    ] as const) {
      const answer = await signIn(trusted().client(null), 'ops', undefined, headers);
      assert.equal(attributesOf(answer).includes('Secure'), isSecure, JSON.stringify(headers));
    }
    const answer = await signIn(untrusted().client(null), 'ops', undefined, { 'x-forwarded-proto': 'https' });
    assert.equal(attributesOf(answer).includes('Secure'), false);
  });

  it('is ignored without the __Host- prefix, as another host of the domain could have set it', async () => {
    const client = trusted().client(null);
    const https = { 'x-forwarded-proto': 'https' };
    const [own, others] = [await signIn(client, 'ops', undefined, https), await signIn(client, 'support')];
    assert.match(cookieOf(own), /^__Host-quayside_session=/);
    const userOf = async (cookie: string): Promise<string | number> => {
      const answer = await session(client, { ...PAGE, ...https, cookie });
      return answer.status === 200 ? jsonOf<Session>(answer).user : answer.status;
    };
    assert.equal(await userOf(`${cookieOf(others)}; ${cookieOf(own)}`), 'ops');
    assert.equal(await userOf(cookieOf(others)), 401);
  });
});
