import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { type HeldInserts, holdInserts } from '../support/held-inserts.ts';
import { jsonOf, type QueueClient } from '../support/http-client.ts';
import { collectGarbage } from '../support/memory.ts';
import { longestTurn } from '../support/turns.ts';
import { until } from '../support/until.ts';
import { sharedHarness } from './harness.ts';

const USERS = ['test1', 'flood', 'second'].map((name) => ({ name, password: name, rights: null }));
const BODY = 'x'.repeat(1_000_000);
/** The bytes that one user may have at the engine, plus one element. */
const MAX_BYTES = 6_000_000;

describe('Inserts of several users', () => {
  const harness = sharedHarness({ users: USERS });
  const as = (name: string): QueueClient => harness().client(`${name}:${name}`);
  let held: HeldInserts;
  beforeEach(() => {
    held = holdInserts(harness().opened.engine.storage);
  });
  afterEach(() => held.release());

  /** Gives the server time to read what was sent before, by many consecutive requests. */
  const letServerRead = async (client: QueueClient): Promise<void> => {
    for (let i = 0; i < 100; i += 1) await client.status('N', 'none');
  };

  it('reach the engine in turn: 40 MB of one user delay no other user by more than a few MB', async () => {
    const [flood, second, honest] = [as('flood'), as('second'), as('test1')];
    const flooding = Array.from({ length: 40 }, () => flood.insert('N', 'flooded', BODY));
    await until(() => held.total >= 4_000_000);
    await letServerRead(honest);
    assert.ok(held.total < MAX_BYTES, `${held.total} bytes of one user are at the engine`);
    const inserted = honest.insert('N', 'honest', 'small');
    const many = second.request('POST', '/q/N/second/elements', {
      body: `${JSON.stringify({ text: BODY.slice(0, 900_000) })}\n`,
      headers: { 'content-type': 'application/x-ndjson' },
    });
    await until(() => held.bytes.has('honest') && held.bytes.has('second'));
    assert.ok(held.total < MAX_BYTES + 1_000_000, `${held.total} bytes are at the engine`);
    held.release();
    const answers = await Promise.all([inserted, many, ...flooding]);
    assert.deepEqual(
      answers.filter(({ status }) => status !== 200).map(({ status, body }) => `${status} ${body}`),
      [],
    );
    const { size } = jsonOf<{ size: number }>(await honest.status('N', 'flooded'));
    assert.equal(size, 40);
  });

  it('of one user keep their order, even small ones behind large ones', async () => {
    const flood = as('flood');
    const sent: Promise<unknown>[] = [];
    for (let i = 0; i < 6; i += 1) {
      sent.push(flood.insert('N', 'ordered', BODY));
      await until(() => held.total >= Math.min(i + 1, 5) * 1_000_000);
    }
    await letServerRead(flood);
    sent.push(flood.insert('N', 'ordered', 'last'));
    await letServerRead(flood);
    held.release();
    await Promise.all(sent);
    for (let i = 0; i < 6; i += 1) assert.equal((await flood.get('N', 'ordered')).body.length, 1_000_000);
    assert.equal((await flood.get('N', 'ordered')).body.toString(), 'last');
  });

  it('pass to the engine what remains of their 4.5 s when their turn comes', async () => {
    const flood = as('flood');
    const flooding = Array.from({ length: 10 }, () => flood.insert('N', 'timed', BODY));
    await until(() => held.total >= 4_000_000);
    await letServerRead(flood);
    assert.deepEqual(new Set(held.leftMs), new Set([4_500]));
    await harness().passTime(3_000);
    held.release();
    held = holdInserts(harness().opened.engine.storage);
    await until(() => held.total >= 4_000_000);
    assert.deepEqual(new Set(held.leftMs), new Set([1_500]));
    held.release();
    await Promise.all(flooding);
  });

  it('are rejected with overloaded, and not stored, if their turn does not come within 3.5 s', async () => {
    const flood = as('flood');
    const flooding = Array.from({ length: 10 }, () => flood.insert('N', 'late', BODY));
    await until(() => held.total >= 4_000_000);
    await letServerRead(flood);
    await harness().passTime(3_500);
    held.release();
    const answers = await Promise.all(flooding);
    const rejected = answers.filter(({ status }) => status === 503);
    assert.equal(rejected.length, 5);
    for (const answer of rejected) {
      assert.equal(jsonOf<{ code: string }>(answer).code, 'overloaded');
      assert.equal(answer.headers['retry-after'], '1');
    }
    const { size } = jsonOf<{ size: number }>(await flood.status('N', 'late'));
    assert.equal(size, 5);
  });
});

describe('An insert of many', () => {
  const harness = sharedHarness();

  it('whose parts are nearly all headers serves other requests while it is read', async () => {
    const head = `\r\n--b\r\n${'a:\r\n'.repeat(3_900)}\r\n`;
    const body = `${head.repeat(400)}\r\n--b--\r\n`;
    await collectGarbage();
    const share = await longestTurn(async () => {
      const type = 'multipart/mixed; boundary=b';
      const answer = await harness().client().insertMany('N', 'heads', body, type);
      assert.equal(jsonOf<{ ids: string[] }>(answer).ids.length, 400);
    });
    assert.ok(share < 0.25, `one turn of the event loop took ${share} of the time`);
  });
});
