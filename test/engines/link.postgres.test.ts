import assert from 'node:assert/strict';
import { it } from 'node:test';
import { Connection } from '../../src/engines/postgres/connection.ts';
import { Link } from '../../src/engines/postgres/link.ts';
import { readSettings } from '../../src/engines/postgres/settings.ts';
import { CountingClock, SILENT, sharedServer } from './postgres.ts';

it('A link to PostgreSQL says goodbye when it is stopped, and has forgotten its earlier connections', async (t) => {
  const server = await sharedServer();
  const clock = new CountingClock();
  const options = {
    url: server.url(),
    dataDir: '',
    namespaces: [],
    clock,
    dedupWindowMs: 1,
    settings: {},
    log: SILENT,
  };
  let back = Promise.withResolvers<void>();
  const link = new Link(readSettings(options), 'main', options, {
    prepare: async () => {},
    lost: () => {},
    back: () => back.resolve(),
  });
  await link.start();
  for (let round = 0; round < 3; round++) {
    back = Promise.withResolvers();
    link.drop('asked for by a test');
    await back.promise;
  }
  const destroyed = t.mock.method(Connection.prototype, 'destroy');
  const closed = t.mock.method(Connection.prototype, 'close');
  await link.stop();
  assert.deepEqual([destroyed.mock.callCount(), closed.mock.callCount()], [0, 1]);
  assert.equal(clock.pending, 0);
});
