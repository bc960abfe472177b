/**
 * `node scripts/journeys.ts [--functions] [--cold]`: runs three journeys against a real server on SQLite and prints how
 * many files and functions of `src` each needs, counted by V8 coverage in the main thread and in each worker thread.
 * Each journey runs three times, and only functions called in all runs count, because timers that happen to fire in one
 * of them do not belong to the journey. `--functions` prints the names; `--cold` counts the first run instead of later
 * ones.
 */
import { parseArgs } from 'node:util';
import { ServerProcess } from '../test/support/server-process.ts';

const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;
const { values: options } = parseArgs({
  options: { functions: { type: 'boolean', default: false }, cold: { type: 'boolean', default: false } },
});

/** How often each journey is run and counted. */
const RUNS = 3;

interface Journey {
  readonly name: string;
  /** Sets up what the journey needs, in queues whose names start with `prefix`. */
  prepare?(prefix: string): Promise<void>;
  run(prefix: string): Promise<void>;
}

const JOURNEYS: readonly Journey[] = [
  {
    name: 'a blocked get and the insert that wakes it',
    async run(prefix) {
      const got = call('GET', `/q/N/${prefix}?to=10000`);
      await pause();
      await call('PUT', `/q/N/${prefix}`, 'body');
      await got;
    },
  },
  {
    name: 'one element through an exchange with a selector',
    async prepare(prefix) {
      await call('PUT', `/x/${prefix}`, {
        src: { ns: 'N', queue: prefix },
        dst: [{ ns: 'N', queue: `${prefix}-to`, selector: 'env => env.msg.hdrs.type === "order"' }],
        consumer: {},
      });
      // The first element compiles the selectors and builds the graph of exchanges.
      await call('PUT', `/q/N/${prefix}`, 'body', { 'x-ks-hdr-type': 'order' });
    },
    async run(prefix) {
      await call('PUT', `/q/N/${prefix}`, 'body', { 'x-ks-hdr-type': 'order' });
      await pause();
    },
  },
  {
    name: "a queue's status",
    async prepare(prefix) {
      await call('PUT', `/q/N/${prefix}`, 'body');
    },
    async run(prefix) {
      await call('GET', `/q/N/${prefix}/status`);
    },
  },
];

/** Called functions of all threads by `file name:offset`. */
type Called = Map<string, { readonly file: string; readonly name: string }>;

interface FunctionCoverage {
  readonly functionName: string;
  readonly ranges: readonly { readonly startOffset: number; readonly count: number }[];
}

type Coverage = readonly { readonly url: string; readonly functions: readonly FunctionCoverage[] }[];

/** Sends an inspector command to one thread of the server. */
type Send = (method: string, params?: object) => Promise<{ readonly result?: Coverage }>;

const server = await ServerProcess.start({ nodeArgs: ['--inspect=127.0.0.1:0'] });
const base = server.url;
const inspector = await connectInspector(/ws:\/\/\S+/.exec(server.output)?.[0] ?? '');
try {
  for (const [at, journey] of JOURNEYS.entries()) {
    if (!options.cold) await run(journey, `warm-${at}`);
    const runs: Called[] = [];
    for (let i = 0; i < (options.cold ? 1 : RUNS); i += 1) {
      runs.push(await run(journey, `counted-${at}-${i}`));
    }
    const [first = new Map(), ...others] = runs;
    print(journey.name, new Map([...first].filter(([key]) => others.every((called) => called.has(key)))));
  }
  inspector.close();
} finally {
  await server.dispose();
}

/** Runs a journey and returns the functions it called. */
async function run(journey: Journey, prefix: string): Promise<Called> {
  await journey.prepare?.(prefix);
  await pause();
  const threads = inspector.threads();
  for (const send of threads) {
    await send('Profiler.enable');
    await send('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
    await send('Profiler.takePreciseCoverage');
  }
  await journey.run(prefix);
  const called: Called = new Map();
  for (const send of threads) {
    const { result = [] } = await send('Profiler.takePreciseCoverage');
    await send('Profiler.stopPreciseCoverage');
    collect(result, called);
  }
  return called;
}

function collect(coverage: Coverage, called: Called): void {
  for (const { url, functions } of coverage) {
    const file = /\/src\/(.+\.ts)$/.exec(url)?.[1];
    if (file === undefined) continue;
    for (const { functionName, ranges } of functions) {
      const [range] = ranges;
      if (range === undefined || range.count === 0) continue;
      called.set(`${file} ${functionName}:${range.startOffset}`, { file, name: functionName });
    }
  }
}

function print(name: string, called: Called): void {
  const byFile = Map.groupBy(called.values(), ({ file }) => file);
  const rooms = Map.groupBy(called.values(), ({ file }) => file.split('/')[0] ?? '');
  const shares = [...rooms].sort(([, a], [, b]) => b.length - a.length);
  console.log(`${name}: ${byFile.size} files, ${called.size} functions`);
  console.log(`  ${shares.map(([room, functions]) => `${room} ${functions.length}`).join(', ')}`);
  if (!options.functions) return;
  for (const [file, functions] of [...byFile].sort(([a], [b]) => (a < b ? -1 : 1))) {
    console.log(`  ${file}: ${functions.map((one) => one.name || 'anonymous').join(', ')}`);
  }
}

async function call(
  method: string,
  path: string,
  body?: string | object,
  headers: Record<string, string> = {},
): Promise<void> {
  const type = typeof body === 'object' ? 'application/json' : 'text/plain';
  const answer = await fetch(base + path, {
    method,
    headers: {
      authorization: AUTHORIZATION,
      ...(body !== undefined && { 'content-type': type }),
      ...headers,
    },
    ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  if (!answer.ok)
    throw new Error(`${method} ${path} was answered with ${answer.status}: ${await answer.text()}`);
  await answer.arrayBuffer();
}

/** Waits longer than the server needs to finish pending work. */
function pause(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 300));
}

/** Connects to the inspectors of the server's main thread and worker threads. */
async function connectInspector(url: string): Promise<{ threads(): Send[]; close(): void }> {
  const socket = new WebSocket(url);
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = reject;
  });
  const pending = new Map<number, (result: { readonly result?: Coverage }) => void>();
  const workers = new Set<string>();
  let last = 0;
  const request = (post: (message: object) => void, method: string, params: object) => {
    last += 1;
    const id = last;
    return new Promise<{ readonly result?: Coverage }>((resolve) => {
      pending.set(id, resolve);
      post({ id, method, params });
    });
  };
  const main: Send = (method, params = {}) =>
    request((message) => socket.send(JSON.stringify(message)), method, params);
  const sendTo =
    (sessionId: string): Send =>
    (method, params = {}) =>
      request(
        (message) =>
          void main('NodeWorker.sendMessageToWorker', { sessionId, message: JSON.stringify(message) }),
        method,
        params,
      );
  const receive = (text: string): void => {
    const { id, method, params, result = {} } = JSON.parse(text);
    if (method === 'NodeWorker.attachedToWorker') workers.add(params.sessionId);
    if (method === 'NodeWorker.detachedFromWorker') workers.delete(params.sessionId);
    if (method === 'NodeWorker.receivedMessageFromWorker') receive(params.message);
    pending.get(id)?.(result);
    pending.delete(id);
  };
  socket.onmessage = ({ data }) => receive(String(data));
  await main('NodeWorker.enable', { waitForDebuggerOnStart: false });
  return { threads: () => [main, ...[...workers].map(sendTo)], close: () => socket.close() };
}
