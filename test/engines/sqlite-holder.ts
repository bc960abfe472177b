/**
 * A process of its own that opens the database in the folder given, inserts an element, reserves it, prints id and
 * token, and waits to be killed.
 */

import { open } from '../../src/engines/sqlite/index.ts';
import { systemClock } from '../../src/util/clock.ts';
import { newElement } from '../support/elements.ts';

const [folder = '', durability = 'full'] = process.argv.slice(2);
const queue = { ns: 'N', name: 'orders' };
const engine = open({
  url: 'sqlite:test.db',
  dataDir: folder,
  namespaces: [],
  clock: systemClock,
  dedupWindowMs: 1000,
  settings: { durability, ballastBytes: 0, minFreeBytes: 0 },
  log: { info: () => {}, warn: () => {} },
});
await engine.start();
const { ready, reserved } = await engine.storage.counts(queue);
const [id] = await engine.storage.insert(queue, [newElement()]);
const { deliveries } = await engine.storage.take(queue, { group: '', count: 100, leaseMs: 600_000 });
const token = deliveries.find((delivery) => delivery.id === id)?.lease?.token;
process.stdout.write(`${JSON.stringify({ found: ready + reserved, id, token })}\n`);
process.stdin.resume();
