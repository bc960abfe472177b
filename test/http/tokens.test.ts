import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { readAccounts } from '../../src/access/account.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import type { SessionInfo } from '../../src/model/records.ts';
import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import { NAMESPACES, sharedHarness } from './harness.ts';

const USERS = [
  { name: 'admin', password: 'pw', rights: null },
  { name: 'ann', password: 'pw', rights: { N: ['read', 'write'], jobs: ['browse'] } },
  { name: 'bob', password: 'pw', rights: { N: ['read'] } },
  { name: 'paged', password: 'pw', rights: { N: ['read'] } },
];

const consumer = { queue: 'q', group: null, kind: 'take', window: 1, unacknowledged: 0 } as const;
const session = { protocol: 'stomp', user: 'admin', address: '192.0.2.1' } as const;
const SESSIONS: readonly SessionInfo[] = [
  {
    ...session,
    id: 's-1',
    since: '2026-11-24T10:00:00.000Z',
    consumers: [
      { ...consumer, ns: 'N' },
      { ...consumer, ns: 'jobs' },
    ],
  },
  { ...session, id: 's-2', since: '2026-11-24T10:00:01.000Z', consumers: [{ ...consumer, ns: 'N' }] },
];

interface Created {
  readonly id: string;
  readonly token: string;
}

