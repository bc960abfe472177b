import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { plain } from '../support/broker.ts';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import type { ExchangeRecord } from './exchange-fixture.ts';
import { sharedHarness } from './harness.ts';

const LOOPS = 'x-ks-loops';

describe('Loops over HTTP', () => {
  const harness = sharedHarness({
    namespaces: [plain('N'), plain('M')],
    users: [
      { name: 'test1', password: 'test1', rights: null },
      { name: 'maker', password: 'm', rights: { N: ['exchange', 'read', 'write'] } },
    ],
  });
  const create = (client: QueueClient, id: string, src: string, ...dst: string[]): Promise<Answer> => {
    const name = (full: string): object => ({ ns: full.slice(0, 1), queue: full.slice(2) });
    const body = JSON.stringify({ src: name(src), dst: dst.map(name), consumer: {} });
    return client.request('PUT', `/x/${encodeURIComponent(id)}`, { body });
  };
  const recordOf = async (client: QueueClient, id: string): Promise<ExchangeRecord> =>
    jsonOf(await client.request('GET', `/x/${encodeURIComponent(id)}`));

  it('are named in a header of at most 4096 bytes, however long the ids are', async () => {
    const client = harness().client();
    const long = (name: string): string => name + '\u20ac'.repeat(80);
    for (let i = 0; i < 20; i += 1) {
      await create(client, long(`c${i}-`), `N/c${i}`, i === 19 ? 'N/hub' : `N/c${i + 1}`);
    }
    const hub = long('hub-');
    const cut = headerOf(await create(client, hub, 'N/hub', 'N/c0'), LOOPS) ?? '';
    assert.ok(cut.length <= 4096, `${cut.length} bytes`);
    assert.deepEqual(cut.split('>').map(decodeURIComponent), [
      hub,
      long('c0-'),
      long('c1-'),
      long('c2-'),
      long('c3-'),
    ]);
    const near = long('near-');
    for (let i = 0; i < 12; i += 1) await create(client, `${i}${near}`, `N/s${i}`, 'N/near');
    const many = await create(client, near, 'N/near', ...Array.from({ length: 12 }, (_, i) => `N/s${i}`));
    const loops = (headerOf(many, LOOPS) ?? '')
      .split(', ')
      .map((loop) => loop.split('>').map(decodeURIComponent));
    assert.ok((headerOf(many, LOOPS) ?? '').length <= 4096);
    assert.deepEqual(loops[0], [near, `0${near}`, near]);
    const record = await recordOf(client, near);
    assert.equal(record.loops.length, 10);
    assert.deepEqual(record.loops.slice(0, loops.length), loops);
  });

  it('do not name exchanges whose source namespace the user may not see', async () => {
    const all = harness().client();
    const maker = harness().client('maker:m');
    await create(all, 'out', 'N/a', 'M/b');
    await create(all, 'secret', 'M/b', 'N/a');
    assert.deepEqual((await recordOf(all, 'out')).loops, [['out', 'secret', 'out']]);
    assert.deepEqual((await recordOf(maker, 'out')).loops, []);
    for (const form of ['', '?array=1', '?tree=1']) {
      const listed = await maker.request('GET', `/x${form}`);
      assert.ok(listed.body.includes('out') && !listed.body.includes('secret'), form);
    }
    await create(all, 'there', 'M/b', 'N/c');
    const answer = await create(maker, 'here', 'N/c', 'N/a');
    assert.deepEqual([answer.status, answer.headers[LOOPS]], [201, undefined]);
    const again = await create(all, 'here', 'N/c', 'N/a');
    assert.equal(headerOf(again, LOOPS), 'here>out>there>here');
    const own = await create(maker, 'own', 'N/a', 'N/c');
    assert.equal(headerOf(own, LOOPS), 'own>here>own');
  });
});
