import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { eventually } from '../cluster/nodes.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { startRedis } from '../support/redis-servers.ts';
import { ServerProcess } from '../support/server-process.ts';

/** A server that an engine uses, and how it becomes unavailable and recovers. */
interface Away {
  readonly url: string;
  readonly states: Readonly<Record<string, { begin(): Promise<void> | void; end(): Promise<void> | void }>>;
  stop(): Promise<void>;
}

const ENGINES: Readonly<Record<string, () => Promise<Away>>> = {
  Redis: async () => {
    const redis = await startRedis('--appendfsync', 'always');
    return {
      url: redis.url,
      states: {
        killed: { begin: () => redis.kill(), end: () => redis.restart() },
        frozen: { begin: () => redis.freeze(), end: () => redis.thaw() },
      },
      stop: () => redis.stop(),
    };
  },
  PostgreSQL: async () => {
    const database = await PostgresServer.start({ settings: { fsync: 'off' } });
    return {
      url: database.url(),
      states: {
        killed: { begin: () => database.stop('immediate'), end: () => database.start() },
        frozen: { begin: () => database.signalAll('SIGSTOP'), end: () => database.signalAll('SIGCONT') },
      },
      stop: () => database.stop('fast'),
    };
  },
};

for (const [name, start] of Object.entries(ENGINES)) {
  describe(`A server with one namespace on ${name} and another one on SQLite`, () => {
    let away: Away;
    let server: ServerProcess;
    let client: QueueClient;

    before(async () => {
      away = await start();
      server = await ServerProcess.start({
        config: {
          http: { users: { test1: 'test1' } },
          namespaces: { N: { url: away.url }, other: { url: 'sqlite:other.db' } },
        },
      });
      client = new QueueClient({ url: () => server.url });
    });
    after(async () => {
      client.close();
      await server.dispose();
      await away.stop();
    });

    for (const state of ['killed', 'frozen']) {
      it(`rejects calls while ${name} is ${state}, keeps blocked gets waiting, and recovers by itself`, async () => {
        const { begin, end } = away.states[state] ?? assert.fail();
        const waiting = client.get('N', `${state}, waited for`);
        await eventually('the get waits', async () => (await consumers(`${state}, waited for`)).length === 1);
        // This get waits behind the first one: once it is answered, no call to the engine is pending for either.
        assert.equal((await client.get('N', `${state}, waited for`, { to: 0 })).status, 504);
        await begin();
        await eventually('the insert is rejected with a known outcome', async () => {
          const refused = await client.insert('N', state, 'too early');
          assert.equal(refused.status, 503, refused.body.toString());
          const isCertain = jsonOf<{ code: string }>(refused).code === 'storage-unavailable';
          // A client that obeys the header would insert twice.
          assert.equal(refused.headers['retry-after'], isCertain ? '1' : undefined);
          return isCertain;
        });
        await serveOthers(state);
        await listOthers();
        const ready = await client.request('GET', '/readyz?verbose');
        assert.equal(ready.status, 200);
        assert.notDeepEqual(
          Object.values(jsonOf<{ checks: object }>(ready).checks).filter((check) => check !== 'ok'),
          [],
        );

        await end();
        await eventually(
          'inserts succeed again',
          async () => (await client.insert('N', state, 'back')).status === 200,
        );
        await client.insert('N', `${state}, waited for`, 'after');
        assert.equal((await waiting).body.toString(), 'after');
      });
    }

    async function serveOthers(queue: string): Promise<void> {
      assert.equal((await client.insert('other', queue, 'elsewhere')).status, 200);
      const held = await client.reserve('other', queue, { to: 0 });
      assert.equal(held.body.toString(), 'elsewhere');
      const id = held.headers['x-ks-id'];
      assert.equal((await client.commit('other', queue, String(id))).status, 200);
      assert.equal((await client.status('other', queue)).status, 200);
    }

    async function listOthers(): Promise<void> {
      const array = await client.request('GET', '/q?array=1');
      assert.equal(array.status, 200);
      const { data, unavailable } = jsonOf<{ data: { ns: string }[]; unavailable: string[] }>(array);
      assert.deepEqual(unavailable, ['N']);
      assert.ok(data.length > 0);
      const tree = jsonOf<{ key: string; unavailable?: boolean; children: unknown[] }[]>(
        await client.request('GET', '/q?tree=1&reload=1'),
      );
      assert.deepEqual(
        tree.map(({ key, unavailable: isAway = false, children }) => [key, isAway, children.length > 0]),
        [
          ['N', true, false],
          ['other', false, true],
        ],
      );
      assert.equal((await client.request('GET', '/q/N?array=1')).status, 503);
      assert.equal((await client.request('GET', '/q?reload=1')).status, 503);
      assert.equal((await client.request('GET', '/q')).status, 200);
    }

    const consumers = async (queue: string): Promise<unknown[]> =>
      jsonOf<unknown[]>(await client.consumers('N', queue));
  });
}
