import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { jsonOf, queuePath } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { type Harness, sharedHarness } from './harness.ts';
import { AUTHORIZATION, lastRequest, RawConnection, rawRequest } from './raw.ts';

const USERS = ['test1', 'other'].map((name) => ({ name, password: name, rights: null }));

/** Delays reads of queue names until `release` is called, and counts them. */
function holdNames({ opened }: Harness): { asked: () => number; release: () => void } {
  const { storage } = opened.engine;
  const queues = storage.queues.bind(storage);
  const held = Promise.withResolvers<void>();
  let asked = 0;
  storage.queues = async (ns) => {
    asked += 1;
    await held.promise;
    return queues(ns);
  };
  return {
    asked: () => asked,
    release: () => {
      storage.queues = queues;
      held.resolve();
    },
  };
}

describe('Listings under load', () => {
  const harness = sharedHarness({ users: USERS, maxQueues: 3_000 });

  it('read the sizes of at most 32 queues at once', async () => {
    const client = harness().client();
    for (let i = 0; i < 300; i++) await client.insert('jobs', `queue ${i}`, 'a');
    const { storage } = harness().opened.engine;
    const sizes = storage.counts.bind(storage);
    let atOnce = 0;
    let most = 0;
    storage.counts = async (queue, group) => {
      atOnce += 1;
      most = Math.max(most, atOnce);
      const found = await sizes(queue, group);
      atOnce -= 1;
      return found;
    };
    const listed = Object.keys(jsonOf<object>(await client.queues('jobs')));
    storage.counts = sizes;
    assert.equal(listed.length, 300);
    assert.ok(most <= 32, `${most} sizes were read at once`);
  });

  it('write a long response in chunks, with turns of the event loop in between', async () => {
    const client = harness().client();
    for (let i = 0; i < 1_000; i++) await client.insert('hidden', `queue ${i}`, 'a');
    let turns = 0;
    let isOver = false;
    const count = async (): Promise<void> => {
      while (!isOver) {
        await turn();
        turns += 1;
      }
    };
    const counting = count();
    const seen = harness().server.requestTimes.get('listQueues');
    const before = seen?.count ?? 0;
    const answer = await client.queues('hidden');
    isOver = true;
    await counting;
    assert.equal(Object.keys(jsonOf<object>(answer)).length, 1_000);
    assert.equal(Number(answer.headers['content-length']), answer.body.length);
    assert.equal(seen?.count, before + 1, 'the duration is recorded in the metrics');
    assert.ok(turns > answer.body.length / 65_536, `${turns} turns for ${answer.body.length} bytes`);
  });

  it('run one at a time per user, and concurrently for different users', async () => {
    const names = holdNames(harness());
    const own = ['N', 'jobs', 'hidden'].map((ns) => harness().client().queues(ns));
    await until(() => names.asked() >= 1);
    const others = harness().client('other:other').queues('events');
    await until(() => names.asked() >= 2);
    assert.equal((await harness().client().insert('N', 'while', 'a')).status, 200, 'inserts do not wait');
    assert.equal(names.asked(), 2);
    names.release();
    for (const answer of await Promise.all([...own, others])) assert.equal(answer.status, 200);
  });

  it('that wait are limited to 16 per user, and one more is answered with 503', async () => {
    const names = holdNames(harness());
    const client = harness().client();
    const answers = Array.from({ length: 18 }, () => client.queues('N'));
    assert.equal((await Promise.race(answers)).status, 503);
    names.release();
    const statuses = (await Promise.all(answers)).map(({ status }) => status);
    assert.deepEqual(statuses.toSorted(), [...Array.from({ length: 17 }, () => 200), 503]);
    assert.equal((await client.queues('N')).status, 200);
  });

  it('of a HEAD pipelined behind a blocked get start after it and delay no other listing', async (t) => {
    const names = holdNames(harness());
    const queue = harness().queue();
    const path = queuePath('N', '').slice(0, -1);
    const connection = await RawConnection.open(harness().port);
    t.after(() => connection.destroy());
    const get = rawRequest([`GET ${queuePath('N', queue)} HTTP/1.1`, 'Host: test', AUTHORIZATION]);
    connection.send(Buffer.concat([get, lastRequest('HEAD', path)]));
    await harness().waiting(1);
    const client = harness().client();
    assert.equal((await client.insert('N', 'other', 'a')).status, 200);
    const asked = names.asked();
    names.release();
    assert.equal(asked, 0, 'the HEAD has not started');
    assert.equal((await client.queues('N')).status, 200);
    await client.insert('N', queue, 'a');
    await connection.untilClosed();
    assert.equal(connection.received.match(/HTTP\/1\.1 200 /g)?.length, 2);
  });

  it('end when their client disconnects, so that the next one starts', async () => {
    const names = holdNames(harness());
    const path = queuePath('N', '').slice(0, -1);
    const gone = await RawConnection.open(harness().port);
    gone.send(rawRequest([`GET ${path} HTTP/1.1`, 'Host: test', AUTHORIZATION]));
    await until(() => names.asked() === 1);
    const next = harness().client().queues('N');
    gone.destroy();
    names.release();
    assert.equal((await next).status, 200);
  });
});
