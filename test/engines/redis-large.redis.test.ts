import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { type RedisServer, startRedis } from '../support/redis-servers.ts';
import { until } from '../support/until.ts';
import { freshPrefix, redisEngine } from './redis.ts';

const QUEUE = { ns: 'N', name: 'large' };
const COUNT = 8;
const BODY = Buffer.alloc(9_000_000, 'x');

describe('Large elements in Redis', () => {
  let server: RedisServer;
  let engine: Engine;

  before(async () => {
    server = await startRedis();
    engine = redisEngine({
      namespaces: [plain('N')],
      clock: null,
      prefix: freshPrefix(),
      url: server.url,
    });
    await engine.start();
    for (let i = 0; i < COUNT; i += 1) await engine.storage.insert(QUEUE, [newElement({ body: BODY })]);
  });
  after(async () => {
    await engine.stop();
    await server.stop();
  });

  /** How many elements Redis reads while it executes a call. */
  async function readBy(call: () => Promise<unknown>): Promise<number> {
    const monitor = connect(server.port, '127.0.0.1');
    let text = '';
    monitor.setEncoding('latin1').on('data', (chunk: string) => {
      text += chunk;
    });
    monitor.write('MONITOR\r\n');
    await until(() => text.startsWith('+OK'));
    await call();
    monitor.write('PING\r\n');
    await until(() => text.includes('+PONG') || text.includes('"PING"'));
    monitor.destroy();
    await once(monitor, 'close');
    // The field of an element: `e` and its number, six bytes.
    return text.match(/ "e\\x00/g)?.length ?? 0;
  }

  it('are read as many as a page of a scan returns: Lua takes 4 ms for a megabyte', async () => {
    const options = { group: '', states: ['ready'], after: null, limit: COUNT, bodies: true } as const;
    const read = await readBy(async () => {
      const { deliveries } = await engine.storage.scan(QUEUE, options);
      assert.equal(deliveries.length, 1);
    });
    assert.equal(read, 1);
  });

  it('are read as many as a take returns', async () => {
    const read = await readBy(async () => {
      const take = { group: '', count: COUNT, leaseMs: 60_000 };
      assert.equal((await engine.storage.take(QUEUE, take)).deliveries.length, 2);
    });
    assert.equal(read, 2);
  });
});
