import assert from 'node:assert/strict';
import { beforeEach, describe, it } from 'node:test';
import { readAccounts, type UserDefinition } from '../../src/access/account.ts';
import { hashPassword } from '../../src/access/password.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { FakeClock } from '../support/clock.ts';

const HERE = '192.0.2.1';

const hashed: UserDefinition = { name: 'hashed', password: await hashPassword('right'), rights: null };
const plain: UserDefinition = { name: 'plain', password: 'right', rights: null };

describe('Logins', () => {
  let clock: FakeClock;
  let logged: object[];
  let logins: PasswordAuthenticator;

  beforeEach(() => {
    clock = new FakeClock();
    logged = [];
    logins = new PasswordAuthenticator({
      accounts: readAccounts([hashed, plain], []),
      clock,
      log: { warn: (fields) => logged.push(fields) },
    });
  });

  it('accept the right password, hashed or plain', async () => {
    assert.equal((await logins.login('hashed', 'right', HERE)).name, 'hashed');
    assert.equal((await logins.login('plain', 'right', HERE)).name, 'plain');
    assert.deepEqual(logins.counts, { accepted: 2, failed: 0, limited: 0 });
  });

  it('refuse a wrong password, an unknown user and an oversized password alike', async () => {
    for (const [name, password] of [
      ['hashed', 'wrong'],
      ['plain', 'wrong'],
      ['nobody', 'right'],
      ['hashed', 'x'.repeat(257)],
    ] as const) {
      await assert.rejects(logins.login(name, password, HERE), code('unauthorized'));
    }
  });

  it('remember a header that was accepted for five minutes after its last use', async () => {
    const header = basic('hashed:right');
    assert.equal(logins.recall(header), null);
    const user = await logins.loginBasic(header, HERE);
    clock.advance(299_000);
    assert.equal(logins.recall(header), user);
    clock.advance(299_000);
    assert.equal(logins.recall(header), user);
    clock.advance(300_000);
    assert.equal(logins.recall(header), null);
  });

  it('remember no header that was refused, and none that is malformed or too long', async () => {
    for (const header of [basic('hashed:wrong'), 'Basic x', basic(`u:${'p'.repeat(2000)}`)]) {
      await assert.rejects(logins.loginBasic(header, HERE), code('unauthorized'));
      assert.equal(logins.recall(header), null);
    }
  });

  it('remember a header when the users are replaced, with the rights of the new ones', async () => {
    const header = basic('plain:right');
    assert.equal((await logins.loginBasic(header, HERE)).may('read', 'N'), true);
    clock.advance(200_000);
    for (let i = 0; i < 20; i++) await logins.login('plain', 'wrong', HERE).catch(() => {});
    logins.replaceAccounts(readAccounts([{ ...plain, rights: { N: ['write'] } }], ['N']));
    await assert.rejects(logins.loginBasic(header, HERE), code('too-many-attempts'));
    const remembered = logins.recall(header);
    assert.equal(remembered?.name, 'plain');
    assert.deepEqual([remembered?.may('read', 'N'), remembered?.may('write', 'N')], [false, true]);
    clock.advance(300_000);
    assert.equal(logins.recall(header), null);
  });

  it('forget who is gone or has another password when the users are replaced', async () => {
    const header = basic('hashed:right');
    await logins.loginBasic(header, HERE);
    logins.replaceAccounts(readAccounts([plain], []));
    assert.equal(logins.recall(header), null);
    await assert.rejects(logins.loginBasic(header, HERE), code('unauthorized'));

    const running = logins.loginBasic(basic('plain:right'), HERE);
    logins.replaceAccounts(readAccounts([{ ...plain, password: 'other' }], []));
    await assert.rejects(running, code('unauthorized'));
    assert.equal(logins.recall(basic('plain:right')), null);
  });

  it('know who somebody is after the users were replaced, while the password is the same', async () => {
    const user = await logins.loginBasic(basic('plain:right'), HERE);
    assert.equal(logins.renew(user), user);
    logins.replaceAccounts(readAccounts([{ ...plain, rights: {} }], []));
    const renewed = logins.renew(user);
    assert.deepEqual([renewed?.name, renewed?.may('read', 'N')], ['plain', false]);
    logins.replaceAccounts(readAccounts([{ ...plain, password: 'other' }], []));
    assert.equal(logins.renew(user), null);
    logins.replaceAccounts(readAccounts([], []));
    assert.equal(logins.renew(user), null);
  });

  it('check the same credentials once however many ask at the same time', async () => {
    const header = basic('hashed:right');
    const users = await Promise.all(Array.from({ length: 200 }, () => logins.loginBasic(header, HERE)));
    assert.equal(new Set(users).size, 1);
    assert.equal(logins.counts.accepted, 1);
  });

  it('check them once also when they come from many places', async () => {
    const header = basic('hashed:right');
    const froms = Array.from({ length: 60 }, (_, i) => `10.0.${i}.1`);
    await Promise.all(froms.map((from) => logins.loginBasic(header, from)));
    assert.ok(logins.counts.accepted <= 2, `${logins.counts.accepted} checks`);
  });

  it('refuse further ones as overloaded while 2 run and 64 wait', async () => {
    const asked = Array.from({ length: 70 }, (_, i) => logins.login('hashed', `w${i}`, `10.0.${i}.1`));
    const outcomes = await Promise.allSettled(asked);
    const codes = outcomes.map((one) => (one.status === 'rejected' ? one.reason.code : 'ok'));
    assert.equal(codes.filter((one) => one === 'overloaded').length, 4);
    assert.equal(logins.counts.failed, 20, 'the 20 failures that one name may have');
    assert.equal(codes.filter((one) => one === 'too-many-attempts').length, 46);
  });

  it('limit failures from one block of addresses to ten, then one each five seconds', async () => {
    const guess = (i: number) => logins.login(`name${i}`, 'wrong', `192.0.2.${i % 250}`);
    const codes = await Promise.all(
      Array.from({ length: 40 }, (_, i) => guess(i).catch((error) => error.code)),
    );
    assert.equal(codes.filter((one) => one === 'unauthorized').length, 10);
    await assert.rejects(guess(1), (error) => {
      assert.ok(error instanceof QuaysideError);
      assert.equal(error.code, 'too-many-attempts');
      assert.equal(error.details.retryAfterMs, 5000);
      return true;
    });
    clock.advance(5000);
    await assert.rejects(guess(2), code('unauthorized'));
    await assert.rejects(guess(3), code('too-many-attempts'));
  });

  it('hash at most 40 of 1,000 guesses within a minute', async () => {
    for (let i = 0; i < 1000; i++) {
      clock.advance(60);
      await logins.login('hashed', `guess${i}`, HERE).catch(() => {});
    }
    assert.ok(logins.counts.failed <= 40, `${logins.counts.failed} were hashed`);
    assert.equal(logins.counts.failed + logins.counts.limited, 1000);
  });

  it('limit failures for one name to twenty, wherever they come from', async () => {
    for (let i = 0; i < 20; i++) {
      await assert.rejects(logins.login('nobody', 'x', `10.1.${i}.1`), code('unauthorized'));
    }
    await assert.rejects(logins.login('nobody', 'x', '10.9.9.1'), code('too-many-attempts'));
    assert.equal((await logins.login('hashed', 'right', '10.9.9.1')).name, 'hashed');
  });

  it('do not touch users that are remembered while their address or name is limited', async () => {
    const header = basic('hashed:right');
    const user = await logins.loginBasic(header, HERE);
    for (let i = 0; i < 12; i++) await logins.login('hashed', `w${i}`, HERE).catch(() => {});
    assert.equal(logins.recall(header), user);
    await assert.rejects(logins.loginBasic(basic('plain:right'), HERE), code('too-many-attempts'));
  });

  it('take nothing from the limits when they succeed', async () => {
    for (let i = 0; i < 30; i++) await logins.login('plain', 'right', HERE);
    assert.equal(logins.counts.accepted, 30);
  });

  it('log failures with the address, the name only of users that exist, and never a password', async () => {
    await logins.login('hashed', 'CANARY1', HERE).catch(() => {});
    await logins.login('CANARY2', 'x', HERE).catch(() => {});
    assert.deepEqual(logged, [
      { event: 'login-failed', user: 'hashed', address: HERE },
      { event: 'login-failed', user: null, address: HERE },
    ]);
  });
});

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
