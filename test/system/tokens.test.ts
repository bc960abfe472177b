import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { PasswordAuthenticator } from '../../src/access/password-authenticator.ts';
import { AmqpClient } from '../amqp/client.ts';
import { StompClient } from '../stomp/client.ts';
import { EventClient } from '../support/event-client.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { ServerInProcess } from '../support/server-in-process.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

interface Created {
  readonly id: string;
  readonly token: string;
}

describe('The revocation of an API token', () => {
  it('rechecks only the waiting calls of that token, not other logins', async (test) => {
    const server = await ServerInProcess.start({
      config: {
        http: { users: { ann: 'pw' } },
        stomp: { port: 0 },
        namespaces: { N: { url: 'sqlite::memory:' } },
      },
    });
    test.after(() => server.dispose());
    const clientOf = (credentials: string): QueueClient => {
      const client = new QueueClient({ url: server.url, credentials });
      test.after(() => client.close());
      return client;
    };
    const ann = clientOf('ann:pw');
    const withToken = async (name: string): Promise<{ id: string; client: QueueClient }> => {
      const answer = await ann.request('POST', '/tokens', { body: JSON.stringify({ name }) });
      const { id, token } = jsonOf<Created>(answer);
      return { id, client: clientOf(`token:${token}`) };
    };
    const revoke = async ({ id }: { id: string }): Promise<void> => {
      assert.equal((await ann.request('DELETE', `/tokens/${id}`)).status, 204);
    };
    const stomp = await StompClient.login(Number(new URL(server.otherUrls.stomp ?? '').port), '1.2', {
      login: 'ann',
      passcode: 'pw',
    });
    test.after(() => stomp.socket.destroy());
    const stream = new EventClient({ url: server.url, credentials: 'ann:pw' });
    test.after(() => stream.close());
    await until(() => stream.isComplete);
    const gets = [ann.get('N', 'a'), ann.get('N', 'b')];
    const [waiting, other] = [await withToken('waiting'), await withToken('other')];
    const [used, unused] = [await withToken('used'), await withToken('unused')];
    assert.equal((await used.client.namespaces()).status, 200);
    const ended = waiting.client.get('N', 'c');
    const lasting = other.client.get('N', 'd');
    await untilWaiting(ann, 4);

    const { mock } = test.mock.method(PasswordAuthenticator.prototype, 'renew');
    await revoke(unused);
    await revoke(used);
    assert.equal(mock.callCount(), 0);
    await revoke(waiting);
    assert.equal((await ended).status, 401);
    assert.equal(mock.callCount(), 1);

    mock.restore();
    assert.equal(stream.isClosed, false);
    for (const queue of ['a', 'b', 'd']) await ann.insert('N', queue, 'x');
    for (const get of [...gets, lasting]) assert.equal((await get).status, 200);
  });
});

