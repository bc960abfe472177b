import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { PassThrough, Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { after, before, describe, it } from 'node:test';
import { runProgram } from '../../src/cli/program.ts';
import { NO_SERVER } from './no-server.ts';

const RUNNING = {
  id: 'op-1',
  action: 'move',
  state: 'running',
  matched: 7,
  changed: 7,
  failed: 0,
  estimate: 9,
  error: null,
};

describe('A command that ends before its bulk operation', () => {
  let server: Server;
  let reads = 0;
  let isFrozen = false;
  /** Called at each request for the state of the operation. */
  let onRead: () => void = () => {};

  before(async () => {
    server = createServer((request, response) => {
      if (request.method === 'POST') {
        response.writeHead(202, { 'content-type': 'application/json' }).end(JSON.stringify(RUNNING));
        return;
      }
      reads += 1;
      onRead();
      if (isFrozen) return;
      if (server.listening) response.end(JSON.stringify(RUNNING));
      else request.socket.destroy();
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
  });
  after(() => {
    server.closeAllConnections();
    server.close();
  });

  async function move(): Promise<{ code: number; stdout: string; stderr: string }> {
    const { port } = server.address() as AddressInfo;
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    const texts = Promise.all([text(stdout), text(stderr)]);
    const env = { QUAYSIDE_URL: `http://127.0.0.1:${port}`, XDG_CONFIG_HOME: '/nowhere' };
    const code = await runProgram(
      ['move', 'N/a', 'N/b'],
      { stdin: Readable.from([]), stdout, stderr, env },
      NO_SERVER,
    );
    stdout.end();
    stderr.end();
    const [written, errors] = await texts;
    return { code, stdout: written, stderr: errors };
  }

  it('prints the operation id and how to follow and cancel it if a signal ends it', async () => {
    onRead = () => void process.emit('SIGINT', 'SIGINT');
    const { code, stdout, stderr } = await move();
    assert.deepEqual([code, stdout, reads], [6, '', 1]);
    assert.equal(
      stderr,
      'quayside: operation op-1 continues on the server; see it with: quayside operations op-1 (--cancel ends it)\n',
    );
    assert.equal(process.listenerCount('SIGINT'), 0);
  });

  it('ends at once on a signal even while the server does not respond', async () => {
    isFrozen = true;
    const { code, stderr } = await move();
    isFrozen = false;
    assert.equal(code, 6);
    assert.match(stderr, /^quayside: operation op-1 continues on the server; .*\n$/);
  });

  it('prints the operation id if the server becomes unreachable', async () => {
    onRead = () => void server.close();
    const { code, stdout, stderr } = await move();
    assert.deepEqual([code, stdout], [6, '']);
    assert.match(stderr, /^quayside: operation op-1 continues .*\nquayside: The server cannot be reached/);
  });
});
