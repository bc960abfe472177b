import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { type Answer, elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';

function codeOf(answer: Answer): string {
  return jsonOf<{ code: string }>(answer).code;
}

async function reserved(
  client: QueueClient,
  ns: string,
  queue: string,
): Promise<{ id: string; token: string }> {
  const answer = await client.reserve(ns, queue);
  return { id: headerOf(answer, 'x-ks-id'), token: headerOf(answer, 'x-ks-lease') };
}

describe('Commit, rollback, release, extend', () => {
  const harness = sharedHarness();

  for (const verb of ['commit', 'rollback', 'release', 'extend'] as const) {
    it(`${verb} of an unknown element is answered with 404`, async () => {
      const answer = await harness().client()[verb]('N', harness().queue(), 'nope');
      assert.equal(answer.status, 404);
      assert.equal(codeOf(answer), 'element-not-found');
    });

    it(`${verb} of an element of another queue is answered with 404 and changes nothing`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const { id } = await reserved(client, 'N', queue);
      assert.equal((await client[verb]('N', harness().queue(), id)).status, 404);
      assert.equal(jsonOf<{ resvSize: number }>(await client.status('N', queue)).resvSize, 1);
    });

    it(`${verb} of an element that is not reserved is answered with 404`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a'));
      const answer = await client[verb]('N', queue, id);
      assert.equal(answer.status, 404);
      assert.equal(codeOf(answer), 'not-reserved');
    });

    it(`${verb} with the token of an older reservation is answered with 409 and does not affect the new one`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const old = await reserved(client, 'N', queue);
      await client.rollback('N', queue, old.id);
      await reserved(client, 'N', queue);
      const answer = await client[verb]('N', queue, old.id, { token: old.token });
      assert.equal(answer.status, 409);
      assert.equal(codeOf(answer), 'lease-lost');
      assert.equal(jsonOf<{ resvSize: number }>(await client.status('N', queue)).resvSize, 1);
    });

    it(`${verb} on a plain queue with a group is answered with 404 and changes nothing`, async () => {
      const client = harness().client();
      const queue = harness().queue();
      await client.insert('N', queue, 'a');
      const { id } = await reserved(client, 'N', queue);
      assert.equal((await client[verb]('N', queue, id, { group: 'G1' })).status, 404);
      assert.equal((await client.commit('N', queue, id)).status, 200);
    });
  }

  it('an element whose lease expired can still be committed until it is reserved again', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const { id, token } = await reserved(client, 'N', queue);
    await harness().passTime(121_000);
    await until(async () => jsonOf<{ size: number }>(await client.status('N', queue)).size === 1);
    assert.equal((await client.commit('N', queue, id, { token })).status, 200);
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
  });

  it('release counts no try and returns the element to its place', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const body of ['a', 'b']) await client.insert('jobs', queue, body);
    // More often than maxTries of the queue.
    for (let i = 0; i < 10; i++) {
      await harness().passTime(1000);
      const { id, token } = await reserved(client, 'jobs', queue);
      const answer = await client.release('jobs', queue, id, { token });
      assert.deepEqual([answer.status, answer.body.toString()], [200, '{}']);
    }
    const { size, stats } = jsonOf<{ size: number; stats: Record<string, number> }>(
      await client.status('jobs', queue),
    );
    assert.deepEqual([size, stats.reserve, stats.rollback, stats.deadletter], [2, 0, 0, 0]);
    const first = await client.get('jobs', queue);
    assert.deepEqual([first.body.toString(), headerOf(first, 'x-ks-tries')], ['a', '0']);
  });

  it('release serves a waiting consumer', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const { id } = await reserved(client, 'N', queue);
    const waiting = client.get('N', queue);
    await harness().waiting(1);
    assert.equal((await client.release('N', queue, id)).status, 200);
    assert.equal((await waiting).body.toString(), 'a');
  });

  it('all settlements, inserts and removals are accepted on a paused queue', async () => {
    const client = harness().client();
    const queue = harness().queue();
    for (const body of ['a', 'b', 'c']) await client.insert('N', queue, body);
    const first = await reserved(client, 'N', queue);
    const second = await reserved(client, 'N', queue);
    const third = await reserved(client, 'N', queue);
    await client.pause('N', queue);
    assert.equal((await client.extend('N', queue, first.id)).status, 200);
    assert.equal((await client.commit('N', queue, first.id)).status, 200);
    assert.equal((await client.rollback('N', queue, second.id)).status, 200);
    assert.equal((await client.release('N', queue, third.id)).status, 200);
    const inserted = await client.insert('N', queue, 'd');
    assert.equal(inserted.status, 200);
    for (const { id } of [second, third]) assert.equal((await client.remove('N', queue, id)).status, 204);
    const waiting = client.get('N', queue, { to: 500 });
    await harness().waiting(1);
    await harness().passTime(500);
    assert.equal((await waiting).status, 504, 'the timeout runs while paused');
    await client.resume('N', queue);
    assert.equal((await client.get('N', queue)).body.toString(), 'd');
  });
});

