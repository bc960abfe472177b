import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { hasRawUserInfo, MASK, maskDeep, maskUrl, maskUrls } from '../../src/util/mask.ts';

describe('maskUrl', () => {
  const cases: [given: string, shown: string][] = [
    ['redis://h:6379/0', 'redis://h:6379/0'],
    ['redis://:p@h', 'redis://***@h'],
    ['redis://user:p@h:6379/2', 'redis://***@h:6379/2'],
    ['rediss://user@h', 'rediss://***@h'],
    ['postgres://u:p%40ss@h:5432/db', 'postgres://***@h:5432/db'],
    ['postgres://u:p@ss@h/db', 'postgres://***@h/db'],
    [
      'mongodb://u:p@h1:27017,h2:27018,h3/db?replicaSet=r',
      'mongodb://***@h1:27017,h2:27018,h3/db?replicaSet=r',
    ],
    ['mongodb+srv://u:p@cluster.example/db', 'mongodb+srv://***@cluster.example/db'],
    [
      'postgres://h/db?sslmode=verify-full&sslpassword=p',
      'postgres://h/db?sslmode=verify-full&sslpassword=***',
    ],
    ['postgres://h/db?ssl%70assword=p&a=b', 'postgres://h/db?ssl%70assword=***&a=b'],
    ['postgres://h/db?user=u&password=p#x', 'postgres://h/db?user=u&password=***#x'],
    ['redis+unix://:p@/run/redis.sock?db=1', 'redis+unix://***@/run/redis.sock?db=1'],
    ['/run/redis.sock?password=p', '/run/redis.sock?password=***'],
    ['sqlite:N.db', 'sqlite:N.db'],
    ['sqlite::memory:', 'sqlite::memory:'],
    ['sqlite:N.db?cipherKey=p', 'sqlite:N.db?cipherKey=***'],
  ];
  for (const [given, shown] of cases) {
    it(`shows ${given} as ${shown}`, () => assert.equal(maskUrl(given), shown));
  }

  it('hides everything after the scheme if a password has unescaped reserved characters', () => {
    assert.equal(maskUrl('redis://:p/ss@h/0'), 'redis://***');
    assert.equal(maskUrl('redis://:p?ss@h/0'), 'redis://***');
    assert.equal(maskUrl('postgres://u@h/db?sslpassword=p@ss'), 'postgres://***');
    assert.equal(maskUrl('redis:u:p@h'), 'redis:***');
  });

  it('never shows any part of a password, whatever characters it has', () => {
    const marked = fc.string({ maxLength: 12 }).map((noise) => `CANARY${noise}CANARY`);
    fc.assert(
      fc.property(
        marked,
        fc.constantFrom('redis://u:', 'mongodb://u:', 'postgres://:'),
        (password, start) => {
          const shown = maskUrl(`${start}${password}@h1,h2/db?x=y`);
          assert.ok(!shown.includes('CANARY'), shown);
        },
      ),
    );
  });
});

describe('maskUrls', () => {
  it('masks each URL in a sentence and leaves the rest', () => {
    assert.equal(
      maskUrls('connect to redis://:p@h failed (postgres://u:p@h/db too)'),
      'connect to redis://***@h failed (postgres://***@h/db too)',
    );
    assert.equal(maskUrls('no URL: a@b'), 'no URL: a@b');
  });

  it('masks a password with unescaped quotes, angle brackets or backticks, whether or not the URL is quoted', () => {
    for (const mark of [`'`, '"', '<', '>', '`', `"'`, `',u='`]) {
      const url = `redis://:o${mark}brien@db:6379`;
      assert.equal(maskUrls(`cannot reach ${url} now`), 'cannot reach redis://***@db:6379 now');
      assert.equal(maskUrls(`cannot reach "${url}"`), 'cannot reach "redis://***@db:6379"');
    }
  });

  it('never shows any part of a password without whitespace, whatever surrounds the URL', () => {
    const password = fc
      .string({ maxLength: 12, unit: fc.constantFrom(...`'"<>\`:/?#@&=\\aé1`) })
      .map((noise) => `CANARY${noise}CANARY`);
    const around = fc.string({ maxLength: 6, unit: fc.constantFrom(...`'"<>\` ({,x:/@`) });
    fc.assert(
      fc.property(around, password, around, (before, secret, after) => {
        const shown = maskUrls(`${before}redis://u:${secret}@h1,h2/0${after}`);
        assert.ok(!shown.includes('CANARY'), shown);
      }),
    );
  });

  it('keeps the text after a quoted URL, unless an @ in it may end a password', () => {
    for (const text of [
      'cannot reach "redis://h:6379/0", says a@b',
      `{"url":"redis://h:6379","n":1}`,
      '<redis://h:6379/0>;b="x",<redis://h2:6379/0>',
      `a@b,'redis://h:6379/0'`,
    ]) {
      assert.equal(maskUrls(text), text);
    }
    assert.equal(maskUrls(`{"url":"redis://h/0","mail":"a@b"} x`), `{"url":"redis://***"} x`);
  });

  it('takes time linear in the length of the text', { timeout: 60_000 }, () => {
    const size = 1_000_000;
    for (const hostile of [
      'a'.repeat(size),
      `${'a'.repeat(size)}://`,
      'a://'.repeat(size / 4),
      'a://"'.repeat(size / 5),
      `a://${'"@'.repeat(size / 2)}`,
      `a://${'/'.repeat(size)}`,
      `a://h${'?'.repeat(size)}`,
      `a://h${'?a='.repeat(size / 3)}`,
      `://${' ://'.repeat(size / 4)}`,
    ]) {
      assert.ok(maskUrls(`x://h ${hostile}`).startsWith('x://h '));
      hasRawUserInfo(hostile);
    }
  });
});

describe('maskDeep', () => {
  it('masks values under secret names at any depth, in any letter case, and URLs anywhere', () => {
    const shown = maskDeep({
      url: 'mongodb://u:p@h1,h2/db',
      mongo_opts: { authMechanism: 'X', Password: 'p', tls: { tlsCertificateKeyFilePassword: 'p' }, pool: 5 },
      list: [{ apiToken: 'p' }, 'redis://:p@h'],
      nothing: { secret: null },
    });
    assert.deepEqual(shown, {
      url: 'mongodb://***@h1,h2/db',
      mongo_opts: {
        authMechanism: MASK,
        Password: MASK,
        tls: { tlsCertificateKeyFilePassword: MASK },
        pool: 5,
      },
      list: [{ apiToken: MASK }, 'redis://***@h'],
      nothing: { secret: null },
    });
  });

  it('hides a whole branch under a secret name', () => {
    assert.deepEqual(maskDeep({ credentials: { user: 'u', value: 'p' } }), { credentials: MASK });
  });

  it('terminates on a value that contains itself, and treats __proto__ as an ordinary key', () => {
    const loop: Record<string, unknown> = {};
    loop.self = loop;
    assert.doesNotThrow(() => JSON.stringify(maskDeep(loop)));
    const shown = maskDeep(JSON.parse('{"__proto__":{"password":"p"}}'));
    assert.equal(JSON.stringify(shown), '{"__proto__":{"password":"***"}}');
  });
});
