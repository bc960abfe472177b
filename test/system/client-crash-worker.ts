/**
 * A program with a worker of the client library, which a test kills. Prints `handled ID VALUE` when a handler has ended
 * and `committed ID VALUE` when the commit was acknowledged. SIGTERM stops it.
 */
import { writeSync } from 'node:fs';
import { setImmediate as turn } from 'node:timers/promises';
import { Quayside, Worker } from '../../src/client/index.ts';

const [url = '', queue = '', leaseMs = ''] = process.argv.slice(2);

/** Writes synchronously, so that a kill loses no printed line. */
const print = (line: string): void => void writeSync(1, `${line}\n`);

// Short retry delays, because the test waits for each restart.
await using quayside = new Quayside({
  url,
  auth: { user: 'test1', password: 'test1' },
  retry: { maxMs: 200 },
});
const worker = new Worker(
  quayside.queue(`N/${queue}`),
  async ({ id, data }) => {
    await turn();
    print(`handled ${id} ${data}`);
  },
  { concurrency: 16, leaseMs: Number(leaseMs) },
);
worker.on('committed', ({ id, data }) => print(`committed ${id} ${data}`));
// Errors are expected while the server is killed.
worker.on('error', () => {});
worker.start();
await new Promise((resolve) => process.once('SIGTERM', resolve));
await worker.stop();
