/**
 * A process of its own that opens the database in the folder given, inserts without end, and prints each
 * element's number after its insert was answered: one line per answer. The tests kill it.
 */

import { open } from '../../src/engines/sqlite/index.ts';
import { systemClock } from '../../src/util/clock.ts';
import { newElement } from '../support/elements.ts';

const [folder = '', first = '0'] = process.argv.slice(2);
const engine = open({
  url: 'sqlite:test.db',
  dataDir: folder,
  namespaces: [],
  clock: systemClock,
  dedupWindowMs: 1000,
  settings: { ballastBytes: 0, minFreeBytes: 0 },
  log: { info: () => {}, warn: () => {} },
});
await engine.start();

let next = Number(first);
const insert = async (): Promise<void> => {
  for (;;) {
    const number = next++;
    const body = Buffer.alloc(20 + (number % 400), `${number} `);
    await engine.storage.insert({ ns: 'N', name: 'orders' }, [newElement({ body })]);
    process.stdout.write(`${number}\n`);
  }
};
await Promise.all(Array.from({ length: 8 }, insert));
