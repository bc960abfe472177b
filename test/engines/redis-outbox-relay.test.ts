import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Lanes } from '../../src/engines/redis/calls/lanes.ts';
import { DEADLINE_MS } from '../../src/engines/redis/client/executor.ts';
import { OutboxRelay } from '../../src/engines/redis/outbox-relay.ts';
import { FakeClock } from '../support/clock.ts';

it('The outbox relay of Redis looks again before it brings an entry that it saw long ago, as before a freeze', async () => {
  const clock = new FakeClock();
  const done: string[] = [];
  const lanes = {
    call: async (_queue: unknown, verb: { name: string }) => done.push(verb.name),
  } as unknown as Lanes;
  const log = { info: () => {}, warn: () => {} };
  const lookAgain = async (): Promise<unknown> => done.push('look');
  const parts = { lanes, clock, log, dedupWindowMs: 0 };
  const relay = new OutboxRelay(parts, { lookAgain, onLateArrival: () => {} });
  const source = { ns: 'n', name: 'source' };
  const reply = {
    parcels: [{ id: Buffer.alloc(24), to: 'n/target', packed: Buffer.alloc(0) }],
    writes: true,
    deadlineAt: clock.monotonic() + DEADLINE_MS,
  };
  clock.advance(2 * DEADLINE_MS);
  await relay.deliver(source, reply);
  assert.equal(done.shift(), 'accept', 'an entry that waited for its turn');
  clock.advance(1);
  done.length = 0;
  await relay.deliver(source, reply);
  clock.advance(1_000);
  assert.deepEqual(done, ['look']);
  relay.stop();
});
