import { parentPort, workerData } from 'node:worker_threads';
import type { WorkerMessage, WorkerRequest, WorkerSetup } from '../protocol.ts';
import { makeImage, SelectorThread } from './selector-thread.ts';

// The entry of the selector worker. Processes requests sequentially in their order of arrival.
const setup = workerData as WorkerSetup;
const port = parentPort;
if (port === null) throw new Error('the selector worker is started as a worker thread');

const image = setup.image ?? (await makeImage(setup.wasm, setup.limits));
const thread = new SelectorThread(setup, image);
let queue = Promise.resolve();
port.on('message', (request: WorkerRequest) => {
  queue = queue.then(async () => {
    const handled = await thread.handle(request);
    if (handled === null || request.kind === 'close') return;
    const { answer, ms } = handled;
    const transferList =
      answer.outcome === 'called' && answer.bodies.length > 0 ? [answer.bodies.buffer] : [];
    port.postMessage({ kind: 'answer', seq: request.seq, ms, answer } satisfies WorkerMessage, transferList);
  });
});
port.postMessage({ kind: 'ready', image } satisfies WorkerMessage);
