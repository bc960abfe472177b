import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { QueueClient } from '../support/http-client.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { ServerProcess } from '../support/server-process.ts';

describe('A server on PostgreSQL', () => {
  let database: PostgresServer;
  let server: ServerProcess;
  let client: QueueClient;

  before(async () => {
    database = await PostgresServer.start({ settings: { fsync: 'off' } });
    server = await ServerProcess.start({
      config: {
        http: { users: { test1: 'test1' } },
        namespaces: { N: { url: database.url() }, B: { url: database.url(), maxBytes: 1_048_576 } },
      },
    });
    client = new QueueClient({ url: () => server.url });
  });
  after(async () => {
    client.close();
    await server.dispose();
    database.dispose();
  });

  it('keeps its elements when it is restarted', async () => {
    await client.insert('N', 'kept', 'durable', { headers: { 'x-ks-hdr-a': 'b' } });
    const { code } = await server.stop();
    assert.equal(code, 0);
    await server.start();
    const got = await client.get('N', 'kept', { to: 0 });
    assert.deepEqual([got.body.toString(), got.headers['x-ks-hdr-a']], ['durable', 'b']);
  });

  it('shows the type of the engine in a status, and its password neither there nor in the log', async () => {
    await client.insert('N', 'shown', 'x');
    const { body } = await client.status('N', 'shown');
    const record = JSON.parse(body.toString()) as { type: string; factory: { signaller: { type: string } } };
    assert.deepEqual([record.type, record.factory.signaller.type], ['postgres:simple', 'postgres']);
    for (const text of [body.toString(), server.output]) {
      assert.ok(!text.includes(encodeURIComponent(database.password)) && !text.includes(database.password));
    }
  });

  it('rejects inserts beyond maxBytes of a namespace until elements are consumed', async () => {
    const body = 'x'.repeat(400_000);
    const insert = async (): Promise<number> => (await client.insert('B', 'bounded', body)).status;
    assert.deepEqual([await insert(), await insert(), await insert()], [200, 200, 507]);
    assert.equal((await client.insert('N', 'unbounded', body)).status, 200);
    for (let left = 2; left > 0; left--)
      assert.equal((await client.get('B', 'bounded', { to: 0 })).status, 200);
    // The usage of the namespace is read again within about a second.
    let status = 507;
    while (status === 507) status = await insert();
    assert.equal(status, 200);
  });
});
