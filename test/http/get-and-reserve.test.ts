import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { headerOf, jsonOf } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';

interface Pending {
  readonly tid: string;
  readonly since: string;
  readonly cleanup_timeout: string;
  readonly wakeup_timeout: string;
}

describe('Get and reserve', () => {
  const harness = sharedHarness();

  it('a call whose `to` has passed is answered with 504 Queue Pop Timeout and JSON with timeout, tid and since', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const since = new Date(harness().opened.now()).toISOString();
    const waiting = client.get('N', queue, { to: 100, tid: 'me' });
    await harness().waiting(1);
    await harness().passTime(100);
    const answer = await waiting;
    assert.equal(answer.status, 504);
    assert.equal(answer.reason, 'Queue Pop Timeout');
    assert.equal(headerOf(answer, 'content-type'), 'application/json');
    assert.deepEqual(jsonOf(answer), { timeout: true, tid: 'me', since });
  });

  it('a client that accepts problem details receives the timeout as such, with the same members', async () => {
    const headers = { accept: 'application/problem+json' };
    const answer = await harness().client().get('N', harness().queue(), { to: 0, tid: 'me', headers });
    assert.equal(answer.status, 504);
    assert.equal(answer.reason, 'Queue Pop Timeout');
    const problem = jsonOf<Record<string, unknown>>(answer);
    assert.equal(problem.code, 'pop-timeout');
    assert.equal(problem.timeout, true);
    assert.equal(problem.tid, 'me');
  });

  it('to=0 is answered at once, with or without an element, even while the queue is paused', async () => {
    const client = harness().client();
    const queue = harness().queue();
    assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    await client.insert('N', queue, 'a');
    await client.pause('N', queue);
    assert.equal((await client.get('N', queue, { to: 0 })).status, 504);
    await client.resume('N', queue);
    assert.equal((await client.get('N', queue, { to: 0 })).status, 200);
  });

  it('Prefer: wait=N sets `to` in seconds unless `to` is given, and other preferences are ignored', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const prefer = (value: string) => ({ headers: { prefer: value } });
    assert.equal((await client.get('N', queue, prefer('respond-async, wait=0'))).status, 504);
    assert.equal((await client.get('N', queue, { to: 0, ...prefer('wait=5') })).status, 504);
    const waiting = client.get('N', queue, prefer('WAIT = "2"; x=y'));
    await harness().waiting(1);
    await harness().passTime(1_999);
    await harness().waiting(1);
    await harness().passTime(1);
    assert.equal((await waiting).status, 504);
    const forever = client.get('N', queue, prefer('respond-async'));
    await harness().waiting(1);
    await client.insert('N', queue, 'a');
    assert.equal((await forever).status, 200);
  });

  it('a call without tid is assigned one, which is listed, can be cancelled, and is named by a timeout', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = client.get('N', queue);
    await harness().waiting(1);
    const [consumer] = jsonOf<Pending[]>(await client.consumers('N', queue));
    assert.ok(consumer !== undefined && consumer.tid.length > 0);
    await client.cancel('N', queue, consumer.tid);
    assert.equal((await waiting).status, 410);
    const timeout = jsonOf<{ tid: unknown }>(await client.get('N', queue, { to: 0 }));
    assert.equal(typeof timeout.tid, 'string');
  });

  it('several calls may share a tid: each is listed, and a cancel ends all of them', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = [1, 2, 3].map(() => client.get('N', queue, { tid: 'same' }));
    await harness().waiting(3);
    const consumers = jsonOf<Pending[]>(await client.consumers('N', queue));
    assert.deepEqual(
      consumers.map(({ tid }) => tid),
      ['same', 'same', 'same'],
    );
    await client.cancel('N', queue, 'same');
    for (const answer of await Promise.all(waiting)) assert.equal(answer.status, 410);
  });

  it('listing and cancelling consumers include calls of every group', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = ['G1', 'G2'].map((group) => client.get('events', queue, { group, tid: 't' }));
    await harness().waiting(2);
    assert.equal(jsonOf<Pending[]>(await client.consumers('events', queue)).length, 2);
    await client.cancel('events', queue, 't');
    for (const answer of await Promise.all(waiting)) assert.equal(answer.status, 410);
  });

  it('cancelling a tid that does not wait is answered with 200 and an empty body', async () => {
    const answer = await harness().client().cancel('N', harness().queue(), 'nobody');
    assert.equal(answer.status, 200);
    assert.equal(answer.body.length, 0);
  });

  it('consumers of a stream are listed with their group, and exchanges without a user', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = client.get('events', queue, { group: 'G1', tid: 't' });
    await harness().waiting(1);
    const body = JSON.stringify({
      src: { ns: 'events', queue },
      dst: [{ ns: 'N', queue: `${queue}-to` }],
      consumer: {},
    });
    await client.request('PUT', `/x/${queue}`, { body });
    const listed = jsonOf<{ user: string; protocol: string; address: string; group: string }[]>(
      await client.consumers('events', queue),
    );
    assert.deepEqual(
      listed.map(({ user, protocol, address, group }) => [user, protocol, address, group]),
      [
        ['test1', 'http', '127.0.0.1', 'G1'],
        [null, 'exchange', null, 'default'],
      ],
    );
    await client.request('DELETE', `/x/${queue}`);
    await client.cancel('events', queue, 't');
    await waiting;
  });

  it('cleanup_timeout is set if `to` was given, and wakeup_timeout while a scheduled element is awaited', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'later', { delay: 60 });
    const waiting = [client.get('N', queue), client.get('N', queue, { to: 1_000 })];
    await harness().waiting(2);
    const consumers = async () => jsonOf<Pending[]>(await client.consumers('N', queue));
    await until(async () => (await consumers()).every(({ wakeup_timeout }) => wakeup_timeout === 'set'));
    assert.deepEqual((await consumers()).map(({ cleanup_timeout }) => cleanup_timeout).sort(), [
      'set',
      'unset',
    ]);
    await harness().passTime(1_000);
    await harness().waiting(1);
    await harness().passTime(59_000);
    assert.deepEqual((await Promise.all(waiting)).map(({ status }) => status).sort(), [200, 504]);
  });

  it('waiting calls are served in order of arrival, one per insert', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = [];
    for (let i = 0; i < 3; i++) {
      waiting.push(client.get('N', queue));
      await harness().waiting(i + 1);
    }
    for (const body of ['a', 'b', 'c']) await client.insert('N', queue, body);
    const bodies = (await Promise.all(waiting)).map(({ body }) => body.toString());
    assert.deepEqual(bodies, ['a', 'b', 'c']);
  });

  it('a reserve returns x-ks-lease and x-ks-lease-until, with the default lease or the requested one', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    await client.insert('N', queue, 'b');
    const usual = await client.reserve('N', queue);
    const short = await client.reserve('N', queue, { lease: 5_000 });
    const until = (ms: number) => new Date(harness().opened.now() + ms).toISOString();
    assert.equal(headerOf(usual, 'x-ks-lease-until'), until(120_000));
    assert.equal(headerOf(short, 'x-ks-lease-until'), until(5_000));
    assert.notEqual(headerOf(usual, 'x-ks-lease'), headerOf(short, 'x-ks-lease'));
  });

  it('a pop with a lease is rejected, so that a forgotten reserve=1 loses no element', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    assert.equal((await client.get('N', queue, { lease: 1_000 })).status, 400);
    assert.equal(jsonOf<{ size: number }>(await client.status('N', queue)).size, 1);
  });

  it('extend renews the lease and returns its new end', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    const reserved = await client.reserve('N', queue, { lease: 1_000 });
    const id = headerOf(reserved, 'x-ks-id');
    const token = headerOf(reserved, 'x-ks-lease');
    await harness().passTime(900);
    const extended = await client.extend('N', queue, id, { lease: 2_000, token });
    const until = new Date(harness().opened.now() + 2_000).toISOString();
    assert.deepEqual(jsonOf(extended), { until });
    assert.equal(headerOf(extended, 'x-ks-lease-until'), until);
    await harness().passTime(1_999);
    assert.equal((await client.get('N', queue, { to: 0 })).status, 504, 'still reserved');
    const usual = await client.extend('N', queue, id);
    assert.deepEqual(jsonOf(usual), { until: new Date(harness().opened.now() + 120_000).toISOString() });
  });

  it('an expired lease counts as a failed try, and a waiting client receives the element', async () => {
    const client = harness().client();
    const queue = harness().queue();
    await client.insert('N', queue, 'a');
    await client.reserve('N', queue, { lease: 1_000 });
    const waiting = client.get('N', queue);
    await harness().waiting(1);
    await harness().passTime(1_000);
    assert.equal(headerOf(await waiting, 'x-ks-tries'), '1');
  });
});

describe('Get and reserve, limits', () => {
  const harness = sharedHarness();

  it('a call beyond the limit of blocked calls is answered with 429 and Retry-After', async () => {
    const client = harness().client();
    const queue = harness().queue();
    const waiting = Array.from({ length: 100 }, () => client.get('N', queue, { tid: 't' }));
    await harness().waiting(100);
    const rejected = await client.get('N', queue);
    assert.equal(rejected.status, 429);
    assert.equal(headerOf(rejected, 'retry-after'), '1');
    assert.equal(jsonOf<{ code: string }>(rejected).code, 'too-many-consumers');
    await client.cancel('N', queue, 't');
    for (const answer of await Promise.all(waiting)) assert.equal(answer.status, 410);
  });
});
