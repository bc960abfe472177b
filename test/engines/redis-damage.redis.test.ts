import assert from 'node:assert/strict';
import { afterEach, beforeEach, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { Keys } from '../../src/engines/redis/keys.ts';
import type { Delivery } from '../../src/model/element.ts';
import type { QueueKey } from '../../src/model/names.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { redisCli } from '../support/redis-servers.ts';
import { freshPrefix, redisEngine, standalone } from './redis.ts';

const QUEUE: QueueKey = { ns: 'jobs', name: 'damaged' };
const LEASE_MS = 60_000;
const RESERVE = { group: '', count: 10, leaseMs: LEASE_MS };
const POP = { group: '', count: 10, leaseMs: null };

describe('A queue on Redis that holds something which this version did not write', () => {
  const clock = new FakeClock();
  let port = '';
  let engine: Engine;
  let keys: { readonly hash: string; readonly order: string };

  beforeEach(async () => {
    const { url, port: own } = await standalone();
    port = String(own);
    const prefix = freshPrefix();
    keys = new Keys(prefix).queue(QUEUE);
    const namespaces = [plain('jobs', { deadLetter: { maxTries: 1, queue: 'dead' } })];
    engine = redisEngine({ url, namespaces, clock, prefix });
    await engine.start();
  });

  afterEach(() => engine.stop());

  /** Runs Lua on the queue's hash (`KEYS[1]`) and sorted set (`KEYS[2]`). */
  const edit = (lua: string, ...args: string[]): string =>
    redisCli('-p', port, 'EVAL', lua, '2', keys.hash, keys.order, ...args).trim();

  const numberOf = ({ id }: Delivery): string => String(Number.parseInt(id.slice(12), 32));

  /** Adds the member of a lease that ends at `till` and has no record, or a record with another end. */
  const addStaleLease = (delivery: Delivery, till: number): string =>
    edit(
      `return redis.call('ZADD', KEYS[2], 0, 'l\\0\\0' .. struct.pack('>I6I6', ARGV[1], ARGV[2]))`,
      String(till),
      numberOf(delivery),
    );

  const leaseMembers = (): string => edit(`return redis.call('ZLEXCOUNT', KEYS[2], '[l', '(m')`);

  async function reserved(...bodies: string[]): Promise<Delivery[]> {
    await engine.storage.insert(QUEUE, newElements(...bodies));
    return (await engine.storage.take(QUEUE, RESERVE)).deliveries;
  }

  const commit = async ({ id }: Delivery, token: string | null): Promise<string | undefined> =>
    (await engine.storage.commit(QUEUE, [{ id, group: '', token }]))[0];

  it('removes an expired lease without a delivery, and remains usable', async () => {
    const [first] = await reserved('first');
    assert.ok(first);
    addStaleLease(first, clock.now() + 1);
    assert.equal(await commit(first, first.lease?.token ?? null), 'done');
    clock.advance(2);
    const sizes = await engine.storage.sizes(QUEUE);
    assert.deepEqual([sizes.ready, sizes.scheduled, sizes.reserved], [0, 0, 0]);
    assert.equal(leaseMembers(), '0');
    await engine.storage.insert(QUEUE, newElements('second'));
    assert.deepEqual(bodyTexts((await engine.storage.take(QUEUE, POP)).deliveries), ['second']);
  });

  it('keeps a reservation when an expired lease of the same delivery is removed', async () => {
    const [held] = await reserved('held');
    assert.ok(held);
    addStaleLease(held, clock.now() + 1);
    clock.advance(2);
    await engine.storage.sweep();
    assert.deepEqual((await engine.storage.take(QUEUE, POP)).deliveries, []);
    assert.equal((await engine.storage.sizes({ ns: 'jobs', name: 'dead' })).ready, 0, 'no try was counted');
    assert.equal(leaseMembers(), '1');
    assert.equal(await commit(held, held.lease?.token ?? null), 'done');
    assert.equal(leaseMembers(), '0');
  });

  it('lists reservations without a lease that has no delivery', async () => {
    const [gone, held] = await reserved('gone', 'held');
    assert.ok(gone && held);
    addStaleLease(gone, clock.now() + 2 * LEASE_MS);
    await commit(gone, null);
    const { deliveries } = await engine.storage.browse(QUEUE, {
      group: '',
      state: 'reserved',
      after: null,
      limit: 10,
    });
    assert.deepEqual(bodyTexts(deliveries), ['held']);
  });

  it('commits a reservation whose record has no token only without a token', async () => {
    const [held] = await reserved('held');
    assert.ok(held);
    // The record as it was before tokens had 128 bits: maturity(6) tries(4) token(6) until(6).
    const shorten = `local field = 'd\\0\\0' .. struct.pack('>I6', ARGV[1])
      local maturity, tries, token, till = struct.unpack('>I6I4c16I6', redis.call('HGET', KEYS[1], field))
      return redis.call('HSET', KEYS[1], field, struct.pack('>I6I4I6I6', maturity, tries, 7, till))`;
    assert.equal(edit(shorten, numberOf(held)), '0');
    for (const token of ['not one of ours', 'A'.repeat(22), held.lease?.token ?? '']) {
      assert.equal(await commit(held, token), 'lease-lost', token);
    }
    assert.equal(await commit(held, null), 'done');
  });
});
