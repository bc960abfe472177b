import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { QueueClient } from '../support/http-client.ts';
import { ServerProcess } from '../support/server-process.ts';
import { threadsOf } from '../support/threads-of.ts';
import { until } from '../support/until.ts';

const hasThread = (server: ServerProcess): boolean => threadsOf(server.pid).includes('selectors');

describe('The selector thread', () => {
  it('starts with the first exchange that has a selector, and after a restart before the first element', async (context) => {
    if (process.platform !== 'linux') return context.skip('threads are counted in /proc');
    const server = await ServerProcess.start();
    try {
      const open = (): QueueClient => new QueueClient({ url: server.url, credentials: 'test1:test1' });
      let client = open();
      const put = async (id: string, selector?: string): Promise<void> => {
        const dst = [{ ns: 'N', queue: `to ${id}`, ...(selector !== undefined && { selector }) }];
        const body = JSON.stringify({ src: { ns: 'N', queue: id }, dst, consumer: {} });
        assert.equal((await client.request('PUT', `/x/${id}`, { body })).status, 201);
      };
      await put('plain');
      await client.insert('N', 'plain', 'moved');
      assert.equal((await client.get('N', 'to plain', { to: 20_000 })).body.toString(), 'moved');
      assert.equal(hasThread(server), false);
      await put('selecting', 'env => env.msg.tries === 0');
      assert.equal(hasThread(server), true);
      client.close();
      await server.stop();
      await server.start();
      await until(() => hasThread(server));
      client = open();
      await client.insert('N', 'selecting', 'selected');
      assert.equal((await client.get('N', 'to selecting', { to: 20_000 })).body.toString(), 'selected');
      client.close();
    } finally {
      await server.dispose();
    }
  });
});
