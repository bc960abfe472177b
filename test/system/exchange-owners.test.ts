import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

const ALL = { password: 'p', rights: { '*': ['read', 'write', 'manage', 'exchange'] } };

interface Shown {
  readonly stopped: boolean | null;
  readonly lastError: string | null;
}

describe('The exchanges of a removed user', () => {
  let folder: Folder;
  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
  });
  after(() => folder.dispose());

  const write = (users: object): Promise<unknown> =>
    folder.write('q.json', {
      http: { users },
      namespaces: { N: { url: 'sqlite:N.db' }, M: { url: 'sqlite:M.db' } },
    });
  const as = (program: Program, name: string): QueueClient =>
    new QueueClient({ url: program.url, credentials: `${name}:p` });
  const create = async (client: QueueClient, id: string): Promise<void> => {
    const body = JSON.stringify({
      src: { ns: 'N', queue: `${id}-src` },
      dst: [{ ns: 'M', queue: `${id}-dst`, selector: 'env => true' }],
      consumer: {},
    });
    assert.equal((await client.request('PUT', `/x/${id}`, { body })).status, 201);
  };
  const exchangeState = async (client: QueueClient, id: string): Promise<Shown> => {
    const { stopped, lastError } = jsonOf<Shown>(await client.request('GET', `/x/${id}`));
    return { stopped, lastError };
  };
  const RUNNING = { stopped: null, lastError: null };

  it('stop when the users are reloaded, report the reason, and run again for the user who starts them', async () => {
    await write({ stays: ALL, goes: ALL, loses: ALL });
    const program = await folder.serve(['--config', 'q.json']);
    const stays = as(program, 'stays');
    for (const name of ['stays', 'goes', 'loses']) {
      const client = as(program, name);
      await create(client, `of-${name}`);
      client.close();
    }
    await write({ stays: ALL, loses: { ...ALL, rights: { N: ['read', 'exchange'], M: ['read'] } } });
    program.signal('SIGHUP');
    for (const id of ['of-goes', 'of-loses'])
      await until(async () => (await exchangeState(stays, id)).stopped === true);
    assert.match((await exchangeState(stays, 'of-goes')).lastError ?? '', /"goes".* no longer a user/);
    assert.match((await exchangeState(stays, 'of-loses')).lastError ?? '', /"loses".* lost a right/);
    assert.deepEqual(await exchangeState(stays, 'of-stays'), RUNNING);
    assert.equal((await stays.request('POST', '/x/of-goes/start')).status, 201);
    assert.deepEqual(await exchangeState(stays, 'of-goes'), { stopped: false, lastError: null });
    await stays.insert('N', 'of-goes-src', 'forwarded');
    assert.equal((await stays.get('M', 'of-goes-dst')).body.toString(), 'forwarded');
    stays.close();
    assert.equal(await program.stop(), 0);
  });

  it('do not run after a restart', async () => {
    await write({ stays: ALL, goes: ALL });
    const before = await folder.serve(['--config', 'q.json']);
    const goes = as(before, 'goes');
    await create(goes, 'restarted');
    goes.close();
    assert.equal(await before.stop(), 0);
    await write({ stays: ALL });
    const program = await folder.serve(['--config', 'q.json']);
    const stays = as(program, 'stays');
    await stays.insert('N', 'restarted-src', 'stays');
    const { stopped, lastError } = await exchangeState(stays, 'restarted');
    assert.equal(stopped, true);
    assert.match(lastError ?? '', /"goes"/);
    assert.deepEqual(await exchangeState(stays, 'of-stays'), RUNNING);
    assert.equal((await stays.get('N', 'restarted-src')).body.toString(), 'stays');
    stays.close();
    assert.equal(await program.stop(), 0);
  });
});
