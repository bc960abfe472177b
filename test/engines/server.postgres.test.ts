import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { QueueClient } from '../support/http-client.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { ServerProcess } from '../support/server-process.ts';
import { until } from './postgres-node.ts';

/** How the database can be away. */
const AWAY = {
  killed: { begin: (database) => database.stop('immediate'), end: (database) => database.start() },
  frozen: {
    begin: async (database) => database.signalAll('SIGSTOP'),
    end: async (database) => database.signalAll('SIGCONT'),
  },
} satisfies Record<string, Record<'begin' | 'end', (database: PostgresServer) => Promise<void>>>;

describe('A server on PostgreSQL', () => {
  let database: PostgresServer;
  let server: ServerProcess;
  let client: QueueClient;

  before(async () => {
    database = await PostgresServer.start();
    server = await ServerProcess.start({
      config: {
        http: { users: { test1: 'test1' } },
        namespaces: { N: { url: database.url() }, other: { url: 'sqlite:other.db' } },
      },
    });
    client = new QueueClient({ url: () => server.url });
  });
  after(async () => {
    client.close();
    await server.dispose();
    database.dispose();
  });

  for (const [state, { begin, end }] of Object.entries(AWAY)) {
    it(`refuses calls while the database is ${state}, keeps waiting gets, and goes on by itself`, async () => {
      const waiting = client.get('N', `${state}, waited for`);
      await until(async () => (await consumers(`${state}, waited for`)) === 1);
      await begin(database);
      await until(async () => {
        const refused = await client.insert('N', state, 'too early');
        assert.equal(refused.status, 503, refused.body.toString());
        return refused.headers['retry-after'] === '1';
      });

      assert.equal((await client.insert('other', state, 'elsewhere')).status, 200);
      assert.equal((await client.get('other', state, { to: 0 })).body.toString(), 'elsewhere');

      await end(database);
      await until(async () => (await client.insert('N', state, 'back')).status === 200);
      await client.insert('N', `${state}, waited for`, 'after');
      assert.equal((await waiting).body.toString(), 'after');
    });
  }

  it('keeps what was stored through a restart of its own', async () => {
    await client.insert('N', 'kept', 'durable', { headers: { 'x-ks-hdr-a': 'b' } });
    const { code } = await server.stop();
    assert.equal(code, 0);
    await server.start();
    const got = await client.get('N', 'kept', { to: 0 });
    assert.deepEqual([got.body.toString(), got.headers['x-ks-hdr-a']], ['durable', 'b']);
  });

  it('shows its type, and no password anywhere', async () => {
    await client.insert('N', 'shown', 'x');
    const { body } = await client.status('N', 'shown');
    const record = JSON.parse(body.toString()) as { type: string; factory: { signaller: { type: string } } };
    assert.deepEqual([record.type, record.factory.signaller.type], ['postgres:simple', 'postgres']);
    for (const text of [body.toString(), server.output]) {
      assert.ok(!text.includes(encodeURIComponent(database.password)) && !text.includes(database.password));
    }
  });

  async function consumers(queue: string): Promise<number> {
    const { body } = await client.consumers('N', queue);
    return (JSON.parse(body.toString()) as unknown[]).length;
  }
});
