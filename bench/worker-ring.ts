import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';
import { median } from './scenario.ts';

/**
 * The cost of a batch between the main thread and SQLite's worker, by `postMessage` and by a ring buffer in shared
 * memory (`docs/adr/0012-worker-hand-off.md`). The worker only reads each call and returns an id. Run it with `node
 * bench/worker-ring.ts`; both ways alternate, and each line is one measurement of {@link MEASURED_MS}.
 */

const MEASURED_MS = 2000;
const WARM_UP_MS = 300;
const ROUNDS = 4;
/** Calls per batch, and batches in flight. */
const LOADS = [
  [1, 1],
  [20, 1],
  [20, 4],
  [64, 4],
] as const;

const LONE_BATCHES = 100;
const LONE_PAUSE_MS = 20;

const BODY = Buffer.alloc(46, 'x');
const TYPE = 'application/json';
const ID = '01J8ZQ5Y3N4K6W2V8R7T9PABCD';
const DUE_AT = 1_732_000_000_000.5;
/** Operation, queue, moment, tries, type, groups, length of the body. */
const VALUES_A_CALL = 7;

/**
 * Each slot holds one batch. Its first eight bytes are the number of calls. The slots start after the counter's page.
 */
const SLOTS = 16;
const SLOT_BYTES = 65_536;
const FIRST_SLOT = 4096;
const RING_BYTES = FIRST_SLOT + SLOTS * SLOT_BYTES;

interface Rings {
  readonly requests: SharedArrayBuffer;
  readonly replies: SharedArrayBuffer;
}

interface Message {
  readonly values: (string | number)[];
  readonly bytes: Uint8Array<ArrayBuffer>;
}

/** One of the two ways: sends a batch, and calls `onReply` for each reply until it is stopped. */
interface Way {
  send(calls: number): void;
  start(onReply: () => void): void;
}

const slotAt = (batch: number): number => FIRST_SLOT + (batch % SLOTS) * SLOT_BYTES;

function byMessages(worker: Worker): Way {
  return {
    send: (calls) => {
      const values: (string | number)[] = [];
      const bytes = new Uint8Array(BODY.length * calls);
      for (let call = 0; call < calls; call += 1) {
        values.push(3, 7, DUE_AT, 0, TYPE, '', BODY.length);
        bytes.set(BODY, call * BODY.length);
      }
      worker.postMessage({ values, bytes } satisfies Message, [bytes.buffer]);
    },
    start: (onReply) => worker.on('message', onReply),
  };
}

function byRing({ requests, replies }: Rings): Way {
  const sentCount = new Int32Array(requests);
  const repliedCount = new Int32Array(replies);
  const bytes = Buffer.from(requests);
  const numbers = new Float64Array(requests);
  const read = Buffer.from(replies);
  let sent = 0;
  let seen = 0;
  const readReply = (): void => {
    let at = slotAt(seen);
    const calls = read.readInt32LE(at);
    at += 8;
    for (let call = 0; call < calls; call += 1) {
      const length = read[at + 1] ?? 0;
      read.toString('latin1', at + 2, at + 2 + length);
      at += 2 + length;
    }
  };
  return {
    send: (calls) => {
      sent += 1;
      let at = slotAt(sent);
      bytes.writeInt32LE(calls, at);
      at += 8;
      for (let call = 0; call < calls; call += 1) {
        numbers.set([3, 7, DUE_AT, 0], at >> 3);
        at += 32;
        bytes[at] = TYPE.length;
        bytes[at + 1] = BODY.length;
        at += 2;
        at += bytes.write(TYPE, at, 'latin1');
        bytes.set(BODY, at);
        at = (at + BODY.length + 7) & ~7;
      }
      Atomics.store(sentCount, 0, sent);
      Atomics.notify(sentCount, 0);
    },
    start: async (onReply) => {
      for (;;) {
        const waiting = Atomics.waitAsync(repliedCount, 0, seen);
        if (waiting.async) await waiting.value;
        while (seen !== Atomics.load(repliedCount, 0)) {
          seen += 1;
          readReply();
          onReply();
        }
        // Lets a turn of the event loop pass, as a server that serves its sockets does.
        await new Promise((resolve) => setImmediate(resolve));
      }
    },
  };
}

type WayName = 'messages' | 'ring';

function open(name: WayName): { worker: Worker; way: Way } {
  const rings: Rings = {
    requests: new SharedArrayBuffer(RING_BYTES),
    replies: new SharedArrayBuffer(RING_BYTES),
  };
  const worker = new Worker(new URL(import.meta.url), { workerData: { name, ...rings } });
  return { worker, way: name === 'messages' ? byMessages(worker) : byRing(rings) };
}

