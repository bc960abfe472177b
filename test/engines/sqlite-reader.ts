import { FINISH } from '../../src/broker/queue.ts';
/**
 * A program that serves a namespace from memory and, as a user with the right `read` may, reads ever new names while
 * one queue is used. Prints the contents of that queue. Tests run it with little memory.
 */

import type { Queue } from '../../src/broker/queue.ts';
import { QuaysideError } from '../../src/model/errors.ts';
import { brokerOn, plain } from '../support/broker.ts';
import { newElement } from '../support/elements.ts';
import { MEMORY_SQLITE } from './sqlite.ts';

const AT_ONCE = 250;
const NAME_BYTES = 255;

const [names = '0'] = process.argv.slice(2);
const policy = plain('N');
const opened = await MEMORY_SQLITE.open({ namespaces: [policy] });
const broker = brokerOn([{ policy, engine: opened.engine }], opened.clock);
await broker.start();
const namespace = broker.namespace(policy.name);

/** Accepts the error that is expected for a name without a queue. @throws any other error */
function isNotThere(error: unknown): void {
  if (!(error instanceof QuaysideError) || error.code !== 'element-not-found') throw error;
}

function get(queue: Queue): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = { group: null, leaseMs: null, timeoutMs: 0, tid: null, owner: null };
    queue.get(request, { deliver: () => reject(new Error('an element of nowhere')), end: () => resolve() });
  });
}

const READS: readonly ((queue: Queue) => Promise<unknown>)[] = [
  ({ key }) => namespace.visit(key.name).status(null),
  get,
  (queue) => queue.settle({ id: 'x', group: null, token: null }, FINISH).catch(isNotThere),
  async (queue) => queue.cancel('nobody', null),
];

function read(number: number): Promise<unknown> | undefined {
  const name = `${number} `.padEnd(NAME_BYTES, 'x');
  return READS[number % READS.length]?.(namespace.visit(name));
}

const used = namespace.queue('used');
for (let asked = 0; asked < Number(names); asked += AT_ONCE) {
  const reads = Array.from({ length: AT_ONCE }, (_, i) => read(asked + i));
  await Promise.all([used.insert([newElement()]), ...reads]);
}
const { size, stats } = await namespace.visit('used').status(null);
const queues = await namespace.queueNames();
process.stdout.write(`${JSON.stringify({ size, put: stats.put, queues })}\n`);
await broker.stop();
await opened.close();
