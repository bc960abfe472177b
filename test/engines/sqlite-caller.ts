/**
 * A program that opens the database in the given folder and calls it until the test kills it. The mode selects what it
 * calls and prints:
 * - `random SEED`: random calls without end, one at a time; prints a line before and after each call
 * - `script CALLS`: the same for the calls of a comma-separated list, once
 * - `insert FIRST`: inserts numbered elements without end, eight at a time; prints each number after its insert was
 *   acknowledged
 * - `hold DURABILITY`: inserts an element and reserves it; prints how many elements it found before, the id and the
 *   token
 */

import type { SettleAction } from '../../src/engine/storage.ts';
import { open } from '../../src/engines/sqlite/index.ts';
import type { Delivery } from '../../src/model/element.ts';
import { systemClock } from '../../src/util/clock.ts';
import { newElement } from '../support/elements.ts';
import { seededRandom } from '../support/random.ts';
import type { DeliveryRef } from '../support/settle.ts';

const [folder = '', mode = 'insert', argument = '0'] = process.argv.slice(2);
const random = seededRandom(mode === 'random' ? Number(argument) : 1);
const queue = { ns: 'N', name: 'orders' };
const engine = open({
  url: 'sqlite:test.db',
  dataDir: folder,
  namespaces: [],
  clock: systemClock,
  dedupWindowMs: 1000,
  settings: { durability: mode === 'hold' ? argument : 'full', ballastBytes: 0, minFreeBytes: 0 },
  log: { info: () => {}, warn: () => {} },
});
await engine.start();
const { storage } = engine;

const held: DeliveryRef[] = [];
let popped: Delivery | null = null;

/** `calling`: the call may be applied from now on. `done`: it was acknowledged. */
export interface Line {
  readonly is: 'calling' | 'done';
  readonly call: string;
  readonly id?: string | undefined;
  readonly token?: string | undefined;
}

function print(line: Line): Promise<void> {
  return write(JSON.stringify(line));
}

/**
 * Resolves when the operating system has the line. If the test gets no processor time to read, the system's buffer
 * fills up, and later lines stay in this process and are lost with SIGKILL. Without waiting, calls would be made and
 * acknowledged that the test does not know of.
 */
function write(line: string): Promise<void> {
  return new Promise((resolve) => process.stdout.write(`${line}\n`, () => resolve()));
}

async function settle(call: string, action: SettleAction): Promise<void> {
  const [ref] = held.splice(random.between(0, held.length - 1), 1);
  if (ref === undefined) return;
  await print({ is: 'calling', call, id: ref.id });
  const [result] = await storage.settle([{ ...ref, queue, from: 'reserved', action }]);
  if (result?.outcome !== 'done') throw new Error(`${call}: ${result?.outcome}`);
  await print({ is: 'done', call, id: ref.id });
  if (call === 'extend') held.push(ref);
}

async function take(call: 'pop' | 'reserve'): Promise<void> {
  await print({ is: 'calling', call });
  const leaseMs = call === 'pop' ? null : 600_000;
  const [delivery] = (await storage.take(queue, { group: '', count: 1, leaseMs })).deliveries;
  const token = delivery?.lease?.token;
  if (delivery !== undefined) await print({ is: 'done', call, id: delivery.id, token });
  if (delivery === undefined) return;
  if (token === undefined) popped = delivery;
  else held.push({ id: delivery.id, group: '', token });
}

const calls: Readonly<Record<string, () => Promise<void>>> = {
  insert: async () => {
    await print({ is: 'calling', call: 'insert' });
    const [id] = await storage.insert(queue, [
      newElement({ body: Buffer.alloc(random.pick([10, 900, 3000])) }),
    ]);
    await print({ is: 'done', call: 'insert', id });
  },
  pop: () => take('pop'),
  reserve: () => take('reserve'),
  commit: () => settle('commit', { kind: 'finish' }),
  release: () => settle('release', { kind: 'release', delayMs: 0, countTry: false }),
  rollback: () => settle('rollback', { kind: 'release', delayMs: 0, countTry: true }),
  extend: () => settle('extend', { kind: 'extend', leaseMs: 700_000 }),
  undo: async () => {
    if (popped === null) return;
    const { id } = popped;
    await print({ is: 'calling', call: 'undo', id });
    await storage.undoTake(queue, [popped]);
    popped = null;
    await print({ is: 'done', call: 'undo', id });
  },
};

const modes: Readonly<Record<string, () => Promise<void>>> = {
  random: async () => {
    for (let i = 0; i < 20; i++) await calls.insert?.();
    const any = [...Object.values(calls), () => take('reserve')];
    for (;;) await random.pick(any)();
  },
  script: async () => {
    for (const call of argument.split(',')) await calls[call]?.();
    await print({ is: 'done', call: 'script' });
  },
  insert: async () => {
    let next = Number(argument);
    const insertAll = async (): Promise<void> => {
      for (;;) {
        const number = next++;
        const body = Buffer.alloc(20 + (number % 400), `${number} `);
        await storage.insert(queue, [newElement({ body })]);
        await write(String(number));
      }
    };
    await Promise.all(Array.from({ length: 8 }, insertAll));
  },
  hold: async () => {
    const { ready, reserved } = await storage.counts(queue);
    const [id] = await storage.insert(queue, [newElement()]);
    const { deliveries } = await storage.take(queue, { group: '', count: 100, leaseMs: 600_000 });
    const token = deliveries.find((delivery) => delivery.id === id)?.lease?.token;
    await write(JSON.stringify({ found: ready + reserved, id, token }));
  },
};

await modes[mode]?.();
process.stdin.resume();
