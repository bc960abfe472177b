import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { type Answer, jsonOf, QueueClient } from '../support/http-client.ts';
import { Folder } from './program.ts';

const READER = { password: 'p', rights: { N: ['read'] } };
const MANAGER = { password: 'p', rights: { N: ['read', 'manage'] } };

describe('A reload of the users', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  const write = (users: object): Promise<unknown> =>
    folder.write('q.json', { http: { users }, namespaces: { N: { url: 'sqlite::memory:' } } });

  it('ends the waiting calls of users who are removed, have a new password or may no longer read', async () => {
    await write({ stays: MANAGER, goes: READER, changes: READER, writes: READER });
    const program = await folder.serve(['--config', 'q.json']);
    const clients = ['stays', 'goes', 'changes', 'writes'].map(
      (name) => new QueueClient({ url: program.url, credentials: `${name}:p` }),
    );
    const waiting: Promise<Answer>[] = [];
    for (const [i, client] of clients.entries()) {
      waiting.push(client.get('N', 'q', { tid: `T${i}` }));
      // One after the other, so that their order in the wait queue is known.
      for (let listed = 0; listed <= i; ) listed = await waitingIn(clients[0] as QueueClient);
    }
    await write({
      stays: MANAGER,
      changes: { ...READER, password: 'other' },
      writes: { ...READER, rights: { N: ['write'] } },
    });
    program.signal('SIGHUP');
    const [, goes, changes, writes] = waiting;
    assert.equal((await goes)?.status, 401);
    assert.equal((await changes)?.status, 401);
    assert.equal((await writes)?.status, 403);
    await (clients[3] as QueueClient).insert('N', 'q', 'for the remaining user');
    assert.equal((await waiting[0])?.body.toString(), 'for the remaining user');
    for (const client of clients) client.close();
    assert.equal(await program.stop(), 0);
  });

  for (const [what, secret] of [
    ['console.secret', 'a secret of at least 32 characters'],
    ['a secret of the process', null],
  ] as const) {
    it(`does not revive the console session of a user who was removed and added again, with ${what}`, async () => {
      const configure = (users: object): Promise<unknown> =>
        folder.write('console.json', {
          http: { users: { stays: MANAGER, ...users } },
          ...(secret !== null && { console: { secret } }),
          namespaces: { N: { url: 'sqlite::memory:' } },
        });
      await configure({ ann: READER });
      const program = await folder.serve(['--config', 'console.json']);
      const browser = new QueueClient({ url: program.url, credentials: null });
      const body = JSON.stringify({ user: 'ann', password: 'p' });
      const { rawHeaders } = await browser.request('POST', '/console/session', { body });
      const cookie = rawHeaders[rawHeaders.indexOf('set-cookie') + 1]?.split(';')[0] ?? '';
      const status = async (): Promise<number> =>
        (await browser.request('GET', '/console/session', { headers: { cookie } })).status;
      assert.equal(await status(), 200);
      for (const users of [{}, { ann: READER }]) {
        await configure(users);
        const lines = program.logged().length;
        program.signal('SIGHUP');
        await program.untilLogged((all) => all.slice(lines).some(({ event }) => event === 'reload'));
        assert.equal(await status(), 401);
      }
      browser.close();
      assert.equal(await program.stop(), 0);
    });
  }
});

describe('A password in a file', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  for (const [what, config, env] of [
    ['a variable names', {}, { QUAYSIDE_HTTP__USERS__ann__PASSWORD_FILE: 'secret' }],
    ['the configuration names', { http: { users: { ann: { passwordFile: 'secret' } } } }, {}],
  ] as const) {
    it(`that ${what} can be changed without a restart`, async () => {
      await folder.write('secret', 'before');
      await folder.write('q.json', { ...config, namespaces: { N: { url: 'sqlite::memory:' } } });
      const program = await folder.serve(['--config', 'q.json'], { env });
      const statusOf = async (password: string): Promise<number> => {
        const client = new QueueClient({ url: program.url, credentials: `ann:${password}` });
        const { status } = await client.namespaces();
        client.close();
        return status;
      };
      assert.deepEqual([await statusOf('before'), await statusOf('after')], [200, 401]);
      await folder.write('secret', 'after');
      program.signal('SIGHUP');
      await program.untilLogged((lines) => lines.some(({ event }) => event === 'reload'));
      assert.deepEqual([await statusOf('before'), await statusOf('after')], [401, 200]);
      assert.equal(await program.stop(), 0);
    });
  }
});

async function waitingIn(client: QueueClient): Promise<number> {
  return jsonOf<unknown[]>(await client.consumers('N', 'q')).length;
}
