/**
 * `node bench/undeliverable-here.ts [elements] [bytes]`: how long a node on in-memory SQLite takes to move this many
 * reserved elements to the dead-letter queue, one by one, as an AMQP client requests with `modified` and
 * `undeliverable-here`.
 */
import { AmqpNode } from '../test/amqp/node.ts';
import { until } from '../test/support/until.ts';

const [count = 2048, bytes = 1024] = process.argv.slice(2).map(Number);
const node = await AmqpNode.start();
const body = Buffer.alloc(bytes, 'x');
for (let left = count; left > 0; left -= 256) {
  const batch = Array.from({ length: Math.min(256, left) }, () => ({ body }));
  await node.insertInto('D', 'a', ...batch);
}
const receiver = await (await node.client()).receiver('D/a', {}, count);
const deliveries = [];
for (let i = 0; i < count; i += 1) deliveries.push((await receiver.next()).delivery);
const startedAt = performance.now();
const cpu = process.cpuUsage();
for (const delivery of deliveries) delivery.modified({ undeliverable_here: true });
await until(() => node.server.counts.unacknowledged === 0);
while ((await node.sizes('__deadletter__', 'D')).ready < count);
const { user, system } = process.cpuUsage(cpu);
const seconds = (performance.now() - startedAt) / 1000;
console.log(
  `${count} elements of ${bytes} bytes: ${seconds.toFixed(2)} s, ${((user + system) / 1e6).toFixed(2)} s of processor time`,
);
await node.stop();
