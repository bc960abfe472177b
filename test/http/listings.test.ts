import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { sharedHarness } from './harness.ts';

type Record_ = Readonly<Record<string, unknown>>;

describe('Listings and status', () => {
  const harness = sharedHarness();

  it('stats count put, get, reserve, commit, rollback and deadletter, all starting at 0', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const stats = async () => jsonOf<{ stats: unknown }>(await client.status('N', queue)).stats;
    assert.deepEqual(await stats(), { put: 0, get: 0, reserve: 0, commit: 0, rollback: 0, deadletter: 0 });
    for (const body of ['a', 'b']) await client.insert('N', queue, body);
    const id = headerOf(await client.reserve('N', queue), 'x-ks-id');
    await client.rollback('N', queue, id);
    const again = headerOf(await client.reserve('N', queue), 'x-ks-id');
    await client.commit('N', queue, again);
    await client.get('N', queue);
    assert.deepEqual(await stats(), { put: 2, get: 1, reserve: 2, commit: 1, rollback: 1, deadletter: 0 });
  });

  it('stats of a stream also count per group', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('events', queue, 'a', { groups: 'G1,G2' });
    await client.get('events', queue, { group: 'G1' });
    const { stats } = jsonOf<{ stats: { put: number; get: number; groups: Record<string, Record_> } }>(
      await client.status('events', queue),
    );
    assert.equal(stats.put, 1);
    assert.equal(stats.get, 1);
    assert.equal(stats.groups.G1?.get, 1);
    assert.equal(stats.groups.G2?.get, 0);
    assert.equal(stats.groups.G2?.put, 1);
  });

  it('array=1 returns each record in data, with an id queue@namespace', async () => {
    const client = harness().client();
    const queue = 'with @ and / in it';
    await client.insert('jobs', queue, 'a');
    const { data } = jsonOf<{ data: Record_[] }>(await client.queues('jobs', { query: { array: 'yes' } }));
    const own = data.find(({ id }) => id === `${queue}@jobs`);
    assert.deepEqual(
      { ...own, id: undefined },
      { ...jsonOf<Record_>(await client.status('jobs', queue)), id: undefined },
    );
  });

  it('tree=1 returns a folder per namespace, with its queues and their counts as children', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('hidden', queue, 'a');
    await client.insert('hidden', queue, 'b');
    const id = headerOf(await client.reserve('hidden', queue), 'x-ks-id');
    await client.rollback('hidden', queue, id, { delay: 60_000 });
    const tree = jsonOf(await client.queues('hidden', { query: { tree: 1 } }));
    assert.deepEqual(tree, [
      {
        title: 'hidden',
        key: 'hidden',
        folder: true,
        expanded: true,
        children: [
          {
            title: queue,
            key: `${queue}@hidden`,
            put: 2,
            get: 0,
            reserve: 1,
            commit: 0,
            rollback: 1,
            size: 1,
            total: 2,
            sched: 1,
            resv: 0,
            next_t: new Date(harness().opened.now()).toISOString(),
            paused: false,
          },
        ],
      },
    ]);
  });

  it('array and tree together are rejected with 400', async () => {
    for (const path of ['/q', '/q/N']) {
      const answer = await harness()
        .client()
        .request('GET', path, { query: { array: 1, tree: 1 } });
      assert.equal(answer.status, 400);
    }
  });

  it('reload=1 reads the pause flags from the engine again', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const { definitions } = harness().opened.engine;
    await definitions.put('queue', JSON.stringify(['N', queue]), { paused: true }, 'any');
    assert.equal((await client.queues('N', { query: { reload: 1 } })).status, 200);
    assert.equal((await client.paused('N', queue)).body.toString(), 'true');
  });

  it('a queue named __proto__ is listed like any other', async () => {
    const client = harness().client();
    await client.insert('N', '__proto__', 'a');
    const text = (await client.queues('N')).body.toString();
    assert.match(text, /"__proto__":\{"type":/);
    assert.equal((await client.get('N', '__proto__')).body.toString(), 'a');
  });

  it('all queues are listed, even if there are more than are read at once', async () => {
    const client = harness().client();
    for (let i = 0; i < 150; i++) await client.insert('hidden', `many ${i}`, 'x');
    const names = Object.keys(jsonOf<object>(await client.queues('hidden')));
    assert.equal(names.filter((name) => name.startsWith('many ')).length, 150);
  });
});
