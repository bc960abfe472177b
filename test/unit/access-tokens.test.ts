import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { ApiTokens } from '../../src/access/api-tokens.ts';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import type { User } from '../../src/access/user.ts';
import type { Definitions, JsonValue } from '../../src/engine/definitions.ts';
import type { Engine } from '../../src/engine/engine.ts';
import { openMemory } from '../engines/sqlite.ts';
import { plain, SILENT_LOG } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { engineWithoutNotifications } from '../support/engine-with.ts';
import { until } from '../support/until.ts';

const yes = (): boolean => true;
const OWNER = { name: 'ann', isAdministrator: true, may: yes, maySee: yes, maySeeBodies: yes };

describe('API tokens', () => {
  let engine: Engine;
  let clock: FakeClock;
  let tokens: ApiTokens;
  /** Null: a reload has removed the user. */
  let owner: typeof OWNER | null;

  beforeEach(async () => {
    owner = OWNER;
    clock = new FakeClock();
    engine = await openMemory({ namespaces: [plain('N')] }, clock);
    tokens = makeTokens();
    await tokens.start();
  });
  afterEach(async () => {
    await tokens.stop();
    await engine.stop();
  });

  function makeTokens(definitions: Definitions = engine.definitions): ApiTokens {
    return new ApiTokens({
      namespaces: [{ name: 'N', definitions, currentDefinitions: definitions }],
      ownerNamed: () => owner,
      clock,
      random: () => 0.5,
      log: SILENT_LOG,
    });
  }

  it('that another node revoked become invalid even if the signal is lost', async () => {
    const other = makeTokens(engineWithoutNotifications(engine).definitions);
    const { record, secret } = await tokens.create(OWNER, { name: 'x', rights: null, expiresAt: null });
    await other.start();
    assert.notEqual(other.login(secret, null), null);
    await tokens.revoke(record.id, OWNER);
    await until(() => {
      clock.advance(1000);
      return other.login(secret, null) === null;
    });
    await other.stop();
  });

  it('that are created during a migration of their namespace are valid after it', async () => {
    const { definitions } = engine;
    const next = await openMemory({ namespaces: [plain('N')] }, clock);
    const newTokens = (stored: Definitions): ApiTokens =>
      new ApiTokens({
        namespaces: [
          { name: 'N', definitions: stored, currentDefinitions: next.definitions },
          { name: 'other', definitions: next.definitions, currentDefinitions: next.definitions },
        ],
        ownerNamed: () => owner,
        clock,
        random: () => 0.5,
        log: SILENT_LOG,
      });
    const during = newTokens(definitions);
    await during.start();
    const { secret } = await during.create(OWNER, { name: 'x', rights: null, expiresAt: null });
    assert.notEqual(during.login(secret, null), null);
    await during.stop();
    const after = newTokens(next.definitions);
    await after.start();
    assert.notEqual(after.login(secret, null), null);
    await after.stop();
    await next.stop();
  });

  /** Creates a token that expires in `ms`, and logs in with it. */
  const loginWithTokenExpiringIn = async (ms: number): Promise<User | null> => {
    const token = { name: 'x', rights: null, expiresAt: clock.now() + ms };
    const { secret } = await tokens.create(OWNER, token);
    return tokens.login(secret, null);
  };

  it('that expire are each reported, even if the timer is late while another token is created', async () => {
    let reports = 0;
    tokens.onEnded((users) => {
      reports += users.size;
    });
    await loginWithTokenExpiringIn(1000);
    // The first one has expired, and its timer has not fired yet.
    clock.setWallTime(clock.now() + 1000);
    await loginWithTokenExpiringIn(5000);
    clock.advance(1000);
    assert.equal(reports, 1);
    await loginWithTokenExpiringIn(2000);
    clock.advance(2000);
    assert.equal(reports, 2);
    clock.advance(2000);
    assert.equal(reports, 3);
  });

  it('that expire because the clock is set forward are reported within a minute, and none is reported early', async () => {
    let reports = 0;
    tokens.onEnded(() => {
      reports += 1;
    });
    await loginWithTokenExpiringIn(86_400_000);
    clock.advance(3_600_000);
    assert.equal(reports, 0);
    clock.setWallTime(clock.now() + 86_400_000);
    clock.advance(60_000);
    assert.equal(reports, 1);
    clock.advance(3_600_000);
    assert.equal(reports, 1);
  });

  it('that expire while the end of another one is being reported are reported, too', async () => {
    let reports = 0;
    tokens.onEnded(() => {
      reports += 1;
      clock.setWallTime(clock.now() + 1);
    });
    await loginWithTokenExpiringIn(1000);
    await loginWithTokenExpiringIn(1001);
    clock.advance(1000);
    assert.equal(reports, 1);
    clock.advance(1);
    assert.equal(reports, 2);
  });

  it('are limited to a hundred per user, even if many are created concurrently', async () => {
    const created = await Promise.allSettled(
      Array.from({ length: 101 }, () => loginWithTokenExpiringIn(1000)),
    );
    const rejected = created.flatMap((one) => (one.status === 'rejected' ? [one.reason.code] : []));
    assert.deepEqual(rejected, ['too-many-tokens']);
    assert.equal(tokens.list(OWNER).length, 100);
  });

  it('that have expired do not count towards the limit', async () => {
    await Promise.all(Array.from({ length: 100 }, (_, i) => loginWithTokenExpiringIn(i === 7 ? 1000 : 5000)));
    await assert.rejects(loginWithTokenExpiringIn(1000), { code: 'too-many-tokens' });
    clock.advance(1000);
    await loginWithTokenExpiringIn(5000);
    assert.equal(tokens.list(OWNER).filter(({ expiresAt }) => (expiresAt ?? 0) > clock.now()).length, 100);
    await assert.rejects(loginWithTokenExpiringIn(1000), { code: 'too-many-tokens' });
  });

  it('of a removed user are reported together, once none of them is valid', async () => {
    await Promise.all(Array.from({ length: 100 }, () => loginWithTokenExpiringIn(1000)));
    const left: number[] = [];
    tokens.onEnded(() => left.push(tokens.list(OWNER).length));
    await tokens.revokeOf([OWNER.name]);
    await turn();
    assert.equal(left.at(-1), 0);
    assert.ok(left.length < 10, `${left.length} reports`);
  });

  it('are reported with their users when they end, but only if they were used to log in', async () => {
    const reported: User[] = [];
    tokens.onEnded((users) => reported.push(...users));
    const unused = { name: 'x', rights: null, expiresAt: null };
    const revoked = await tokens.create(OWNER, unused);
    await tokens.create(OWNER, { ...unused, expiresAt: clock.now() + 1000 });
    const [lasting, expired] = [await loginWithTokenExpiringIn(5000), await loginWithTokenExpiringIn(1000)];
    await tokens.revoke(revoked.record.id, OWNER);
    await turn();
    assert.equal(reported.length, 0);
    clock.advance(1000);
    assert.deepEqual(reported, [expired]);
    await tokens.revokeOf([OWNER.name]);
    await turn();
    assert.ok(lasting !== null && reported.includes(lasting));
  });

  it('of a removed user are revoked at most 32 at a time, so that other calls of the engine are not held up', async () => {
    const { definitions } = engine;
    let running = 0;
    let most = 0;
    const countingTokens = makeTokens({
      get: (kind, key) => definitions.get(kind, key),
      list: (kind) => definitions.list(kind),
      put: (kind, key, value, expected) => definitions.put(kind, key, value, expected),
      delete: async (kind, key, expected) => {
        running += 1;
        most = Math.max(most, running);
        const isDeleted = await definitions.delete(kind, key, expected);
        running -= 1;
        return isDeleted;
      },
      watch: (listener) => definitions.watch(listener),
    });
    await Promise.all(Array.from({ length: 100 }, () => loginWithTokenExpiringIn(1000)));
    await countingTokens.start();
    owner = null;
    await countingTokens.revokeOf([OWNER.name]);
    assert.deepEqual(await definitions.list('token'), []);
    assert.ok(most > 1 && most <= 32, `${most} at once`);
    await countingTokens.stop();
  });

  describe('created by another node whose signal has not arrived', () => {
    let reads: number;
    let otherNode: ApiTokens;

    beforeEach(async () => {
      reads = 0;
      const { definitions } = engine;
      otherNode = makeTokens({
        get: (kind, key) => definitions.get(kind, key),
        list: (kind) => {
          reads += 1;
          return definitions.list(kind);
        },
        put: (kind, key, value, expected) => definitions.put(kind, key, value, expected),
        delete: (kind, key, expected) => definitions.delete(kind, key, expected),
        watch: () => () => {},
      });
      await otherNode.start();
      reads = 0;
    });
    afterEach(() => otherNode.stop());

    function loginsOf(tokens: ApiTokens): PasswordAuthenticator {
      return new PasswordAuthenticator({
        accounts: new Map(),
        clock,
        log: SILENT_LOG,
        tokens,
        verify: async () => false,
      });
    }

    it('are accepted and do not count as failures', async () => {
      const logins = loginsOf(otherNode);
      for (let i = 0; i < 20; i += 1) {
        const { secret } = await tokens.create(OWNER, { name: 'x', rights: null, expiresAt: null });
        assert.equal((await logins.login(`Bearer ${secret}`, '192.0.2.1')).name, 'ann');
        assert.equal((await logins.login(`Bearer ${secret}`, '192.0.2.1')).name, 'ann');
      }
      assert.equal(logins.counts.failed, 0);
      assert.equal(reads, 20);
    });

    it('are read once for many concurrent logins, and for wrong tokens only as often as the login limits allow', async () => {
      const logins = loginsOf(otherNode);
      const { secret } = await tokens.create(OWNER, { name: 'x', rights: null, expiresAt: null });
      const { length } = await Promise.all(
        Array.from({ length: 20 }, (_, i) => logins.login(`Bearer ${secret}`, `192.0.${i}.1`)),
      );
      assert.equal(length, 20);
      assert.ok(reads <= 2, `${reads} reads`);
      reads = 0;
      for (let i = 0; i < 50; i += 1) {
        const wrong = `qs_${String(i).padStart(43, 'x')}`;
        await assert.rejects(logins.login(`Bearer ${wrong}`, '192.0.2.1'));
      }
      assert.equal(reads, 10);
      await assert.rejects(logins.login('Bearer qs_short', '198.51.100.1'), { code: 'unauthorized' });
      assert.equal(reads, 10);
    });

    it('can be revoked', async () => {
      const { record, secret } = await tokens.create(OWNER, { name: 'x', rights: null, expiresAt: null });
      await otherNode.revoke(record.id, OWNER);
      await assert.rejects(otherNode.revoke(record.id, OWNER), { code: 'token-not-found' });
      await assert.rejects(loginsOf(otherNode).login(`Bearer ${secret}`, '192.0.2.1'), {
        code: 'unauthorized',
      });
    });
  });

  it('that this version cannot read are skipped and do not prevent the start', async () => {
    await loginWithTokenExpiringIn(1000);
    const whole = { name: 'x', owner: 'ann', rights: null, createdAt: 0, expiresAt: null, digest: 'd' };
    const others = [null, 'text', { ...whole, rights: undefined }, { ...whole, rights: { N: 'read' } }];
    for (const [i, value] of [...others, { ...whole, createdAt: undefined }].entries()) {
      const stored = JSON.parse(JSON.stringify(value)) as JsonValue;
      await engine.definitions.put('token', `other-${i}`, stored, null);
    }
    await tokens.stop();
    tokens = makeTokens();
    await tokens.start();
    assert.deepEqual(
      tokens.list(OWNER).map(({ name, expiresAt }) => [name, expiresAt]),
      [['x', clock.now() + 1000]],
    );
  });

  it('are not created for a user who is removed while the token is stored, even if the name is added again', async () => {
    const created = loginWithTokenExpiringIn(1000);
    owner = null;
    await tokens.revokeOf([OWNER.name]);
    await assert.rejects(created, { code: 'unauthorized' });
    owner = OWNER;
    assert.deepEqual(tokens.list(OWNER), []);
    assert.deepEqual(await engine.definitions.list('token'), []);
  });
});
