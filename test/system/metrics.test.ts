import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { after, before, describe, it } from 'node:test';
import { QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { Folder, type Program } from './program.ts';

const CONFIG = {
  http: {
    users: {
      test1: 'test1',
      other: { password: 'other', rights: { M: ['read'] } },
      counts: { password: 'counts', rights: { S: ['read'] } },
    },
  },
  metrics: { perQueue: true },
  namespaces: {
    N: { url: 'sqlite:N.db' },
    M: { url: 'sqlite::memory:' },
    S: { url: 'sqlite::memory:', stats: { url: 'sqlite:stats.db' } },
  },
};

describe('The metrics of a server', () => {
  let folder: Folder;
  let program: Program;
  let client: QueueClient;
  const metrics = async (of = client): Promise<string> =>
    (await of.request('GET', '/metrics')).body.toString('utf8');

  before(async () => {
    folder = await Folder.create({ ownProcesses: false });
    await folder.write('q.json', CONFIG);
    program = await folder.serve(['--config', 'q.json']);
    client = new QueueClient({ url: program.url });
  });

  after(async () => {
    client.close();
    await folder.dispose();
  });

  it('report the size of each database file and the free space of its disk, but nothing for memory databases', async () => {
    let text = '';
    // The server may write between the two measurements.
    await until(async () => {
      text = await metrics();
      const [, bytes = ''] = /^quayside_storage_file_bytes\{engine="sqlite:N\.db"\} (\d+)$/m.exec(text) ?? [];
      const found = ['N.db', 'N.db-wal'].map((name) => statSync(folder.file(`data/${name}`)).size);
      return Number(bytes) === found.reduce((sum, size) => sum + size, 0);
    });
    assert.match(text, /^quayside_storage_free_bytes\{engine="sqlite:N\.db"\} [1-9]\d*$/m);
    assert.doesNotMatch(text, /sqlite::memory:/);
    const other = new QueueClient({ url: program.url, credentials: 'other:other' });
    assert.doesNotMatch(await metrics(other), /sqlite:N\.db|namespace="N"/);
    other.close();
  });

  it('show the engine of statistics only to users of its namespaces, like the list of engines', async () => {
    const shown: Record<string, readonly boolean[]> = {};
    for (const user of ['test1', 'other', 'counts']) {
      const own = new QueueClient({ url: program.url, credentials: `${user}:${user}` });
      const engines = (await own.request('GET', '/engines')).body.toString();
      shown[user] = [await metrics(own), engines].map((text) => text.includes('"sqlite:stats.db"'));
      own.close();
    }
    assert.deepEqual(shown, { test1: [true, true], other: [false, false], counts: [true, true] });
  });

  it('report the durations of requests by operation, including the wait of a get', async () => {
    const name = 'quayside_http_request_duration_seconds';
    const waiting = client.get('N', 'q', { to: 60_000 });
    await client.insert('N', 'q', 'x');
    assert.equal((await waiting).status, 200);
    await client.get('N', 'q', { to: 300 });
    await client.request('GET', '/nothing/here');
    // Scrapes within one second return the same numbers.
    let text = '';
    await until(async () => {
      text = await metrics();
      return text.includes(`${name}_count{operation="unmatched"} 1\n`);
    }, 100);
    for (const line of [
      `${name}_count{operation="insert"} 1`,
      `${name}_count{operation="take"} 2`,
      `${name}_bucket{operation="take",le="60"} 2`,
      `${name}_count{operation="unmatched"} 1`,
      `${name}_count{operation="commit"} 0`,
    ]) {
      assert.ok(text.includes(`${line}\n`), `${line} is missing in\n${text}`);
    }
    const [, sum = ''] = new RegExp(`^${name}_sum\\{operation="take"\\} (\\S+)$`, 'm').exec(text) ?? [];
    assert.ok(Number(sum) > 0.2, 'the wait of the second get is counted');
  });
});