describe('Remove', () => {
  const harness = sharedHarness();

  it('of a reserved element is answered with 409, and the element stays', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const { id } = await reserved(client, 'N', queue);
    const answer = await client.remove('N', queue, id);
    assert.equal(answer.status, 409);
    assert.equal(codeOf(answer), 'element-reserved');
    assert.equal((await client.commit('N', queue, id)).status, 200);
  });

  it('of an unknown element is answered with 404', async () => {
    const answer = await harness().client().remove('N', harness().queue(), 'nope');
    assert.equal(answer.status, 404);
    assert.equal(codeOf(answer), 'element-not-found');
  });

  it('works for a scheduled element, too', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const { id } = jsonOf<{ id: string }>(await client.insert('N', queue, 'a', { delay: 60 }));
    assert.equal((await client.remove('N', queue, id)).status, 204);
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('N', queue)).totalSize, 0);
  });
});

describe('Reservations of several users', () => {
  const users = ['ann', 'ben'].map((name) => ({ name, password: 'pw', rights: null }));
  const harness = sharedHarness({ users });

  for (const verb of ['commit', 'rollback', 'release', 'extend'] as const) {
    it(`${verb} of another user's reservation requires its token, which the same user may omit`, async () => {
      const [ann, ben] = [harness().client('ann:pw'), harness().client('ben:pw')];
      const queue = harness().queue();
      await ann.insert('N', queue, 'a');
      const { id, token } = await reserved(ann, 'N', queue);
      const answer = await ben[verb]('N', queue, id);
      assert.equal(answer.status, 409);
      assert.equal(codeOf(answer), 'token-required');
      assert.equal(jsonOf<{ resvSize: number }>(await ben.status('N', queue)).resvSize, 1);
      assert.equal((await ben[verb]('N', queue, id, { token: 'a-guess' })).status, 409);
      assert.equal((await ben.extend('N', queue, id, { token })).status, 200);
      assert.equal((await ann[verb]('N', queue, id)).status, 200);
    });
  }

  it('belong to the user of each waiting reserve, even if one insert batch serves several', async () => {
    const [ann, ben] = [harness().client('ann:pw'), harness().client('ben:pw')];
    const queue = harness().queue();
    const waiting = [reserved(ann, 'N', queue), reserved(ben, 'N', queue), reserved(ann, 'N', queue)];
    await harness().waiting(3);
    await Promise.all(['a', 'b', 'c'].map((body) => ann.insert('N', queue, body)));
    const [first, second, third] = await Promise.all(waiting);
    for (const [client, other, of] of [
      [ann, ben, first],
      [ben, ann, second],
      [ann, ben, third],
    ] as const) {
      assert.equal((await other.commit('N', queue, of?.id ?? '')).status, 409);
      assert.equal((await client.commit('N', queue, of?.id ?? '')).status, 200);
    }
  });

  it('can be committed without a token only by their user, even after the lease has expired', async () => {
    const [ann, ben] = [harness().client('ann:pw'), harness().client('ben:pw')];
    const queue = harness().queue();
    await ann.insert('N', queue, 'a');
    const id = headerOf(await ann.reserve('N', queue, { lease: 1000 }), 'x-ks-id');
    await harness().passTime(1001);
    assert.equal(codeOf(await ben.commit('N', queue, id)), 'token-required');
    assert.equal((await ann.commit('N', queue, id)).status, 200);
  });
});

describe('Dead letter', () => {
  const harness = sharedHarness();

  it('carries the original id of an element whose last lease expired', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const { id } = jsonOf<{ id: string }>(await client.insert('jobs', queue, 'poison', { tries: 2 }));
    const dead = client.get('jobs', '__deadletter__');
    await harness().waiting(1);
    await client.reserve('jobs', queue, { lease: 1000 });
    await harness().passTime(1001);
    const answer = await dead;
    assert.equal(headerOf(answer, 'x-ks-origin-id'), id);
    assert.equal(elementHeadersOf(answer).get('x-dl-tries'), '3');
  });

  it('is reported by a rollback with Prefer: return=representation', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('jobs', queue, 'poison', { tries: 1 });
    const rollback = async (prefer?: string): Promise<[unknown, string | undefined]> => {
      const { id } = await reserved(client, 'jobs', queue);
      const answer = await client.rollback('jobs', queue, id, prefer ? { headers: { prefer } } : {});
      assert.equal(answer.status, 200);
      return [jsonOf(answer), answer.headers['preference-applied']];
    };
    const applied = 'return=representation';
    assert.deepEqual(await rollback('wait=1, return=representation'), [{ state: 'waiting' }, applied]);
    assert.deepEqual(await rollback('return=representation'), [{ state: 'dead-lettered' }, applied]);
    await client.insert('jobs', queue, 'poison', { tries: 2 });
    assert.deepEqual(await rollback(), [{}, undefined]);
    for (let i = 0; i < 2; i++) await client.get('jobs', '__deadletter__', { to: 0 });
  });

  it('results from the failed try that reaches maxTries, and has headers that name its source', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('jobs', queue, 'poison', { tries: 1, headers: { 'x-ks-hdr-a': 'b' } });
    const dead = client.get('jobs', '__deadletter__');
    await harness().waiting(1);
    for (let i = 0; i < 2; i++) {
      const { id } = await reserved(client, 'jobs', queue);
      await client.rollback('jobs', queue, id);
    }
    const answer = await dead;
    assert.equal(answer.body.toString(), 'poison');
    const headers = elementHeadersOf(answer);
    assert.equal(headers.get('a'), 'b');
    assert.equal(headers.get('x-dl-from-queue'), queue);
    assert.equal(headers.get('x-dl-tries'), '3');
    assert.ok(headers.has('x-dl-at'));
    assert.equal(jsonOf<{ totalSize: number }>(await client.status('jobs', queue)).totalSize, 0);
  });
});
