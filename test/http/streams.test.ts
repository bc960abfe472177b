import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { jsonOf } from '../support/http-client.ts';
import { codeOf } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

interface Sizes {
  readonly size: number;
  readonly schedSize: number;
  readonly resvSize: number;
  readonly totalSize: number;
}

describe('Streams', () => {
  const harness = sharedHarness();

  it('names in groups are separated by commas and trimmed, and duplicates count once', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('events', queue, 'a', { groups: ' G1 ,G2,G1' });
    assert.equal((await client.get('events', queue, { group: 'G1' })).status, 200);
    assert.equal((await client.get('events', queue, { group: 'G1', to: 0 })).status, 504);
    assert.equal((await client.get('events', queue, { group: 'G2' })).status, 200);
  });

  it('names in JSON are trimmed like those in queries', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const lines = [{ text: 'a', groups: [' G1', 'G1 ', ' G2 '] }];
    assert.equal((await client.insertLines('events', queue, lines)).status, 200);
    const count = { action: 'count', source: { ns: 'events', queue }, where: { group: ' G1 ' } };
    const counted = await client.request('POST', '/operations', { body: JSON.stringify(count) });
    assert.equal(jsonOf<{ where: { group: string } }>(counted).where.group, 'G1');
    const takes: [string, object, string][] = [
      [`/q/events/${queue}/take`, { group: ' G1 ' }, ' G1 '],
      ['/take', { from: [{ ns: 'events', queue, group: ' G2 ' }] }, ' G2 '],
    ];
    for (const [path, body, group] of takes) {
      const json = JSON.stringify({ ...body, reserve: true, to: 0 });
      const taken = await client.request('POST', path, { body: json });
      assert.equal(taken.status, 200, path);
      const [element] = taken.body.toString().trim().split('\n');
      const { id } = JSON.parse(element ?? '') as { id: string };
      const items = [{ id, group }];
      const { results } = jsonOf<{ results: { outcome: string }[] }>(
        await client.settleMany('events', queue, { commit: items }),
      );
      assert.equal(results[0]?.outcome, 'done', path);
    }
    const { totalSize } = jsonOf<Sizes>(await client.status('events', queue));
    assert.equal(totalSize, 0);
    const time = new Date(harness().opened.clock.now()).toISOString();
    const line = { id: 'x', text: 'b', mature: 1, insertedAt: time, group: ' G1 ' };
    const path = `/q/events/${queue}/import`;
    assert.equal((await client.request('POST', path, { body: JSON.stringify(line) })).status, 200);
    assert.equal((await client.get('events', queue, { group: 'G1', to: 0 })).body.toString(), 'b');
  });

  it('an insert may name at most 64 groups of at most 64 characters', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const names = (count: number) =>
      Array.from({ length: count }, (_, i) => `g${i}`.padEnd(64, 'x')).join(',');
    assert.equal((await client.insert('events', queue, 'a', { groups: names(64) })).status, 200);
    assert.equal((await client.insert('events', queue, 'a', { groups: names(65) })).status, 400);
    assert.equal((await client.insert('events', queue, 'a', { groups: 'x'.repeat(65) })).status, 400);
    assert.equal(jsonOf<Sizes>(await client.status('events', queue)).totalSize, 1);
  });

  it('a line of an insert of many may name as many different groups, and duplicates count once there as well', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const insert = (groups: readonly string[]) =>
      client.insertLines('events', queue, [{ text: 'a', groups }]);
    const names = Array.from({ length: 64 }, (_, i) => `g${i}`);
    assert.equal((await insert([...names, ' g0', 'g1 '])).status, 200);
    const tooMany = await insert([...names, 'g64']);
    assert.equal(tooMany.status, 400);
    assert.match(tooMany.body.toString(), /Line 1: 65 consumer groups are too many/);
    const { groups } = jsonOf<{ groups: object }>(await client.status('events', queue));
    assert.equal(Object.keys(groups).length, 64);
  });

  it('a group that the insert does not name never receives the element', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = client.get('events', queue, { group: 'other', tid: 't' });
    await harness().waiting(1);
    await client.insert('events', queue, 'a', { groups: 'G1' });
    assert.equal((await client.get('events', queue, { group: 'G1' })).status, 200);
    await client.cancel('events', queue, 't');
    assert.equal((await waiting).status, 410);
  });

  it('groups and group on a plain queue are rejected with 400', async () => {
    const client = harness().client();
    const queue = harness().queue();
    assert.equal((await client.insert('N', queue, 'a', { groups: 'G1' })).status, 400);
    assert.equal((await client.get('N', queue, { group: 'G1', to: 0 })).status, 400);
    assert.equal((await client.status('N', queue, { query: { group: 'G1' } })).status, 400);
    assert.equal(jsonOf<Sizes>(await client.status('N', queue)).totalSize, 0);
  });

  it('status counts elements and the deliveries of each group, or of one group only', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('events', queue, 'a', { groups: 'G1,G2' });
    await client.insert('events', queue, 'b', { groups: 'G1' });
    await client.reserve('events', queue, { group: 'G1' });
    const whole = jsonOf<Sizes & { groups: Record<string, Sizes> }>(await client.status('events', queue));
    assert.equal(whole.totalSize, 2);
    assert.equal(whole.groups.G1?.size, 1);
    assert.equal(whole.groups.G1?.resvSize, 1);
    assert.equal(whole.groups.G2?.size, 1);
    const one = jsonOf<Sizes & { groups?: unknown }>(
      await client.status('events', queue, { query: { group: 'G2' } }),
    );
    assert.equal(one.size, 1);
    assert.equal(one.totalSize, 1);
    assert.equal(one.groups, undefined);
  });
});

describe('A stream with the maximum number of groups', () => {
  const namespaces = [plain('events', { groups: ['default'], maxGroups: 3 })];
  const harness = sharedHarness({ namespaces });

  it('rejects an insert that names another group, and does not store it', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('events', queue, 'a', { groups: 'G1,G2,G3' });
    const rejected = await client.insert('events', queue, 'b', { groups: 'G1,G4' });
    assert.deepEqual([rejected.status, codeOf(rejected)], [507, 'too-many-groups']);
    assert.equal((await client.insert('events', queue, 'c', { groups: 'G1,default' })).status, 200);
    const { groups, totalSize } = jsonOf<Sizes & { groups: object }>(await client.status('events', queue));
    assert.deepEqual([totalSize, Object.keys(groups).sort()], [2, ['G1', 'G2', 'G3', 'default']]);
  });

  it('accepts a new group once an old one is empty', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('events', queue, 'a', { groups: 'G1,G2,G3' });
    assert.equal((await client.get('events', queue, { group: 'G2' })).status, 200);
    assert.equal((await client.insert('events', queue, 'b', { groups: 'G4' })).status, 200);
    assert.equal((await client.get('events', queue, { group: 'G4' })).status, 200);
  });
});