describe('API tokens in the server', () => {
  let folder: Folder;
  let server: Program;
  let ann: QueueClient;

  const write = (rights: object | undefined, password = 'pw'): Promise<unknown> =>
    folder.write('q.json', {
      http: { users: { admin: 'pw', ...(rights !== undefined && { ann: { password, rights } }) } },
      stomp: { port: 0 },
      amqp: { port: 0 },
      namespaces: { N: { url: 'sqlite:N.db' } },
    });

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await write({ N: ['read', 'write'] });
    server = await folder.serve(['--config', 'q.json']);
    ann = new QueueClient({ url: () => server.url, credentials: 'ann:pw' });
  });
  after(async () => {
    ann?.close();
    await folder.dispose();
  });

  const portOf = (scheme: string): number =>
    Number(new RegExp(`${scheme}://[^ ]*:(\\d+)`).exec(server.stdout)?.[1]);

  async function created(name: string): Promise<Created> {
    return jsonOf(await ann.request('POST', '/tokens', { body: JSON.stringify({ name }) }));
  }

  async function insertStatus(token: string): Promise<number> {
    const { status } = await fetch(`${server.url}/q/N/q`, {
      method: 'PUT',
      body: 'x',
      headers: { authorization: `Bearer ${token}` },
    });
    return status;
  }

  async function reloaded(): Promise<void> {
    const lines = server.logged().length;
    server.signal('SIGHUP');
    await server.untilLogged((all) => all.slice(lines).some(({ event }) => event === 'reload'));
  }

  it('authenticate STOMP and AMQP sessions, which end when the token is revoked', async () => {
    const { id, token } = await created('sessions');
    const stomp = await StompClient.login(portOf('stomp'), '1.2', { login: 'token', passcode: token });
    const amqp = await AmqpClient.open(portOf('amqp'), 'ann', { password: token });
    await amqp.receiver('N/a', {}, 1);
    const { sessions } = jsonOf<{ sessions: { user: string }[] }>(await ann.request('GET', '/sessions'));
    assert.deepEqual(
      sessions.map(({ user }) => user),
      ['ann', 'ann'],
    );
    assert.equal((await ann.request('DELETE', `/tokens/${id}`)).status, 204);
    await stomp.expectError('unauthorized');
    assert.equal((await amqp.closed)?.info.code, 'unauthorized');
    await server.untilLogged((all) => all.some(({ action }) => action === 'revokeToken'));
    const audited = server.logged().filter(({ event }) => event === 'admin');
    assert.deepEqual(
      audited.map(({ action, user, id: of }) => [action, user, of]),
      [
        ['createToken', 'ann', id],
        ['revokeToken', 'ann', id],
      ],
    );
    assert.ok(!server.stderr.includes(token));
  });

  it('keep their waiting calls when their owner gets a new password, and end them when they are revoked', async () => {
    const { id, token } = await created('waiting');
    const admin = new QueueClient({ url: () => server.url, credentials: 'admin:pw' });
    const worker = new QueueClient({ url: () => server.url, credentials: `token:${token}` });
    const stomp = await StompClient.login(portOf('stomp'), '1.2', { login: 'token', passcode: token });
    stomp.send('SUBSCRIBE', { id: '1', destination: '/q/N/pushed' });
    const first = worker.get('N', 'popped');
    const both = worker.request('POST', '/take', {
      body: JSON.stringify({
        from: [
          { ns: 'N', queue: 'one' },
          { ns: 'N', queue: 'other' },
        ],
      }),
    });
    await untilWaiting(admin, 4);
    await write({ N: ['read', 'write'] }, 'another');
    await reloaded();
    for (const queue of ['pushed', 'popped', 'other']) await admin.insert('N', queue, `into ${queue}`);
    assert.equal((await stomp.next()).body.toString(), 'into pushed');
    assert.equal((await first).body.toString(), 'into popped');
    assert.equal((await both).status, 200);

    const last = worker.get('N', 'popped');
    await untilWaiting(admin, 2);
    assert.equal((await admin.request('DELETE', `/tokens/${id}`)).status, 204);
    await admin.insert('N', 'popped', 'not taken');
    assert.equal((await last).status, 401);
    assert.equal((await admin.get('N', 'popped')).body.toString(), 'not taken');
    await stomp.expectError('unauthorized');
    await write({ N: ['read', 'write'] });
    await reloaded();
    worker.close();
    admin.close();
  });

  it('lose the rights that their owner loses, and survive restarts', async () => {
    const { token } = await created('lasting');
    assert.equal(await insertStatus(token), 200);
    await write({ N: ['read'] });
    await reloaded();
    assert.equal(await insertStatus(token), 403);
    assert.equal(await server.stop(), 0);
    await write({ N: ['write'] });
    server = await folder.serve(['--config', 'q.json']);
    assert.equal(await insertStatus(token), 200);
  });

  it('end for good when a reload removes their owner, and can be listed and revoked if a restart removed the owner', async () => {
    const removed = await created('of a user who is removed by a reload');
    const admin = new QueueClient({ url: () => server.url, credentials: 'admin:pw' });
    const idsOf = async (): Promise<string[]> =>
      jsonOf<Created[]>(await admin.request('GET', '/tokens')).map(({ id }) => id);
    await write(undefined);
    await reloaded();
    assert.equal(await insertStatus(removed.token), 401);
    assert.deepEqual(await idsOf(), []);
    await write({ N: ['write'] });
    await reloaded();
    assert.equal(
      await insertStatus(removed.token),
      401,
      'a new user of that name does not inherit the token',
    );
    const left = await created('of a user who is removed by a restart');
    assert.equal(await server.stop(), 0);
    await write(undefined);
    server = await folder.serve(['--config', 'q.json']);
    assert.equal(await insertStatus(left.token), 401);
    assert.deepEqual(await idsOf(), [left.id]);
    assert.equal((await admin.request('DELETE', `/tokens/${left.id}`)).status, 204);
    assert.deepEqual(await idsOf(), []);
    admin.close();
  });
});

/** Resolves when as many consumers wait, in all queues. */
function untilWaiting(client: QueueClient, count: number): Promise<void> {
  return until(async () => {
    const { total } = jsonOf<{ total: number }>(await client.request('GET', '/consumers'));
    return total === count;
  });
}