describe('API tokens', () => {
  const harness = sharedHarness({
    users: USERS,
    sessions: () => SESSIONS,
    authenticator: (opened, tokens) =>
      new PasswordAuthenticator({
        accounts: readAccounts(
          USERS,
          NAMESPACES.map(({ name }) => name),
        ),
        clock: opened.clock,
        log: { debug: () => {}, warn: () => {} },
        tokens,
      }),
  });

  const as = (name: string): QueueClient => harness().client(`${name}:pw`);
  const create = (client: QueueClient, body: unknown): Promise<Answer> =>
    client.request('POST', '/tokens', { body: JSON.stringify(body) });

  async function created(user: string, body: object): Promise<Created> {
    const answer = await create(as(user), body);
    assert.equal(answer.status, 201, answer.body.toString());
    return jsonOf<Created>(answer);
  }

  /** A request with a token. */
  const withToken = (token: string, method: string, path: string, body = ''): Promise<Answer> =>
    harness()
      .client(null)
      .request(method, path, { body, headers: { authorization: `Bearer ${token}` } });

  const codeOf = (answer: Answer): readonly [number, string] => [
    answer.status,
    jsonOf<{ code: string }>(answer).code,
  ];

  it('authenticate their owner, with all of their rights or fewer', async () => {
    const whole = await created('ann', { name: 'whole' });
    const reader = await created('ann', { name: 'reader', rights: { N: ['read'] } });
    const everywhere = await created('ann', { name: 'everywhere', rights: { '*': ['browse'] } });
    assert.match(whole.token, /^qs_[\w-]{43}$/);
    // The command line would parse an id that starts with `-` as an option.
    assert.match(whole.id, /^[0-9a-f]+$/);
    assert.equal((await withToken(whole.token, 'PUT', '/q/N/owned', 'x')).status, 200);
    assert.deepEqual(codeOf(await withToken(reader.token, 'PUT', '/q/N/owned', 'x')), [403, 'forbidden']);
    assert.equal((await withToken(reader.token, 'GET', '/q/N/owned?to=0')).status, 200);
    assert.deepEqual(codeOf(await withToken(reader.token, 'GET', '/q/jobs/a/elements')), [
      404,
      'namespace-not-found',
    ]);
    assert.equal((await withToken(everywhere.token, 'GET', '/q/jobs/a/elements')).status, 200);
    // A token never has a right that its owner lacks.
    assert.equal((await withToken(everywhere.token, 'GET', '/q/hidden/a/elements')).status, 404);
    const admin = await created('admin', { name: 'all' });
    assert.equal((await withToken(admin.token, 'GET', '/definitions')).status, 200);
  });

  it('that lack a right of their user are named in the error', async () => {
    const detailOf = (answer: Answer): string => jsonOf<{ detail: string }>(answer).detail;
    const { token } = await created('ann', { name: 'small', rights: { N: ['read'] } });
    assert.equal(
      detailOf(await withToken(token, 'PUT', '/q/N/owned', 'x')),
      'Token "small" does not have the right write in namespace N, although its user "ann" has it. Use a token with that right.',
    );
    assert.equal(
      detailOf(await withToken(token, 'DELETE', '/q/N/owned')),
      'User "ann" does not have the right manage in namespace N.',
    );
    const limited = await created('admin', { name: 'limited', rights: { N: ['read'] } });
    assert.match(
      detailOf(await withToken(limited.token, 'GET', '/definitions')),
      /^This needs all rights of an administrator, and token "limited" has only some\./,
    );
    const operation = { action: 'redrive', source: { ns: 'N', queue: '__deadletter__' } };
    const started = await as('admin').request('POST', '/operations', { body: JSON.stringify(operation) });
    assert.match(
      detailOf(await withToken(limited.token, 'GET', `/operations/${jsonOf<{ id: string }>(started).id}`)),
      /^Token "limited" does not have the right manage in namespace N, although/,
    );
    assert.match(detailOf(await withToken(token, 'GET', '/definitions')), /^This needs an administrator:/);
  });

  it('with limited rights do not see actions and sessions of their owner in other namespaces', async () => {
    const limited = await created('admin', { name: 'watcher', rights: { jobs: ['manage'] } });
    const whole = await created('admin', { name: 'all' });
    await as('admin').pause('N', 'watched');
    await as('admin').resume('jobs', 'watched');
    const actions = async (token: string): Promise<readonly string[]> => {
      const answer = await withToken(token, 'GET', '/audit');
      return jsonOf<{ lines: { action: string }[] }>(answer).lines.map(({ action }) => action);
    };
    assert.deepEqual(await actions(limited.token), ['resume']);
    assert.deepEqual((await actions(whole.token)).slice(0, 3), ['resume', 'pause', 'createToken']);
    const consumersOf = async (token: string): Promise<readonly string[]> => {
      const answer = await withToken(token, 'GET', '/sessions');
      const { sessions } = jsonOf<{ sessions: SessionInfo[] }>(answer);
      return sessions.flatMap(({ id, consumers }) => [id, ...consumers.map(({ ns }) => ns)]);
    };
    assert.deepEqual(await consumersOf(limited.token), ['s-1', 'jobs']);
    assert.deepEqual(await consumersOf(whole.token), ['s-1', 'N', 'jobs', 's-2', 'N']);
  });

  it('can be used as the password of the user "token" or of their owner, but not to sign in to the console', async () => {
    const { token } = await created('ann', { name: 'password' });
    const statusOf = async (name: string): Promise<number> =>
      (await harness().client(`${name}:${token}`).namespaces()).status;
    assert.deepEqual([await statusOf('token'), await statusOf('ann')], [200, 200]);
    assert.equal(await statusOf('bob'), 401);
    const signIn = await harness()
      .client(null)
      .request('POST', '/console/session', { body: JSON.stringify({ user: 'ann', password: token }) });
    assert.deepEqual(codeOf(signIn), [401, 'unauthorized']);
  });

  it('are listed without their secret, and those of other users only for administrators', async () => {
    const { id, token } = await created('bob', { name: 'listed' });
    await withToken(token, 'GET', '/q');
    const listed = await as('bob').request('GET', '/tokens');
    assert.ok(!listed.body.toString().includes(token));
    const [record] = jsonOf<Record<string, unknown>[]>(listed);
    const now = new Date(harness().opened.clock.now()).toISOString();
    const times = { createdAt: now, expiresAt: null, lastUsedAt: now };
    assert.deepEqual(record, { id, name: 'listed', owner: 'bob', rights: null, ...times });
    const owners = jsonOf<{ owner: string }[]>(await as('admin').request('GET', '/tokens')).map(
      ({ owner }) => owner,
    );
    assert.ok(owners.includes('bob') && owners.includes('ann'));
  });

  it('are listed in pages on request, each once, even if some are revoked between two pages', async () => {
    const ids: string[] = [];
    for (let i = 0; i < 5; i += 1) {
      ids.push((await created('paged', { name: `t${i}` })).id);
      if (i % 2 === 0) await harness().passTime(1);
    }
    const whole = jsonOf<{ id: string }[]>(await as('paged').request('GET', '/tokens')).map(({ id }) => id);
    assert.deepEqual(whole.toSorted(), ids.toSorted());
    const found: string[] = [];
    let link: string | undefined = '?limit=2';
    while (link !== undefined) {
      const page = await as('paged').request('GET', `/tokens${link}`);
      assert.equal(page.status, 200);
      const records = jsonOf<{ id: string }[]>(page);
      assert.ok(records.length <= 2);
      found.push(...records.map(({ id }) => id));
      // The next page starts after a token that no longer exists.
      await as('paged').request('DELETE', `/tokens/${records.at(-1)?.id}`);
      link = /^<(\?[^>]+)>; rel="next"$/.exec(page.headers.link ?? '')?.[1];
    }
    assert.deepEqual(found, whole);
    const wrong = await as('paged').request('GET', '/tokens?after=x');
    assert.deepEqual(codeOf(wrong), [400, 'invalid-parameter']);
  });

  it('are rejected once they are revoked, by their owner or by an administrator', async () => {
    for (const user of ['bob', 'admin']) {
      const { id, token } = await created('bob', { name: 'revoked' });
      assert.deepEqual(codeOf(await as('ann').request('DELETE', `/tokens/${id}`)), [404, 'token-not-found']);
      assert.equal((await withToken(token, 'GET', '/q')).status, 200);
      assert.equal((await as(user).request('DELETE', `/tokens/${id}`)).status, 204);
      assert.deepEqual(codeOf(await withToken(token, 'GET', '/q')), [401, 'unauthorized']);
      assert.equal((await as(user).request('DELETE', `/tokens/${id}`)).status, 404);
    }
  });

  it('are rejected with token-expired once they have expired', async () => {
    const expiresAt = new Date(harness().opened.clock.now() + 60_000).toISOString();
    const { token } = await created('ann', { name: 'short', expiresAt });
    assert.equal((await withToken(token, 'GET', '/q')).status, 200);
    await harness().passTime(60_000);
    const expired = await withToken(token, 'GET', '/q');
    assert.deepEqual(codeOf(expired), [401, 'token-expired']);
    assert.match(expired.headers['www-authenticate'] ?? '', /^Basic realm=/);
    assert.match(jsonOf<{ detail: string }>(expired).detail, /^Token "short" expired at 20.*Z\. Use another/);
  });

  it('notify listeners when they expire, in whatever order they were created', async () => {
    const { clock } = harness().opened;
    const start = clock.now();
    const ended: number[] = [];
    harness().tokens.onEnded(() => ended.push(clock.now() - start));
    for (const seconds of [120, 60, 180]) {
      const expiresAt = new Date(start + seconds * 1000).toISOString();
      const { token } = await created('ann', { name: 'short', expiresAt });
      assert.equal((await withToken(token, 'GET', '/q')).status, 200);
    }
    for (let i = 0; i < 3; i++) await harness().passTime(60_000);
    assert.deepEqual(ended, [60_000, 120_000, 180_000]);
  });

  it('cannot manage tokens or sessions of the console', async () => {
    const { id, token } = await created('admin', { name: 'all' });
    for (const [method, path] of [
      ['POST', '/tokens'],
      ['GET', '/tokens'],
      ['DELETE', `/tokens/${id}`],
      ['GET', '/console/sessions'],
      ['DELETE', '/console/sessions/x'],
    ] as const) {
      const answer = await withToken(token, method, path, '{"name":"x"}');
      assert.deepEqual(codeOf(answer), [403, 'forbidden']);
      assert.match(
        jsonOf<{ detail: string }>(answer).detail,
        /^Token "all" cannot manage tokens or sessions/,
      );
    }
  });

  it('are not created from an invalid body, or with rights that the owner does not have', async () => {
    for (const [body, status, code, detail] of [
      [{}, 400, 'invalid-parameter', /^name is missing/],
      [{ name: '' }, 400, 'invalid-parameter', /^name must be a string of 1 to 64/],
      [{ name: 'x', right: {} }, 400, 'invalid-parameter', /^Unknown member right\. Did you mean "rights"\?/],
      [{ name: 'x', rights: {} }, 400, 'invalid-parameter', /^rights must be null, or lists/],
      [{ name: 'x', rights: { N: [] } }, 400, 'invalid-parameter', /^rights\.N must be a list of rights/],
      [
        { name: 'x', rights: { N: ['raed'] } },
        400,
        'invalid-parameter',
        /^rights\.N\[0\] must be one of read/,
      ],
      [
        { name: 'x', rights: { N: ['manage'] } },
        403,
        'forbidden',
        /does not have the right manage in namespace N/,
      ],
      [{ name: 'x', rights: { '*': ['manage'] } }, 403, 'forbidden', /has the right manage in no namespace/],
      [
        { name: 'x', rights: { hidden: ['read'] } },
        404,
        'namespace-not-found',
        /^rights\.hidden: There is no namespace "hidden"/,
      ],
      [{ name: 'x', rights: { absent: ['read'] } }, 404, 'namespace-not-found', /no namespace "absent"/],
      [
        { name: 'x', expiresAt: 'soon' },
        400,
        'invalid-parameter',
        /^expiresAt must be null, or a time to come/,
      ],
      [{ name: 'x', expiresAt: '2000-01-01T00:00:00Z' }, 400, 'invalid-parameter', /a time to come/],
      [{ name: 'x', expiresAt: '2999-02-29T00:00:00Z' }, 400, 'invalid-parameter', /a time to come/],
      [{ name: 'x', expiresAt: '2999-01-31T25:00:00Z' }, 400, 'invalid-parameter', /a time to come/],
      [{ name: 'x', expiresAt: '2999-01-31T10:61:00Z' }, 400, 'invalid-parameter', /a time to come/],
      [{ name: 'x', expiresAt: '2999-01-31T10:00:00+24:00' }, 400, 'invalid-parameter', /a time to come/],
      [
        { name: 'x', rights: {} },
        400,
        'invalid-parameter',
        /lists of rights by namespace, not an empty object/,
      ],
    ] as const) {
      const answer = await create(as('ann'), body);
      assert.deepEqual(codeOf(answer), [status, code], JSON.stringify(body));
      assert.match(jsonOf<{ detail: string }>(answer).detail, detail);
    }
  });

  it('are limited to 100 per user', async () => {
    const own = jsonOf<unknown[]>(await as('bob').request('GET', '/tokens')).length;
    for (let i = own; i < 100; i++) await created('bob', { name: `n${i}` });
    assert.deepEqual(codeOf(await create(as('bob'), { name: 'x' })), [507, 'too-many-tokens']);
  });

  it('that are wrong are limited like wrong passwords, while valid ones are still accepted', async () => {
    const { token } = await created('ann', { name: 'right' });
    const wrong = (i: number): string => `qs_${String(i).padStart(43, 'x')}`;
    for (let i = 0; ; i++) {
      const answer = await withToken(wrong(i), 'GET', '/q');
      if (answer.status === 401) continue;
      assert.deepEqual(codeOf(answer), [429, 'too-many-attempts']);
      assert.ok(i >= 5 && i <= 40, `${i} attempts`);
      break;
    }
    assert.equal((await withToken(token, 'GET', '/q')).status, 200);
  });
});