async function measure(name: WayName, calls: number, inFlight: number): Promise<void> {
  const { worker, way } = open(name);
  let done = 0;
  let isOver = false;
  way.start(() => {
    done += 1;
    if (!isOver) way.send(calls);
  });
  for (let batch = 0; batch < inFlight; batch += 1) way.send(calls);
  await new Promise((resolve) => setTimeout(resolve, WARM_UP_MS));
  const [before, from] = [process.threadCpuUsage(), performance.now()];
  done = 0;
  await new Promise((resolve) => setTimeout(resolve, MEASURED_MS));
  const { user, system } = process.threadCpuUsage(before);
  const rate = Math.round((done / (performance.now() - from)) * 1000);
  const cost = ((user + system) / done).toFixed(1);
  isOver = true;
  await worker.terminate();
  console.log(
    `${name}, ${calls} calls, ${inFlight} in flight: ${rate} batches/s, ${cost} µs of the main thread each`,
  );
}

/** Measures the processor time of both threads while idle, and how long a single batch of one call takes. */
async function measureIdle(name: WayName): Promise<void> {
  const { worker, way } = open(name);
  let onReply = (): void => {};
  way.start(() => onReply());
  const roundTrip = async (): Promise<number> => {
    const from = performance.now();
    await new Promise<void>((resolve) => {
      onReply = resolve;
      way.send(1);
    });
    return performance.now() - from;
  };
  await roundTrip();
  await new Promise((resolve) => setTimeout(resolve, WARM_UP_MS));
  const before = process.cpuUsage();
  await new Promise((resolve) => setTimeout(resolve, MEASURED_MS));
  const { user, system } = process.cpuUsage(before);
  const times: number[] = [];
  for (let batch = 0; batch < LONE_BATCHES; batch += 1) {
    await new Promise((resolve) => setTimeout(resolve, LONE_PAUSE_MS));
    times.push(await roundTrip());
  }
  await worker.terminate();
  console.log(
    `${name}, idle: ${Math.round((user + system) / (MEASURED_MS / 1000))} µs of a processor each second; a lone batch is back after ${Math.round(median(times) * 1000)} µs`,
  );
}

function serveMessages(): void {
  parentPort?.on('message', ({ values, bytes }: Message) => {
    const out: (string | number)[] = [];
    let at = 0;
    for (let value = VALUES_A_CALL - 1; value < values.length; value += VALUES_A_CALL) {
      const length = Number(values[value]);
      bytes.subarray(at, at + length);
      at += length;
      out.push(0, ID);
    }
    parentPort?.postMessage({ values: out, bytes: new Uint8Array(0) } satisfies Message);
  });
}

function serveRing({ requests, replies }: Rings): void {
  const sentCount = new Int32Array(requests);
  const repliedCount = new Int32Array(replies);
  const bytes = Buffer.from(requests);
  const out = Buffer.from(replies);
  for (let batch = 1; ; batch += 1) {
    while (Atomics.load(sentCount, 0) < batch) Atomics.wait(sentCount, 0, batch - 1);
    let at = slotAt(batch);
    const calls = bytes.readInt32LE(at);
    at += 8;
    let to = slotAt(batch);
    out.writeInt32LE(calls, to);
    to += 8;
    for (let call = 0; call < calls; call += 1) {
      at += 32;
      const [type = 0, body = 0] = bytes.subarray(at, at + 2);
      bytes.toString('latin1', at + 2, at + 2 + type);
      bytes.subarray(at + 2 + type, at + 2 + type + body);
      at = (at + 2 + type + body + 7) & ~7;
      out[to] = 0;
      out[to + 1] = ID.length;
      to += 2 + out.write(ID, to + 2, 'latin1');
    }
    Atomics.store(repliedCount, 0, batch);
    Atomics.notify(repliedCount, 0);
  }
}

if (isMainThread) {
  for (let round = 0; round < ROUNDS; round += 1) {
    await measureIdle('messages');
    await measureIdle('ring');
  }
  for (const [calls, inFlight] of LOADS) {
    for (let round = 0; round < ROUNDS; round += 1) {
      await measure('messages', calls, inFlight);
      await measure('ring', calls, inFlight);
    }
  }
} else if ((workerData as { name: string }).name === 'ring') {
  serveRing(workerData as Rings);
} else {
  serveMessages();
}
