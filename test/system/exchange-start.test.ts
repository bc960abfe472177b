import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { headerOf, QueueClient } from '../support/http-client.ts';
import { threadsOf } from '../support/threads-of.ts';
import { Folder, type Program } from './program.ts';

const USER = { admin: { password: 'p' } };

describe('The exchanges of a server', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  const as = (program: Program): QueueClient => new QueueClient({ url: program.url, credentials: 'admin:p' });

  it('that the configuration declares are restored at a restart; deleting or changing them warns of that', async () => {
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

  it('start no selector thread if `selectors` is off, even if a stored exchange has a selector', async (context) => {
    if (process.platform !== 'linux') return context.skip('threads are counted in /proc');
    const config = { http: { users: USER }, namespaces: { N: { url: 'sqlite:selecting.db' } } };
    await folder.write('q.json', config);
    const first = await folder.serve(['--config', 'q.json'], { ownProcess: true });
    const client = as(first);
    const dst = [{ ns: 'N', queue: 'out', selector: 'env => true' }];
    const body = JSON.stringify({ src: { ns: 'N', queue: 'in' }, dst, consumer: {} });
    assert.equal((await client.request('PUT', '/x/selecting', { body })).status, 201);
    assert.equal(threadsOf(first.pid).includes('selectors'), true);
    client.close();
    assert.equal(await first.stop(), 0);
    await folder.write('q.json', { ...config, selectors: 'off' });
    const second = await folder.serve(['--config', 'q.json'], { ownProcess: true });
    const again = as(second);
    assert.equal((await again.request('GET', '/x/selecting')).status, 200);
    assert.equal(threadsOf(second.pid).includes('selectors'), false);
    again.close();
    assert.equal(await second.stop(), 0);
  });
});
