import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { type HeldTakes, holdScans, holdTakes } from '../support/held-takes.ts';
import { type Answer, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';

const USERS = ['test1', 'flood'].map((name) => ({ name, password: name, rights: null }));
const BODY = 'x'.repeat(1_000_000);
const QUEUES = 20;
/** Takes of 1 MB that one user may have at the engine: the limit is 4 MiB, which the last take may exceed. */
const AT_ONCE = 5;

describe('Takes of large elements by several users', () => {
  const harness = sharedHarness({ users: USERS });
  const as = (name: string): QueueClient => harness().client(`${name}:${name}`);
  let held: HeldTakes;
  let flood: QueueClient;
  let honest: QueueClient;
  let queues: readonly string[];
  beforeEach(async () => {
    flood = as('flood');
    honest = as('test1');
    queues = Array.from({ length: QUEUES }, () => harness().queue());
    for (const queue of queues) await flood.insert('N', queue, BODY);
    held = holdTakes(harness().opened.engine.storage, (queue) => queues.includes(queue));
  });
  afterEach(async () => {
    held.release();
    for (const queue of queues) await flood.get('N', queue, { to: 0 });
  });

  const large = (): number => held.queues.filter((queue) => queues.includes(queue)).length;
  /** Gives the server time to read what was sent before, by many consecutive requests. */
  const letServerRead = async (): Promise<void> => {
    for (let i = 0; i < 50; i += 1) await honest.status('N', 'none');
  };
  const takeAll = async (options = {}): Promise<Promise<Answer>[]> => {
    const taking = queues.map((queue) => flood.get('N', queue, { to: 0, ...options }));
    await until(() => large() >= AT_ONCE);
    await letServerRead();
    return taking;
  };
  const statuses = async (taking: readonly Promise<Answer>[]): Promise<number[]> =>
    (await Promise.all(taking)).map(({ status }) => status);

  it('reach the engine in turn: 20 MB of one user delay no other user by more than a few MB', async () => {
    const taking = await takeAll();
    assert.equal(large(), AT_ONCE);
    // Small and large takes of another user are not delayed.
    const queue = harness().queue();
    await honest.insert('N', queue, 'small');
    assert.equal((await honest.get('N', queue, { to: 0 })).status, 200);
    await honest.insert('N', queue, BODY);
    assert.equal((await honest.get('N', queue, { to: 0 })).body.length, BODY.length);
    held.release();
    assert.deepEqual(new Set(await statuses(taking)), new Set([200]));
  });

  it('delay no other user in the same queue, and no small take of the same user', async () => {
    const taking = await takeAll();
    const other = honest.get('N', queues.at(-1) ?? '', { to: 0 });
    await until(() => large() === AT_ONCE + 1);
    const small = harness().queue();
    await flood.insert('N', small, 'small');
    assert.equal((await flood.get('N', small, { to: 0 })).status, 200);
    held.release();
    assert.equal((await other).body.length, BODY.length);
    assert.deepEqual((await statuses(taking)).toSorted(), [...Array(QUEUES - 1).fill(200), 504]);
  });

  it('take nothing for a client that disconnects before its turn', async () => {
    const gone = new AbortController();
    const taking = await takeAll();
    const queue = queues.at(-1) ?? '';
    const leaving = flood.get('N', queue, { to: 0, signal: gone.signal });
    await letServerRead();
    gone.abort();
    await assert.rejects(leaving);
    held.release();
    assert.deepEqual(new Set(await statuses(taking)), new Set([200]));
  });

  it('free the turns of clients that disconnect before them', async () => {
    const [first, last] = [queues.slice(0, -AT_ONCE), queues.slice(-AT_ONCE)];
    const getAll = (from: readonly string[], options = {}) =>
      from.map((queue) => flood.get('N', queue, { to: 0, ...options }));
    const gone = new AbortController();
    const taking = getAll(first);
    await until(() => large() >= AT_ONCE);
    const leaving = getAll(last, { signal: gone.signal });
    await letServerRead();
    gone.abort();
    for (const one of leaving) await assert.rejects(one);
    await letServerRead();
    held.release();
    assert.deepEqual(new Set(await statuses(taking)), new Set([200]));
    held = holdTakes(harness().opened.engine.storage, (queue) => queues.includes(queue));
    const later = getAll(last);
    await letServerRead();
    assert.equal(large(), AT_ONCE, 'all turns of the user are there again');
    held.release();
    assert.deepEqual(new Set(await statuses(later)), new Set([200]));
  });

  it('pass to the engine what remains of their 4.5 s when their turn comes', async () => {
    const taking = await takeAll();
    await harness().passTime(3_000);
    held.release();
    held = holdTakes(harness().opened.engine.storage, () => false);
    await statuses(taking);
    assert.deepEqual(new Set(held.leftMs), new Set([1_500]));
  });

  it('are rejected with overloaded if their turn does not come within 3.5 s or a shorter `to`', async () => {
    const taking = await takeAll();
    const blocked = flood.get('N', queues.at(-1) ?? '', { to: 2_000 });
    await letServerRead();
    await harness().passTime(3_500);
    const answers = [await blocked, ...(await Promise.all(taking.slice(AT_ONCE)))];
    for (const answer of answers) {
      assert.equal(answer.status, 503);
      assert.equal(jsonOf<{ code: string }>(answer).code, 'overloaded');
      assert.equal(answer.headers['retry-after'], '1');
    }
    held.release();
    assert.deepEqual(new Set(await statuses(taking.slice(0, AT_ONCE))), new Set([200]));
  });

  it('wait for their turn as long as they would wait for an element', async () => {
    const taking = await takeAll({ to: 60_000 });
    await harness().passTime(10_000);
    held.release();
    assert.deepEqual(new Set(await statuses(taking)), new Set([200]));
  });
});

describe('Reads of large elements by several users', () => {
  const harness = sharedHarness({ users: USERS });
  const as = (name: string): QueueClient => harness().client(`${name}:${name}`);
  let held: HeldTakes;
  let flood: QueueClient;
  let honest: QueueClient;
  let queue: string;
  let path: string;
  beforeEach(async () => {
    flood = as('flood');
    honest = as('test1');
    queue = harness().queue();
    const { id } = jsonOf<{ id: string }>(await flood.insert('N', queue, BODY));
    path = `/q/N/${queue}/elements/${id}`;
    held = holdScans(harness().opened.engine.storage, (name) => name === queue);
  });
  afterEach(() => held.release());

  const readAll = async (): Promise<Promise<Answer>[]> => {
    const reading = Array.from({ length: QUEUES }, () => flood.request('GET', path));
    await until(() => held.queues.length >= AT_ONCE);
    for (let i = 0; i < 50; i += 1) await honest.status('N', 'none');
    return reading;
  };

  it('reach the engine in turn: 20 MB that one user reads by id delay no other user by more than a few MB', async () => {
    const reading = await readAll();
    assert.equal(held.queues.length, AT_ONCE);
    const other = honest.request('GET', path);
    await until(() => held.queues.length === AT_ONCE + 1);
    const small = harness().queue();
    const { id } = jsonOf<{ id: string }>(await flood.insert('N', small, 'small'));
    assert.equal((await flood.request('GET', `/q/N/${small}/elements/${id}`)).body.toString(), 'small');
    held.release();
    assert.equal((await other).body.length, BODY.length);
    for (const { status, body } of await Promise.all(reading)) {
      assert.equal(status, 200);
      assert.equal(body.length, BODY.length);
    }
  });

  it('share their turns with the pages that the user reads', async () => {
    const reading = await readAll();
    const page = flood.request('GET', `/q/N/${queue}/elements`, { query: { body: 'full' } });
    for (let i = 0; i < 50; i += 1) await honest.status('N', 'none');
    assert.equal(held.queues.length, AT_ONCE);
    held.release();
    assert.equal((await page).status, 200);
    await Promise.all(reading);
  });

  it('pass to the engine what remains of their 4.5 s, or are rejected with overloaded after 3.5 s', async () => {
    const reading = await readAll();
    await harness().passTime(3_000);
    const late = Array.from({ length: QUEUES }, () => flood.request('GET', path));
    for (let i = 0; i < 50; i += 1) await honest.status('N', 'none');
    await harness().passTime(500);
    for (const answer of await Promise.all(reading.slice(AT_ONCE))) {
      assert.equal(answer.status, 503);
      assert.equal(jsonOf<{ code: string }>(answer).code, 'overloaded');
    }
    held.release();
    const rest = holdScans(harness().opened.engine.storage, () => false);
    for (const { status } of await Promise.all([...reading.slice(0, AT_ONCE), ...late])) {
      assert.equal(status, 200);
    }
    assert.deepEqual(new Set(rest.leftMs), new Set([4_000]));
    rest.release();
  });
});
