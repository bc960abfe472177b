import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { QueueKey } from '../../src/model/names.ts';
import { systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { type RedisServer, redisCli, startRedis } from '../support/redis-servers.ts';
import { redisEngine, sharedCluster } from './redis.ts';

const NAMESPACES = [plain('plain')];
const QUEUE: QueueKey = { ns: 'plain', name: 'q' };
const POP = { group: '', count: 10, leaseMs: null };

describe('A database of Redis that cannot be selected', () => {
  let server: RedisServer;
  const cli = (...command: string[]): string => redisCli(server.port, ...command).trim();

  before(async () => {
    server = await startRedis();
    cli('ACL', 'SETUSER', 'worker', 'on', '>pw', '~*', '&*', '+@all', '-select');
  });

  after(() => server.stop());

  it('fails the start if its number is out of range, and database 0 is not changed', async () => {
    const engine = redisEngine({ url: `${server.url}/99`, namespaces: NAMESPACES, clock: null });
    await assert.rejects(
      engine.start(),
      /\/99: database 99 cannot be selected \(.*out of range\); choose one/,
    );
    assert.equal(cli('DBSIZE'), '0');
  });

  it('fails the start with an error about the right if the user may not run SELECT', async () => {
    const url = `redis://worker:pw@127.0.0.1:${server.port}`;
    const engine = redisEngine({ url: `${url}/1`, namespaces: NAMESPACES, clock: null });
    await assert.rejects(
      engine.start(),
      /database 1 cannot be selected \(NOPERM .*permit the user to run SELECT$/,
    );
    assert.equal(cli('DBSIZE'), '0');
    const withoutOne = redisEngine({ url, namespaces: NAMESPACES, clock: null });
    await withoutOne.start();
    await withoutOne.stop();
  });

  it('any more, since the right was revoked, is not used by new connections until it is granted again', async () => {
    cli('ACL', 'SETUSER', 'other', 'on', '>pw', '~*', '&*', '+@all');
    const url = `redis://other:pw@127.0.0.1:${server.port}/1`;
    const downs: object[] = [];
    const { promise: down, resolve: isDown } = Promise.withResolvers<void>();
    const { promise: up, resolve: isUp } = Promise.withResolvers<void>();
    const log = {
      info: (_: object, text: string) => {
        if (/can be reached again/.test(text)) isUp();
      },
      warn: (fields: object) => {
        downs.push(fields);
        if (JSON.stringify(downs).includes('cannot be selected')) isDown();
      },
    };
    const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock: systemClock, log });
    await engine.start();
    cli('ACL', 'SETUSER', 'other', '-select');
    cli('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
    cli('CLIENT', 'KILL', 'TYPE', 'pubsub');
    await down;
    await assert.rejects(engine.storage.insert(QUEUE, newElements('lost')), { code: 'storage-unavailable' });
    assert.equal(cli('DBSIZE'), '0');
    cli('ACL', 'SETUSER', 'other', '+select');
    await up;
    await engine.storage.insert(QUEUE, newElements('kept'));
    assert.deepEqual(bodyTexts((await engine.storage.take(QUEUE, POP)).deliveries), ['kept']);
    assert.equal(cli('DBSIZE'), '0');
    await engine.stop();
  });

  it('is any but 0 on a cluster, even if the URL does not say that it is one', async () => {
    const url = await sharedCluster();
    const engine = redisEngine({
      url: url.includes('?') ? url.replace('?', '/3?') : `${url}/3`,
      namespaces: NAMESPACES,
      clock: null,
    });
    await assert.rejects(engine.start(), /database 3.*cluster/);
  });
});
