import { QueueClient } from '../../test/support/http-client.ts';
import type { ServerProcess } from '../../test/support/server-process.ts';
import { createServer, elements, fill, NAMESPACE, openEngine } from '../quayside.ts';
import type { BenchContext } from '../scenario.ts';

/** The contents of the server whose console is measured. */
export interface WorldSize {
  readonly queues: number;
  /** Elements in the largest queue. */
  readonly elements: number;
  readonly exchanges: number;
}

export const LOGIN = { user: 'test1', password: 'test1' };
export const LARGEST = 'largest';
export const DEAD = '__deadletter__';

const WHOLE: WorldSize = { queues: 10_000, elements: 1_000_000, exchanges: 200 };
const SMALL: WorldSize = { queues: 200, elements: 2_000, exchanges: 20 };
/** Concurrent inserts into different queues: each batch of the engine is one fsync. */
const AT_ONCE = 256;
const DEAD_LETTERS = 20;
/** Queues that get an element repeatedly while pages are measured. */
const BUSY = 20;

export function worldSize({ quick }: BenchContext): WorldSize {
  return quick ? SMALL : WHOLE;
}

/** Starts a server with these contents. The caller disposes of it. */
export async function startWorld(
  context: BenchContext,
  size: WorldSize,
  more: Readonly<Record<string, unknown>> = {},
): Promise<ServerProcess> {
  // As in a test run, build the pages from the sources if necessary.
  await import('../../scripts/console.ts');
  const namespace = { url: 'sqlite:N.db', maxQueues: 20_000, deadLetter: { maxTries: 1 } };
  const server = await createServer(context, undefined, { namespaces: { [NAMESPACE]: namespace }, ...more });
  try {
    await fillWorld(server, size);
    await server.start();
    await declareExchanges(server, size);
    await makeDeadLetters(server);
    return server;
  } catch (error) {
    await server.dispose();
    throw error;
  }
}

async function fillWorld({ dataDir }: ServerProcess, { queues, elements: count }: WorldSize): Promise<void> {
  const engine = await openEngine(dataDir);
  try {
    await fill(engine, LARGEST, count);
    const names = Array.from({ length: queues }, (_, i) => queueName(i));
    while (names.length > 0) {
      const some = names.splice(0, AT_ONCE);
      await Promise.all(some.map((name) => engine.storage.insert({ ns: NAMESPACE, name }, elements(3))));
    }
  } finally {
    await engine.stop();
  }
}

/** The exchanges have different sources; every five of them form a chain. */
async function declareExchanges(server: ServerProcess, { exchanges }: WorldSize): Promise<void> {
  const client = new QueueClient({ url: server.url });
  try {
    for (let i = 0; i < exchanges; i += 1) {
      const dst = [0, 1].map((side) => ({
        ns: NAMESPACE,
        queue: i % 5 === 4 ? queueName(i) : `source-${i + 1 + side * 1000}`,
        selector: `env => env.msg.payload.order % 2 === ${side}`,
      }));
      const answer = await client.request('PUT', `/x/route-${String(i).padStart(3, '0')}`, {
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({
          src: { ns: NAMESPACE, queue: `source-${i}` },
          dst,
          consumer: { reserve: true },
        }),
      });
      if (answer.status !== 200 && answer.status !== 201) throw new Error(answer.body.toString());
    }
  } finally {
    client.close();
  }
}

async function makeDeadLetters(server: ServerProcess): Promise<void> {
  const client = new QueueClient({ url: server.url });
  try {
    for (let i = 0; i < DEAD_LETTERS; i += 1) {
      const queue = queueName(i % 5);
      const taken = await client.get(NAMESPACE, queue, { query: { reserve: 'true' } });
      const item = {
        id: taken.headers['x-ks-id'],
        token: taken.headers['x-ks-lease'],
        reason: `code ${i % 3}`,
      };
      await client.insert(NAMESPACE, queue, '1');
      const { status, body } = await client.settleMany(NAMESPACE, queue, { bury: [item] });
      if (status !== 200) throw new Error(body.toString());
    }
  } finally {
    client.close();
  }
}

/** Inserts into some queues repeatedly until `measure` has ended, so that pages have updates to show. */
export async function whileBusy<T>({ url }: ServerProcess, measure: () => Promise<T>): Promise<T> {
  const client = new QueueClient({ url });
  let isOver = false;
  const insertAll = async (): Promise<void> => {
    while (!isOver) {
      const round = new Promise((resolve) => setTimeout(resolve, 250));
      await Promise.all(
        Array.from({ length: BUSY }, (_, i) => client.insert(NAMESPACE, queueName(i), '{"order":1}')),
      );
      await round;
    }
  };
  const load = insertAll();
  try {
    return await measure();
  } finally {
    isOver = true;
    await load;
    client.close();
  }
}

export function queueName(i: number): string {
  return `queue-${String(i).padStart(5, '0')}`;
}
