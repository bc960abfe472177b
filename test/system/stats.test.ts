import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { headerOf, jsonOf, QueueClient } from '../support/http-client.ts';
import { Folder } from './program.ts';

const CONFIG = {
  http: { users: { test1: 'test1' } },
  namespaces: {
    own: { url: 'sqlite:own.db', deadLetter: { maxTries: 1 } },
    apart: { url: 'sqlite:own.db', deadLetter: { maxTries: 1 }, stats: { url: 'sqlite:stats.db' } },
    named: { url: 'sqlite:own.db', deadLetter: { maxTries: 1 }, stats: { coll: 'other' } },
  },
};

describe('Statistics', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await folder.write('q.json', CONFIG);
  });
  after(() => folder.dispose());

  it('count dead letters at the queue and at the dead-letter queue, wherever a namespace stores its statistics', async () => {
    const program = await folder.serve(['--config', 'q.json']);
    const client = new QueueClient({ url: program.url });
    const stats = async (ns: string, queue: string): Promise<object> =>
      jsonOf<{ stats: object }>(await client.status(ns, queue)).stats;
    const none = { put: 0, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 };
    for (const ns of ['own', 'apart', 'named']) {
      await client.insert(ns, 'q', 'hopeless');
      const reserved = await client.reserve(ns, 'q');
      await client.rollback(ns, 'q', headerOf(reserved, 'x-ks-id'));
      assert.deepEqual(await stats(ns, 'q'), { ...none, put: 1, reserve: 1, rollback: 1, deadletter: 1 }, ns);
      assert.deepEqual(await stats(ns, '__deadletter__'), { ...none, put: 1 }, ns);
    }
    client.close();
    assert.equal(await program.stop(), 0);
  });
});
