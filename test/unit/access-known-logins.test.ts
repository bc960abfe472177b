import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { KnownLogins } from '../../src/access/known-logins.ts';
import { FakeClock } from '../support/clock.ts';

const DAY_MS = 24 * 3_600_000;

describe('Known logins', () => {
  let folder: string;
  let file: string;
  let clock: FakeClock;
  let warnings: string[];

  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'quayside-known-'));
    file = join(folder, 'data', 'logins.json');
    clock = new FakeClock();
    warnings = [];
  });
  afterEach(() => rm(folder, { recursive: true }));

  async function started(): Promise<KnownLogins> {
    const known = new KnownLogins(file, clock, { warn: (_, message) => warnings.push(message) });
    await known.start();
    return known;
  }

  it('are remembered for 30 days by name and network, also after a restart', async () => {
    const first = await started();
    first.add('ann', '192.0.2.0/24');
    assert.equal(first.has('ann', '192.0.2.0/24'), true);
    assert.equal(first.has('ann', '198.51.100.0/24'), false);
    assert.equal(first.has('bob', '192.0.2.0/24'), false);
    await first.stop();
    clock.advance(30 * DAY_MS - 1);
    const second = await started();
    assert.equal(second.has('ann', '192.0.2.0/24'), true);
    clock.advance(1);
    assert.equal(second.has('ann', '192.0.2.0/24'), false);
    await second.stop();
    assert.deepEqual(warnings, []);
  });

  it('are in a file that only its owner may read, written once for many logins and not at each use', async () => {
    const known = await started();
    for (let i = 0; i < 100; i++) known.add(`user${i}`, '192.0.2.0/24');
    await assert.rejects(stat(file), { code: 'ENOENT' });
    clock.advance(10_000);
    await known.stop();
    const { mode, mtimeMs } = await stat(file);
    assert.equal(mode & 0o777, 0o600);
    assert.equal(JSON.parse(await readFile(file, 'utf8')).logins.length, 100);
    clock.advance(DAY_MS / 2);
    known.add('user1', '192.0.2.0/24');
    assert.equal(clock.pending, 0);
    await known.stop();
    assert.equal((await stat(file)).mtimeMs, mtimeMs);
    assert.deepEqual(await readdir(join(folder, 'data')), ['logins.json']);
  });

  it('are at most 10,000: the least recent ones are forgotten', async () => {
    const known = await started();
    for (let i = 0; i < 10_001; i++) {
      clock.advance(1);
      known.add('ann', `2001:db8:0:${i.toString(16)}::/64`);
    }
    assert.equal(known.has('ann', '2001:db8:0:0::/64'), false);
    assert.equal(known.has('ann', '2001:db8:0:1::/64'), true);
    await known.stop();
    const again = await started();
    assert.equal(again.has('ann', '2001:db8:0:1::/64'), true);
    await again.stop();
  });

  for (const content of ['', '{}', 'null', '{"logins":[["ann"]]}', '{"logins":[["ann","n","x"]]}']) {
    it(`are rebuilt, with a warning, if the file is ${content || 'empty'}`, async () => {
      const before = await started();
      before.add('ann', 'n');
      await before.stop();
      await writeFile(file, content);
      const known = await started();
      assert.equal(known.has('ann', 'n'), false);
      known.add('ann', 'n');
      await known.stop();
      assert.equal(warnings.length, 1);
      assert.equal((await started()).has('ann', 'n'), true);
    });
  }

  it('cause a warning if they cannot be written', async () => {
    await writeFile(join(folder, 'data'), '');
    const known = await started().catch(() => null);
    assert.ok(known !== null);
    known.add('ann', 'n');
    await known.stop();
    assert.match(warnings.at(-1) ?? '', /cannot be written/);
  });
});
