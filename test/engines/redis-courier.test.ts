import assert from 'node:assert/strict';
import { it } from 'node:test';
import type { Lane } from '../../src/engines/redis/calls/lane.ts';
import type { Lanes } from '../../src/engines/redis/calls/lanes.ts';
import { DEADLINE_MS } from '../../src/engines/redis/client/commands.ts';
import { Courier } from '../../src/engines/redis/courier.ts';
import { FakeClock } from '../support/clock.ts';

it('A courier of Redis looks again before it brings a parcel that it saw long ago, as before a freeze', async () => {
  const clock = new FakeClock();
  const done: string[] = [];
  const lanes = {
    get: () => ({}),
    call: async (_queue: unknown, verb: { name: string }) => done.push(verb.name),
  } as unknown as Lanes;
  const log = { info: () => {}, warn: () => {} };
  const courier = new Courier({ lanes, clock, log, dedupWindowMs: 0 }, async () => done.push('look'));
  const source = { queue: { ns: 'n', name: 'source' } } as unknown as Lane;
  const reply = {
    parcels: [{ id: Buffer.alloc(24), to: 'n/target', packed: Buffer.alloc(0) }],
    writes: true,
    deadlineAt: clock.monotonic() + DEADLINE_MS,
  };
  clock.advance(2 * DEADLINE_MS);
  await courier.deliver(source, reply, []);
  assert.equal(done.shift(), 'accept', 'a parcel that waited for its turn');
  clock.advance(1);
  done.length = 0;
  await courier.deliver(source, reply, []);
  clock.advance(1_000);
  assert.deepEqual(done, ['look']);
  courier.stop();
});
