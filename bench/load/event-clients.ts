/**
 * Subscribers of events that read everything, in a process of their own: `node event-clients.ts <port>`. Communicates
 * through {@link Helper}: a ready message, then one answer per request.
 */
import { connect, type Socket } from 'node:net';
import { AUTHORIZATION } from '../quayside.ts';

/**
 * - `listen`: opens this many more connections; answered once each has its full picture.
 * - `count`: the number of updates and bytes since the last count.
 */
export type EventClientsRequest =
  | { readonly what: 'listen'; readonly count: number }
  | { readonly what: 'count' };

export interface EventClientsCount {
  readonly bytes: number;
  readonly updates: number;
}

const port = Number(process.argv[2]);
const COMPLETE = Buffer.from('event: complete');
const UPDATE = Buffer.from('event: queues');
let bytes = 0;
let updates = 0;

process.on('message', (request: EventClientsRequest) => {
  answerTo(request).then(
    (result) => process.send?.(result),
    (error: unknown) => {
      console.error(error);
      process.exit(1);
    },
  );
});
process.send?.({});

async function answerTo(request: EventClientsRequest): Promise<EventClientsCount> {
  if (request.what === 'listen') await Promise.all(Array.from({ length: request.count }, listen));
  const counted = { bytes, updates };
  [bytes, updates] = [0, 0];
  return counted;
}

function listen(): Promise<void> {
  return new Promise((resolve, reject) => {
    const socket: Socket = connect({ port, host: '127.0.0.1' });
    socket.on('error', reject);
    socket.on('close', () => reject(new Error('The server ended a stream.')));
    socket.on('data', (chunk) => {
      bytes += chunk.length;
      if (chunk.includes(UPDATE)) updates += 1;
      if (chunk.includes(COMPLETE)) resolve();
    });
    socket.write(`GET /events HTTP/1.1\r\nHost: bench\r\nAuthorization: ${AUTHORIZATION}\r\n\r\n`);
  });
}
