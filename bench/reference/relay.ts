/**
 * The minimal cost of waking a call on another node: one of two such processes publishes a body to Redis and answers,
 * the other answers a blocked request with the body that it receives. Stores nothing. Usage: `node relay.ts REDIS_PORT`
 */
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Redis } from 'ioredis';

const CHANNEL = 'relay';
const port = Number(process.argv[2]);
const publisher = new Redis({ port });
const subscriber = new Redis({ port });
const waiting: ServerResponse[] = [];
/** Bodies that came before the request that gets them: on a busy machine an insert can overtake it. */
const early: Buffer[] = [];

await subscriber.subscribe(CHANNEL);
subscriber.on('messageBuffer', (_channel: Buffer, body: Buffer) => {
  const response = waiting.shift();
  if (response === undefined) early.push(body);
  else answer(response, body);
});

const server = createServer((request, response) => {
  if (request.method === 'GET') {
    const body = early.shift();
    if (body === undefined) waiting.push(response);
    else answer(response, body);
    return;
  }
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    publisher.publish(CHANNEL, Buffer.concat(chunks)).then(
      () => answer(response, Buffer.from('{"id":"0123456789abcdef"}')),
      () => response.destroy(),
    );
  });
});
server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }));

function answer(response: ServerResponse, body: Buffer): void {
  response.writeHead(200, { 'content-type': 'application/json', 'content-length': String(body.length) });
  response.end(body);
}
