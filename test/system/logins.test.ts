import assert from 'node:assert/strict';
import { stat } from 'node:fs/promises';
import { after, before, describe, it } from 'node:test';
import { QueueClient } from '../support/http-client.ts';
import { Folder, type Program } from './program.ts';

const USERS = { ann: 'ann', bob: 'bob', cat: 'cat' };
const NAMESPACES = { N: { url: 'sqlite::memory:' } };

describe('Logins behind a proxy', () => {
  let folder: Folder;

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await folder.write('trusted.json', {
      http: { users: USERS, trustedProxies: ['127.0.0.0/8'] },
      namespaces: NAMESPACES,
    });
    await folder.write('plain.json', { http: { users: USERS }, namespaces: NAMESPACES });
  });

  after(() => folder.dispose());

  it('are limited per network of the client, and a user who has logged in from it is exempt, even after a restart', async () => {
    const first = await folder.serve(['--config', 'trusted.json']);
    assert.equal(await statusOf(first, 'ann:ann', '198.51.100.7'), 200);
    assert.equal(await first.stop(), 0);
    if (process.platform !== 'win32') {
      assert.equal((await stat(folder.file('data/logins.json'))).mode & 0o777, 0o600);
    }

    const second = await folder.serve(['--config', 'trusted.json']);
    const statuses: number[] = [];
    for (let i = 0; i < 32; i++) statuses.push(await statusOf(second, `nobody${i}:x`, '198.51.100.8'));
    assert.deepEqual(statuses.slice(28), [401, 401, 429, 429]);
    assert.equal(
      await statusOf(second, 'bob:bob', '198.51.100.9'),
      429,
      'has not logged in from that network',
    );
    assert.equal(await statusOf(second, 'ann:ann', '198.51.100.9'), 200, 'has logged in from that network');
    assert.equal(await statusOf(second, 'bob:bob', '203.0.113.1'), 200, 'comes from another network');
    await second.untilLogged((lines) => lines.some(({ event }) => event === 'login-failed'));
    const failed = second.logged().filter(({ event }) => event === 'login-failed');
    assert.deepEqual(new Set(failed.map(({ address }) => address)), new Set(['198.51.100.8']));
    assert.equal(await second.stop(), 0);
  });

  it('of a worker with a stale password, twenty at a time, lock out neither its user nor others', async () => {
    const program = await folder.serve(['--config', 'plain.json']);
    for (let second = 0; second < 5; second++) {
      const stale = Array.from({ length: 20 }, () => statusOf(program, 'ann:stale', null));
      assert.deepEqual(new Set(await Promise.all(stale)), new Set([401]));
    }
    for (const name of ['ann', 'bob', 'cat'])
      assert.equal(await statusOf(program, `${name}:${name}`, null), 200);
    assert.equal(await program.stop(), 0);
  });

  it("are attributed to the peer's own address if it is not a trusted proxy", async () => {
    const program = await folder.serve(['--config', 'plain.json']);
    assert.equal(await statusOf(program, 'ann:wrong', '198.51.100.7'), 401);
    await program.untilLogged((lines) => lines.some(({ event }) => event === 'login-failed'));
    const [failed] = program.logged().filter(({ event }) => event === 'login-failed');
    assert.equal(failed?.address, '127.0.0.1');
    assert.equal(await program.stop(), 0);
  });

  it('are not served if trustedProxies contains an invalid network', async () => {
    await folder.write('wrong.json', { http: { trustedProxies: ['10.0.0.0/8', 'proxy.example'] } });
    const program = await folder.run(['--config', 'wrong.json']);
    assert.equal(program.code, 2);
    assert.match(
      program.stderr,
      /http\.trustedProxies\.1: "proxy\.example" is not a network\. Write an address \(10\.0\.0\.7\), a network/,
    );
  });
});

async function statusOf(program: Program, credentials: string, forwardedFor: string | null): Promise<number> {
  const client = new QueueClient({ url: program.url, credentials });
  const headers = forwardedFor === null ? {} : { 'x-forwarded-for': forwardedFor };
  const { status } = await client.namespaces({ headers });
  client.close();
  return status;
}
