import assert from 'node:assert/strict';
import { hash } from 'node:crypto';
import { beforeEach, describe, it } from 'node:test';
import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { hashPassword, type passwordMatches } from '../../src/access/password.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { FakeClock } from '../support/clock.ts';

const HERE = '192.0.2.1';
const DAY_MS = 24 * 3_600_000;

const hashed: UserDefinition = { name: 'hashed', password: await hashPassword('right'), rights: null };
const plain: UserDefinition = { name: 'plain', password: 'right', rights: null };
const known: UserDefinition = { name: 'known', password: 'right', rights: null };

describe('Logins', () => {
  let clock: FakeClock;
  let logged: object[];
  let logins: PasswordAuthenticator;
  const login = (name: string, password: string, from: string) =>
    logins.login(basic(`${name}:${password}`), from);

  beforeEach(() => {
    clock = new FakeClock();
    logged = [];
    logins = new PasswordAuthenticator({
      accounts: readAccounts([hashed, plain, known], []),
      clock,
      log: { debug: () => {}, warn: (fields) => logged.push(fields) },
      verify,
      known: { has: (name, network) => name === 'known' && network === '192.0.2.0/24', add: () => {} },
    });
  });

  it('accept the right password, hashed or plain', async () => {
    logins = new PasswordAuthenticator({
      accounts: readAccounts([hashed, plain], []),
      clock,
      log: { debug: () => {}, warn: () => {} },
    });
    assert.equal((await login('hashed', 'right', HERE)).name, 'hashed');
    assert.equal((await login('plain', 'right', HERE)).name, 'plain');
    assert.deepEqual(logins.counts, { accepted: 2, failed: 0, limited: 0 });
  });

  it('reject a wrong password, an unknown user and an oversized password with the same error', async () => {
    for (const [name, password] of [
      ['hashed', 'wrong'],
      ['plain', 'wrong'],
      ['nobody', 'right'],
      ['hashed', 'x'.repeat(257)],
    ] as const) {
      await assert.rejects(login(name, password, HERE), code('unauthorized'));
    }
  });

  it('tell apart passwords of up to 256 bytes that differ in their last byte only', async () => {
    for (const length of [73, 256]) {
      const password = 'p'.repeat(length - 2);
      const users = [
        { name: 'hashed', password: await hashPassword(`${password}é`), rights: null },
        { name: 'plain', password: `${password}é`, rights: null },
      ];
      logins = new PasswordAuthenticator({
        accounts: readAccounts(users, []),
        clock,
        log: { debug: () => {}, warn: () => {} },
      });
      for (const { name } of users) {
        assert.equal((await login(name, `${password}é`, HERE)).name, name);
        await assert.rejects(login(name, `${password}è`, HERE), code('unauthorized'));
        await assert.rejects(login(name, password, HERE), code('unauthorized'));
      }
    }
  });

  it('remember an accepted header for five minutes after its last use', async () => {
    const header = basic('hashed:right');
    assert.equal(logins.recall(header), null);
    const user = await logins.login(header, HERE);
    clock.advance(299_000);
    assert.equal(logins.recall(header), user);
    clock.advance(299_000);
    assert.equal(logins.recall(header), user);
    clock.advance(300_000);
    assert.equal(logins.recall(header), null);
  });

  it('remember no rejected, malformed or oversized header', async () => {
    for (const header of [basic('hashed:wrong'), 'Basic x', basic(`u:${'p'.repeat(2000)}`)]) {
      await assert.rejects(logins.login(header, HERE), code('unauthorized'));
      assert.equal(logins.recall(header), null);
    }
  });

  it('remember a header when the users are replaced, but apply the new rights', async () => {
    const header = basic('plain:right');
    assert.equal((await logins.login(header, HERE)).may('read', 'N'), true);
    clock.advance(200_000);
    for (let i = 0; i < 20; i++) await login('plain', `wrong ${i}`, HERE).catch(() => {});
    await assert.rejects(login('plain', 'wrong', HERE), code('too-many-attempts'));
    logins.replaceAccounts(readAccounts([{ ...plain, rights: { N: ['write'] } }], ['N']));
    const remembered = logins.recall(header);
    assert.equal(remembered?.name, 'plain');
    assert.deepEqual([remembered?.may('read', 'N'), remembered?.may('write', 'N')], [false, true]);
    clock.advance(300_000);
    assert.equal(logins.recall(header), null);
  });

  it('forget users who are removed or get another password when the users are replaced', async () => {
    const header = basic('hashed:right');
    await logins.login(header, HERE);
    logins.replaceAccounts(readAccounts([plain], []));
    assert.equal(logins.recall(header), null);
    await assert.rejects(logins.login(header, HERE), code('unauthorized'));

    const running = logins.login(basic('plain:right'), HERE);
    logins.replaceAccounts(readAccounts([{ ...plain, password: 'other' }], []));
    await assert.rejects(running, code('unauthorized'));
    assert.equal(logins.recall(basic('plain:right')), null);
  });

  it('renew a user who has logged in after the users were replaced, unless the password changed', async () => {
    const user = await logins.login(basic('plain:right'), HERE);
    assert.equal(logins.renew(user), user);
    logins.replaceAccounts(readAccounts([{ ...plain, rights: {} }], []));
    const renewed = logins.renew(user);
    assert.deepEqual([renewed?.name, renewed?.may('read', 'N')], ['plain', false]);
    logins.replaceAccounts(readAccounts([{ ...plain, password: 'other' }], []));
    assert.equal(logins.renew(user), null);
    logins.replaceAccounts(readAccounts([], []));
    assert.equal(logins.renew(user), null);
  });

  it('verify the same credentials once for any number of concurrent requests', async () => {
    const header = basic('hashed:right');
    const users = await Promise.all(Array.from({ length: 200 }, () => logins.login(header, HERE)));
    assert.equal(new Set(users).size, 1);
    assert.equal(logins.counts.accepted, 1);
  });

  it('verify the same credentials at most twice for concurrent requests from many networks', async () => {
    const header = basic('hashed:right');
    const froms = Array.from({ length: 60 }, (_, i) => `10.0.${i}.1`);
    await Promise.all(froms.map((from) => logins.login(header, from)));
    assert.ok(logins.counts.accepted <= 2, `${logins.counts.accepted} checks`);
  });

  it('are rejected as overloaded while 2 are being verified and 64 wait', async () => {
    const asked = Array.from({ length: 70 }, (_, i) => login('hashed', `w${i}`, `10.0.${i}.1`));
    const outcomes = await Promise.allSettled(asked);
    const codes = outcomes.map((one) => (one.status === 'rejected' ? one.reason.code : 'ok'));
    assert.equal(codes.filter((one) => one === 'overloaded').length, 4);
    assert.equal(logins.counts.failed, 66);
  });

  it('of users with a recent login from the same network are verified although strangers fill the queue', async () => {
    const strangers = Array.from({ length: 70 }, (_, i) => login('hashed', `w${i}`, `10.0.${i}.1`));
    const outcomes = Promise.allSettled(strangers);
    assert.equal((await login('known', 'right', HERE)).name, 'known');
    await outcomes;
  });

  it('limit failures of one name from one network to ten, then to one every five seconds', async () => {
    const guess = (i: number) => login('hashed', `wrong ${i}`, `192.0.2.${i % 250}`);
    const codes = await Promise.all(
      Array.from({ length: 40 }, (_, i) => guess(i).catch((error) => error.code)),
    );
    assert.equal(codes.filter((one) => one === 'unauthorized').length, 10);
    await assert.rejects(guess(100), (error) => {
      assert.ok(error instanceof QuaysideError);
      assert.equal(error.code, 'too-many-attempts');
      assert.equal(error.details.retryAfterMs, 5000);
      return true;
    });
    clock.advance(5000);
    await assert.rejects(guess(101), code('unauthorized'));
    await assert.rejects(guess(102), code('too-many-attempts'));
  });

  it('that fail for one name do not lock out other names of the same network', async () => {
    for (let i = 0; i < 40; i++) await login('plain', `wrong ${i}`, HERE).catch(() => {});
    assert.equal((await login('hashed', 'right', HERE)).name, 'hashed');
  });

  it('that fail for a name on other networks do not lock out its user', async () => {
    for (let network = 0; network < 10; network++) {
      for (let i = 0; i < 20; i++)
        await login('hashed', `wrong ${network} ${i}`, `10.1.${network}.1`).catch(() => {});
    }
    assert.equal(logins.counts.failed, 100);
    const right = login('hashed', 'right', HERE);
    await turn();
    clock.advance(1_000);
    assert.equal((await right).name, 'hashed');
  });

  const guesses: [what: string, guess: (i: number) => [name: string, password: string]][] = [
    ['one user', (i) => ['hashed', `guess ${i}`]],
    ['a different user each', (i) => [`name ${i}`, 'guess']],
    ['a user who has logged in from there', (i) => ['known', `guess ${i}`]],
  ];
  for (const [what, guess] of guesses) {
    it(`hash at most 40 of 1,000 guesses within a minute from one network, of ${what}`, async () => {
      const asked: Promise<unknown>[] = [];
      for (let i = 0; i < 1000; i++) {
        clock.advance(60);
        asked.push(login(...guess(i), HERE).catch(() => {}));
        await turn();
      }
      const { failed } = logins.counts;
      assert.ok(failed <= 40, `${failed} were hashed`);
      clock.advance(10_000);
      await Promise.all(asked);
      assert.equal(logins.counts.failed + logins.counts.limited, 1000);
    });
  }

  for (const [what, guess] of guesses) {
    it(`hash at most 40 of 1,000 guesses at once from one network, of ${what}`, async () => {
      const asked = Array.from({ length: 1_000 }, (_, i) => login(...guess(i), HERE).catch(() => {}));
      for (let second = 0; second < 60; second++) {
        await turn();
        clock.advance(1_000);
      }
      await Promise.all(asked);
      assert.ok(logins.counts.failed <= 40, `${logins.counts.failed} were hashed`);
      assert.equal(clock.pending, 0);
    });
  }

  it('that fail for one name from many networks are delayed after a hundred, and rejected if the delay would exceed five seconds', async () => {
    for (let i = 0; i < 100; i++) {
      await assert.rejects(login('nobody', `x${i}`, `10.1.${i}.1`), code('unauthorized'));
    }
    const slow = Array.from({ length: 8 }, (_, i) => login('nobody', `y${i}`, `10.2.${i}.1`));
    const outcomes = Promise.allSettled(slow);
    await turn();
    assert.equal(logins.counts.failed, 100);
    assert.equal(logins.counts.limited, 3);
    for (let second = 1; second <= 5; second++) {
      clock.advance(1_000);
      await turn();
      assert.equal(logins.counts.failed, 100 + second);
    }
    await outcomes;
    assert.equal(clock.pending, 0);
    assert.equal((await login('hashed', 'right', '10.9.9.1')).name, 'hashed');
  });

  it('from a network where the name has logged in before pass limits that strangers have used up', async () => {
    for (let i = 0; i < 40; i++) await login(`name ${i}`, 'x', HERE).catch(() => {});
    await assert.rejects(login('hashed', 'right', HERE), code('too-many-attempts'));
    for (let i = 0; i < 150; i++) {
      void login('known', `x${i}`, `10.3.${i}.1`).catch(() => {});
      await turn();
    }
    assert.equal(logins.counts.failed, 30 + 100);
    assert.equal((await login('known', 'right', HERE)).name, 'known');
    clock.advance(10_000);
    await turn();
  });

  it('with credentials that were accepted before pass every limit for 30 days after their last use', async () => {
    await login('hashed', 'right', HERE);
    clock.advance(29 * DAY_MS);
    for (let i = 0; i < 12; i++) await login('hashed', `wrong ${i}`, HERE).catch(() => {});
    assert.equal((await login('hashed', 'right', HERE)).name, 'hashed');
    assert.equal(logins.counts.accepted, 2, 'hashed again');
    clock.advance(30 * DAY_MS);
    for (let i = 20; i < 32; i++) await login('hashed', `wrong ${i}`, HERE).catch(() => {});
    await assert.rejects(login('hashed', 'right', HERE), code('too-many-attempts'));
  });

  it('from a network that fails again stay limited, however many networks fail in between', async () => {
    const fail = (name: string, from: string) => assert.rejects(login(name, 'x', from), code('unauthorized'));
    for (let i = 0; i < 29; i++) await fail(`name ${i}`, HERE);
    for (let i = 0; i < 1_999; i++) await fail(`other ${i}`, `10.${i >> 8}.${i & 255}.1`);
    await fail('name 29', HERE);
    // One network more than the limit remembers.
    await fail('another', '172.16.0.1');
    await assert.rejects(login('hashed', 'right', HERE), code('too-many-attempts'));
  });

  it('of a program with an outdated password cost one hash, and lock out neither its user nor another', async () => {
    for (let i = 0; i <= 20 * 60; i++) {
      clock.advance(50);
      await assert.rejects(login('hashed', 'stale', HERE), code('unauthorized'));
    }
    assert.equal(logged.length, 2, 'once, and once more after a minute');
    assert.deepEqual(logged[1], { event: 'login-failed', user: 'hashed', address: HERE, repeats: 1200 });
    assert.deepEqual(logins.counts, { accepted: 0, failed: 1201, limited: 0 });
    assert.equal((await login('hashed', 'right', HERE)).name, 'hashed');
    assert.equal((await login('plain', 'right', HERE)).name, 'plain');
  });

  it('with a rejected password are verified again after the users were replaced', async () => {
    await assert.rejects(login('plain', 'new', HERE), code('unauthorized'));
    logins.replaceAccounts(readAccounts([{ ...plain, password: 'new' }], []));
    assert.equal((await login('plain', 'new', HERE)).name, 'plain');
  });

  it('that are remembered still work while their name is limited', async () => {
    const header = basic('hashed:right');
    const user = await logins.login(header, HERE);
    for (let i = 0; i < 12; i++) await login('hashed', `w${i}`, HERE).catch(() => {});
    assert.equal(logins.recall(header), user);
  });

  it('do not count towards the limits if they succeed', async () => {
    for (let i = 0; i < 30; i++) {
      await login('plain', 'right', HERE);
      clock.advance(5 * 60_000);
    }
    assert.equal(logins.counts.accepted, 30);
    await login('hashed', 'right', HERE);
    for (let i = 0; i < 10; i++) await assert.rejects(login('hashed', `w${i}`, HERE), code('unauthorized'));
    for (let i = 0; i < 10; i++) await assert.rejects(login('plain', `w${i}`, HERE), code('unauthorized'));
  });

  it('are remembered once per name and password, however the scheme of the header is written', async () => {
    const header = basic('plain:right');
    const user = await logins.login(header, HERE);
    for (const spelt of [header.replace('Basic ', 'basic   '), header.replace('Basic', 'BASIC')]) {
      assert.equal(logins.recall(spelt), user);
      assert.equal(await logins.login(spelt, HERE), user);
    }
    assert.equal(logins.counts.accepted, 1);
  });

  it('remember the credentials of each user, however many there are', async () => {
    const users = Array.from({ length: 10_001 }, (_, i) => ({ ...plain, name: `u${i}` }));
    const many = new PasswordAuthenticator({
      accounts: readAccounts(users, []),
      clock,
      log: { debug: () => {}, warn: () => {} },
      verify: async () => true,
    });
    for (const [i, { name }] of users.entries())
      await many.login(basic(`${name}:right`), `10.${i >> 8}.${i & 255}.1`);
    for (const { name } of users) assert.equal(many.recall(basic(`${name}:right`))?.name, name);
  });

  it('log failures with the address, with the name only of existing users, and never with a password', async () => {
    await login('hashed', 'CANARY1', HERE).catch(() => {});
    await login('CANARY2', 'x', HERE).catch(() => {});
    assert.deepEqual(logged, [
      { event: 'login-failed', user: 'hashed', address: HERE },
      { event: 'login-failed', user: null, address: HERE },
    ]);
  });
});

/** Returns the same as `passwordMatches` without the cost of a hash. */
const verify: typeof passwordMatches = async (candidate, stored) => {
  if (stored?.kind === 'plain') return hash('sha256', candidate, 'buffer').equals(stored.digest);
  return stored !== null && candidate.toString() === 'right';
};

/** Lets everything run that needs no timer. */
function turn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

function code(expected: string): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof QuaysideError, String(error));
    assert.equal(error.code, expected);
    return true;
  };
}

function basic(credentials: string): string {
  return `Basic ${Buffer.from(credentials).toString('base64')}`;
}
