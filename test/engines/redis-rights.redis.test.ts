import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { EngineLog } from '../../src/engine/engine.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { redisEngine } from './redis.ts';

const QUEUE: QueueKey = { ns: 'plain', name: 'q' };

describe('A user of Redis that may not run a command that the functions use', () => {
  let server: RedisServer;
  const cli = (...command: string[]): string => redisCli(server.port, ...command).trim();

  const engineFor = (user: string, log?: EngineLog) =>
    redisEngine({
      url: `redis://${user}:pw@127.0.0.1:${server.port}`,
      namespaces: [plain('plain')],
      clock: null,
      ownClock: systemClock,
      ...(log !== undefined && { log }),
    });

  before(async () => {
    server = await startRedis();
  });
  after(() => server.stop());

  it('fails the start and the doctor with an error that names the commands, and nothing is stored', async () => {
    cli('ACL', 'SETUSER', 'some', 'on', '>pw', '~*', '&*', '+@all', '-zadd', '-hset');
    const engine = engineFor('some');
    const missing = /the user may not run HSET, ZADD, which .*; give the user the rights that the page/;
    await assert.rejects(engine.start(), missing);
    assert.equal(cli('DBSIZE'), '0');
    await assert.rejects(engineFor('some').examine?.() ?? Promise.resolve(), missing);
  });

  it('any more, since the right was revoked, is not used until it is granted again', async () => {
    cli('ACL', 'SETUSER', 'other', 'on', '>pw', '~*', '&*', '+@all');
    const downs: object[] = [];
    const { promise: down, resolve: isDown } = Promise.withResolvers<void>();
    const { promise: up, resolve: isUp } = Promise.withResolvers<void>();
    const engine = engineFor('other', {
      info: (_, text) => {
        if (/can be reached again/.test(text)) isUp();
      },
      warn: (fields) => {
        downs.push(fields);
        if (JSON.stringify(downs).includes('may not run ZADD')) isDown();
      },
    });
    await engine.start();
    cli('ACL', 'SETUSER', 'other', '-zadd');
    await down;
    await assert.rejects(engine.storage.insert(QUEUE, newElements('lost')), { code: 'storage-unavailable' });
    assert.equal(cli('DBSIZE'), '0');
    cli('ACL', 'SETUSER', 'other', '+zadd');
    await up;
    await engine.storage.insert(QUEUE, newElements('kept'));
    const { deliveries } = await engine.storage.take(QUEUE, { group: '', count: 10, leaseMs: null });
    assert.deepEqual(bodyTexts(deliveries), ['kept']);
    await engine.stop();
  });
});
