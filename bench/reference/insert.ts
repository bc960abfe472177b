/** The minimal cost of an insert over HTTP: reads the body and answers with a constant id. Stores nothing. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const answer = Buffer.from(JSON.stringify({ id: '0123456789abcdef' }));
const headers = { 'content-type': 'application/json', 'content-length': String(answer.length) };

const server = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    Buffer.concat(chunks);
    response.writeHead(200, headers);
    response.end(answer);
  });
});
server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }));
