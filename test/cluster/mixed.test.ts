import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { type RedisServer, startRedis } from '../support/redis-servers.ts';
import { ServerProcess } from '../support/server-process.ts';
import { eventually } from './nodes.ts';

describe('Two nodes with elements in PostgreSQL, signals and statistics in Redis', () => {
  let database: PostgresServer;
  let redis: RedisServer;
  const servers: ServerProcess[] = [];
  const clients: QueueClient[] = [];

  before(async () => {
    [database, redis] = await Promise.all([
      PostgresServer.start({ settings: { fsync: 'off' } }),
      startRedis(),
    ]);
    const config = {
      http: { users: { test1: 'test1' } },
      namespaces: {
        N: {
          url: database.url(),
          signaller: { url: redis.url, channel: 'hints' },
          stats: { url: redis.url, coll: 'counts' },
        },
      },
    };
    for (let node = 0; node < 2; node++) {
      const server = await ServerProcess.start({ config });
      servers.push(server);
      clients.push(new QueueClient({ url: () => server.url }));
    }
  });
  after(async () => {
    for (const client of clients) client.close();
    await Promise.all(servers.map((server) => server.dispose()));
    await Promise.all([database.stop('fast'), redis.stop()]);
  });

  const [here, there] = [(): QueueClient => clientAt(0), (): QueueClient => clientAt(1)];
  const clientAt = (at: number): QueueClient => clients[at] ?? assert.fail();

  it('show the parts in the record of a queue', async () => {
    const { type, factory } = jsonOf<{ type: string; factory: Record<string, Part> }>(
      await here().status('N', 'shown'),
    );
    assert.equal(type, 'postgres:simple');
    assert.deepEqual([factory.signaller?.type, factory.signaller?.opts.channel], ['redis', 'hints']);
    assert.deepEqual([factory.stats?.type, factory.stats?.opts.coll], ['redis', 'counts']);
  });

  it('wake each other', async () => {
    const got = there().get('N', 'woken', { to: 10_000, tid: 'sleeper' });
    await eventually('the get waits', async () =>
      jsonOf<{ tid: string }[]>(await here().consumers('N', 'woken')).some(({ tid }) => tid === 'sleeper'),
    );
    await here().insert('N', 'woken', 'good morning');
    assert.equal((await got).body.toString(), 'good morning');
  });

  it('count together', async () => {
    for (const client of [here(), there()]) await client.insert('N', 'counted', 'x');
    for (const client of [here(), there()]) {
      await eventually('both inserts are counted', async () => {
        const { stats } = jsonOf<{ stats: { put: number } }>(await client.status('N', 'counted'));
        return stats.put === 2;
      });
    }
  });
});

interface Part {
  readonly type: string;
  readonly opts: Record<string, unknown>;
}
