import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { headerOf, QueueClient } from '../support/http-client.ts';
import { Folder, type Program } from './program.ts';

const USER = { admin: { password: 'p' } };

describe('The exchanges of a server', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create();
  });
  after(() => folder.dispose());

  const as = (program: Program): QueueClient => new QueueClient({ url: program.url, credentials: 'admin:p' });

  it('that the configuration file declares come back, and a delete or change says so', async () => {
    const declared = { src: { ns: 'N', queue: 'in' }, dst: [{ ns: 'N', queue: 'out' }], consumer: {} };
    await folder.write('q.json', {
      http: { users: USER },
      namespaces: { N: { url: 'sqlite:N.db' } },
      exchanges: { filed: declared },
    });
    const first = await folder.serve(['--config', 'q.json']);
    const client = as(first);
    const body = JSON.stringify({ ...declared, consumer: { wsize: 7 } });
    const changed = await client.request('PUT', '/x/filed', { body, headers: { 'if-match': '*' } });
    assert.match(headerOf(changed, 'x-ks-note') ?? '', /configuration file.* restart/);
    const deleted = await client.request('DELETE', '/x/filed');
    assert.equal(deleted.status, 201);
    assert.match(headerOf(deleted, 'x-ks-note') ?? '', /configuration file.* restart/);
    assert.equal((await client.request('PUT', '/x/own', { body })).status, 201);
    const own = await client.request('DELETE', '/x/own');
    assert.ok(!Object.hasOwn(own.headers, 'x-ks-note'));
    client.close();
    assert.equal(await first.stop(), 0);
    const second = await folder.serve(['--config', 'q.json']);
    const again = as(second);
    assert.equal((await again.request('GET', '/x/filed')).status, 200);
    again.close();
    assert.equal(await second.stop(), 0);
  });

  for (const [selectors, hasThread] of [
    ['on', true],
    ['off', false],
  ] as const) {
    const title = hasThread ? 'have' : 'have no';
    it(`${title} thread for selectors from the start on with selectors: ${selectors}`, async (context) => {
      if (process.platform !== 'linux') return context.skip('threads are counted in /proc');
      await folder.write('q.json', {
        http: { users: USER },
        selectors,
        namespaces: { N: { url: 'sqlite::memory:' } },
      });
      const program = await folder.serve(['--config', 'q.json']);
      const names = (): string[] =>
        readdirSync(`/proc/${program.pid}/task`).map((task) =>
          readFileSync(`/proc/${program.pid}/task/${task}/comm`, 'utf8').trim(),
        );
      const client = as(program);
      // The start of the server does not wait for the thread's.
      while (hasThread && !names().includes('selectors')) await client.request('GET', '/x');
      assert.equal(names().includes('selectors'), hasThread, names().join(' '));
      client.close();
      assert.equal(await program.stop(), 0);
    });
  }
});
