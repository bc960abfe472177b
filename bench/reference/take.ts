/**
 * The minimal cost of a get: a constant body with the headers of a real answer. `PATCH` stands for a commit. Argument:
 * the two answers as JSON, see `ConstantAnswers`.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ConstantAnswers } from './reference.ts';

const answers = JSON.parse(process.argv[2] ?? '{}') as ConstantAnswers;
const get = { headers: answers.get.headers, body: Buffer.from(answers.get.body, 'base64') };
const patch = { headers: answers.patch.headers, body: Buffer.from(answers.patch.body, 'base64') };

const server = createServer((request, response) => {
  const { headers, body } = request.method === 'PATCH' ? patch : get;
  request.resume();
  response.writeHead(200, headers);
  response.end(body);
});
server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as AddressInfo).port }));
