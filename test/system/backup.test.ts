import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import { ServerProcess, trialConfig } from '../support/server-process.ts';

const ALL_RIGHTS = ['read', 'write', 'manage', 'exchange'];

describe('POST /backup', () => {
  let server: ServerProcess;
  let administrator: QueueClient;
  let limited: QueueClient;

  before(async () => {
    const config = trialConfig();
    server = await ServerProcess.start({
      config: {
        ...config,
        http: { users: { test1: 'test1', limited: { password: 'limited', rights: { '*': ALL_RIGHTS } } } },
        namespaces: {
          ...(config.namespaces as object),
          again: { url: 'sqlite:N.db' },
          elsewhere: { url: 'sqlite:deeper/N.db' },
          memory: { url: 'sqlite::memory:' },
        },
      },
    });
    administrator = new QueueClient({ url: server.url });
    limited = new QueueClient({ url: server.url, credentials: 'limited:limited' });
  });

  after(async () => {
    administrator?.close();
    limited?.close();
    await server?.dispose();
  });

  const folders = (): string => join(server.dataDir, 'backups');
  const backUp = (client: QueueClient, name?: string) =>
    client.request('POST', '/backup', { query: { name } });

  it('copies each SQLite file once into the named folder and reports the namespaces of each file', async () => {
    await administrator.insert('N', 'orders', 'a');
    const answer = await backUp(administrator, 'nightly-1');
    assert.equal(answer.status, 201);
    const report = jsonOf<{ folder: string; takenAt: string; files: object[]; skipped: object[] }>(answer);
    const { folder } = report;
    assert.equal(folder, join(folders(), 'nightly-1'));
    assert.deepEqual(readdirSync(folder).sort(), ['2-N.db', 'N.db', 'backup.json', 'events.db']);
    assert.deepEqual(JSON.parse(readFileSync(join(folder, 'backup.json'), 'utf8')), report);
    const bytes = (file: string): number => statSync(join(folder, file)).size;
    assert.deepEqual(report.files, [
      { file: 'N.db', url: 'sqlite:N.db', namespaces: ['N', 'again'], bytes: bytes('N.db') },
      { file: 'events.db', url: 'sqlite:events.db', namespaces: ['events'], bytes: bytes('events.db') },
      { file: '2-N.db', url: 'sqlite:deeper/N.db', namespaces: ['elsewhere'], bytes: bytes('2-N.db') },
    ]);
    assert.deepEqual(report.skipped, [{ url: 'sqlite::memory:', namespaces: ['memory'] }]);
    for (const file of readdirSync(folder)) assert.equal(statSync(join(folder, file)).mode & 0o777, 0o600);
  });

  it('is audited with the name of the backup', async () => {
    const { name } = jsonOf<{ name: string }>(await backUp(administrator));
    const answer = await administrator.request('GET', '/audit', { query: { limit: '1' } });
    const [line] = jsonOf<{ lines: { action: string; details: object }[] }>(answer).lines;
    assert.deepEqual([line?.action, line?.details], ['backUp', { name }]);
  });

  it('names the backup after the time if no name is given', async () => {
    const answer = await backUp(administrator);
    const { name, takenAt } = jsonOf<{ name: string; takenAt: string }>(answer);
    assert.equal(name, takenAt.replaceAll(':', '-'));
    assert.ok(existsSync(join(folders(), name, 'N.db')));
  });

  it('never writes outside its folder, whatever the name', async () => {
    mkdirSync(folders(), { recursive: true });
    const before = readdirSync(folders());
    const names = ['../up', '..', '.hidden', 'a/b', '/tmp/x', 'a\\b', 'a\0b', ' ', 'a'.repeat(65), '-x', 'ä'];
    for (const name of names) {
      const answer = await backUp(administrator, name);
      assert.equal(answer.status, 400, JSON.stringify(name));
      assert.equal(jsonOf<{ parameter: string }>(answer).parameter, 'name');
    }
    assert.deepEqual(readdirSync(folders()), before);
    assert.ok(!existsSync(join(server.dataDir, 'up')));
  });

  it('rejects the name of an existing backup, and a second backup at the same time', async () => {
    assert.equal((await backUp(administrator, 'taken')).status, 201);
    const again = await backUp(administrator, 'taken');
    assert.deepEqual([again.status, jsonOf<{ code: string }>(again).code], [409, 'backup-conflict']);
    const both = await Promise.all(['one', 'two'].map((name) => backUp(administrator, name)));
    assert.deepEqual(both.map(({ status }) => status).sort(), [201, 409]);
  });

  it('is allowed only for users without a list of rights, not for one with all rights in all namespaces', async () => {
    const answer = await backUp(limited, 'forbidden');
    assert.deepEqual([answer.status, jsonOf<{ code: string }>(answer).code], [403, 'forbidden']);
    const stranger = new QueueClient({ url: server.url, credentials: null });
    assert.equal((await backUp(stranger, 'forbidden')).status, 401);
    stranger.close();
    assert.ok(!existsSync(join(folders(), 'forbidden')));
  });

  it('is logged with its user', async () => {
    await backUp(administrator, 'logged');
    await server.stop();
    assert.match(server.output, /"action":"backUp","user":"test1"/);
  });
});
