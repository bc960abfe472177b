import type { Engine } from '../src/engine/engine.ts';
import { open } from '../src/engines/sqlite/index.ts';
import type { NewElement } from '../src/model/element.ts';
import { PLAIN_GROUP } from '../src/model/element.ts';
import { systemClock } from '../src/util/clock.ts';
import { queuePath } from '../test/support/http-client.ts';
import { SERVER_FLAGS } from '../test/support/server-command.ts';
import { ServerProcess } from '../test/support/server-process.ts';
import type { BenchContext } from './scenario.ts';

export const NAMESPACE = 'N';
export const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;
/** The body of every scenario's elements: 46 bytes of JSON. */
export const ELEMENT = '{"order":123456,"item":"q-0042","amount":99.9}';

const DATABASE_URL = 'sqlite:N.db';
const FILL_BATCH = 1000;
/** Concurrent calls: enough to keep the engine's thread busy while the next batch is prepared. */
const FILL_WINDOW = 4;

/**
 * Creates the folder of a server without starting it, so that its data can be filled first.
 * @param url of the namespace's engine; by default the embedded one
 * @param more top-level configuration
 */
export function createServer(
  context: BenchContext,
  url = DATABASE_URL,
  more: Readonly<Record<string, unknown>> = {},
): Promise<ServerProcess> {
  const { profileDir } = context;
  return ServerProcess.create({
    config: {
      http: { users: { test1: 'test1' } },
      namespaces: { [NAMESPACE]: { url } },
      // All load comes from one user.
      waiting: { total: 20_000, perUser: 20_000 },
      ...more,
    },
    nodeArgs: [...SERVER_FLAGS, ...(profileDir === null ? [] : ['--cpu-prof', '--cpu-prof-dir', profileDir])],
  });
}

/** The port of a protocol, according to the server's output. */
export function portOf({ output }: ServerProcess, scheme: 'stomp' | 'amqp'): number {
  const port = new RegExp(` ${scheme}://127\\.0\\.0\\.1:(\\d+)`).exec(output)?.[1];
  if (port === undefined) throw new Error(`The server does not report its ${scheme} port.\n${output}`);
  return Number(port);
}

/** The path of a queue in the bench's namespace. */
export function benchPath(queue: string): string {
  return queuePath(NAMESPACE, queue);
}

/** Opens only the embedded engine, on the file that a server with this data folder would use. */
export async function openEngine(dataDir: string): Promise<Engine> {
  const engine = open({
    url: DATABASE_URL,
    dataDir,
    namespaces: [{ name: NAMESPACE, groups: null, deadLetter: null, retentionMs: null }],
    clock: systemClock,
    dedupWindowMs: 24 * 3600 * 1000,
    settings: {},
    log: { info: () => {}, warn: (fields, message) => console.warn(message, fields) },
  });
  await engine.start();
  return engine;
}

/** This many copies of the bench's element. */
export function elements(count: number): NewElement[] {
  const element: NewElement = {
    body: Buffer.from(ELEMENT),
    contentType: 'application/json',
    contentEncoding: null,
    headers: [],
    matureAt: null,
    delayMs: 0,
    tries: 0,
    groups: [PLAIN_GROUP],
    dedupKey: null,
  };
  return Array.from({ length: count }, () => element);
}

/** Inserts this many elements into a queue, in large batches. */
export async function fill(engine: Engine, queue: string, count: number): Promise<void> {
  const key = { ns: NAMESPACE, name: queue };
  let left = count;
  const worker = async (): Promise<void> => {
    while (left > 0) {
      const batch = Math.min(FILL_BATCH, left);
      left -= batch;
      await engine.storage.insert(key, elements(batch));
    }
  };
  await Promise.all(Array.from({ length: FILL_WINDOW }, worker));
}

/** Fills queues of a server that is not running. */
export async function fillStopped(
  server: ServerProcess,
  queues: readonly string[],
  each: number,
): Promise<void> {
  const engine = await openEngine(server.dataDir);
  try {
    for (const queue of queues) await fill(engine, queue, each);
  } finally {
    await engine.stop();
  }
}
