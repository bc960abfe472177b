/**
 * Holds thousands of blocked gets, in a process of its own because sockets cost memory and file descriptors on both
 * ends. Argument: `BlockedLoad` as JSON. Sends `{ waiting }` once every request is written; answers each message with
 * the number of gets that were answered, by status.
 */
import { connect } from 'node:net';
import { queuePath } from '../../test/support/http-client.ts';
import { wireRequest } from './wire.ts';

export interface BlockedLoad {
  readonly url: string;
  readonly ns: string;
  readonly authorization: string;
  readonly count: number;
  /** The number of queues over which the gets are spread evenly, see {@link blockedQueue}. */
  readonly queues: number;
}

/** Connections opened concurrently: fewer than a listen backlog holds. */
const OPENING = 100;

const load = JSON.parse(process.argv[2] ?? '{}') as BlockedLoad;
const statuses: Record<string, number> = {};
const { hostname, port } = new URL(load.url);
let next = 0;

await Promise.all(
  Array.from({ length: OPENING }, async () => {
    while (next < load.count) await block(next++);
  }),
);
process.on('message', () => process.send?.({ statuses }));
process.send?.({ waiting: load.count });

/** Resolves once the request is written. */
function block(number: number): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>();
  const socket = connect({ host: hostname, port: Number(port) });
  socket.on('error', (error) => {
    statuses[error.message] = (statuses[error.message] ?? 0) + 1;
    reject(error);
  });
  socket.on('data', (chunk) => {
    const status = chunk.toString('latin1', 9, 12);
    statuses[status] = (statuses[status] ?? 0) + 1;
  });
  socket.on('connect', () => {
    const path = `${queuePath(load.ns, `blocked-${number % load.queues}`)}?tid=t${number}`;
    socket.write(wireRequest('GET', path, load.authorization), () => resolve());
  });
  return promise;
}
