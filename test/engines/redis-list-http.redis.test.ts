import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { sharedHarness } from '../http/harness.ts';
import { plain } from '../support/broker.ts';
import { type Answer, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { REDIS_LIST } from './redis.ts';

/** What a list cannot do, and the methods that its path still has. */
const REFUSED: readonly [what: string, allow: string, call: (client: QueueClient) => Promise<Answer>][] = [
  ['insert with a delay', 'GET, POST', (client) => client.insert('N', 'q', 'a', { delay: 5 })],
  ['insert with a maturity', 'GET, POST', (client) => client.insert('N', 'q', 'a', { mature: 4e9 })],
  ['reserve', 'PUT, POST', (client) => client.reserve('N', 'q', { to: 0 })],
  ['commit', '', (client) => client.commit('N', 'q', 'any')],
  ['rollback', '', (client) => client.rollback('N', 'q', 'any')],
  ['extend', '', (client) => client.extend('N', 'q', 'any', { lease: 1000 })],
  ['remove', '', (client) => client.remove('N', 'q', 'any')],
];

describe('HTTP over the list variant of Redis', () => {
  const harness = sharedHarness({ engine: REDIS_LIST, namespaces: [plain('N')] });

  it('answers what was inserted as it came, with its headers and tries', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const headers = { 'x-ks-hdr-colour': 'red' };
    const options = { contentType: 'text/odd', headers, tries: 2 };
    const inserted = jsonOf<{ id: string }>(await client.insert('N', queue, 'bytes', options));
    const answer = await client.get('N', queue, { to: 0 });
    assert.equal(answer.status, 200);
    assert.equal(answer.body.toString(), 'bytes');
    assert.equal(headerOf(answer, 'content-type'), 'text/odd');
    assert.equal(headerOf(answer, 'x-ks-hdr-colour'), 'red');
    assert.equal(headerOf(answer, 'x-ks-tries'), '2');
    assert.equal(headerOf(answer, 'x-ks-id'), inserted.id);
  });

  it('wakes a blocked get', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const blocked = client.get('N', queue);
    await harness().waiting(1);
    await client.insert('N', queue, 'woken');
    assert.equal((await blocked).body.toString(), 'woken');
  });

  for (const [what, allow, call] of REFUSED) {
    it(`${what}: 405 not-supported, and nothing changes`, async () => {
      const client = harness().client();
      const answer = await call(client);
      assert.equal(answer.status, 405);
      assert.equal(headerOf(answer, 'allow'), allow);
      assert.equal(jsonOf<{ code: string }>(answer).code, 'not-supported');
      assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', 'q')).totalSize, 0);
    });
  }

  it('says so in the capabilities of its status', async () => {
    const status = await harness().client().status('N', harness().queue());
    const { capabilities } = jsonOf<{ capabilities: object }>(status);
    assert.deepEqual(capabilities, {
      sched: false,
      reserve: false,
      pipeline: false,
      tape: false,
      remove: false,
    });
  });
});
