import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { after, afterEach, before, describe, it } from 'node:test';
import rhea from 'rhea';
import type { Authenticator } from '../../src/access/user.ts';
import type { HttpServer } from '../../src/http/server.ts';
import { FrameParser } from '../../src/stomp/codec.ts';
import { AmqpClient, textOf } from '../amqp/client.ts';
import { AmqpNode } from '../amqp/node.ts';
import { basic } from '../http/harness.ts';
import { StompNode, type StompNodeOptions, TestAuthenticator } from '../stomp/node.ts';
import { makeCertificate } from '../support/certificate.ts';
import { SlowAuthenticator } from '../support/session-node.ts';
import { longestTurn } from '../support/turns.ts';
import { until } from '../support/until.ts';
import { startWebSocketPort, type WebSocketPortOptions } from '../support/web-socket-port.ts';

const KEY = 'dGhlIHNhbXBsZSBub25jZQ==';
const OFFER = {
  connection: 'Upgrade',
  upgrade: 'websocket',
  'sec-websocket-version': '13',
  'sec-websocket-key': KEY,
  'sec-websocket-protocol': 'v12.stomp',
};

/** The response to an upgrade request. */
interface Reply {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
  readonly socket: Socket;
}

async function upgrade(
  port: number,
  headers: Record<string, string> = {},
  path = '/stomp',
  method = 'GET',
): Promise<Reply> {
  const asked = request({ port, host: '127.0.0.1', method, path, headers: { ...OFFER, ...headers } });
  asked.end();
  const reply = Promise.withResolvers<Reply>();
  asked.on('error', reply.reject);
  asked.on('upgrade', ({ statusCode = 0, headers: got }, socket) => {
    socket.on('error', () => {});
    reply.resolve({ status: statusCode, headers: got, text: '', socket: socket as Socket });
  });
  asked.on('response', async (response) => {
    const { socket } = response;
    const chunks: Buffer[] = await response.toArray();
    const text = Buffer.concat(chunks).toString();
    reply.resolve({
      status: response.statusCode ?? 0,
      headers: response.headers,
      text,
      socket,
    });
  });
  return reply.promise;
}

/** A control frame of a client, masked with zeros. */
function control(opcode: number, payload: string | Buffer): Buffer {
  const head = Buffer.from([0x80 | opcode, 0x80 | payload.length, 0, 0, 0, 0]);
  return Buffer.concat([head, Buffer.from(payload)]);
}

/** A message of a client, masked with zeros. */
function message(payload: string | Buffer, opcode = 1, length = Buffer.byteLength(payload)): Buffer {
  const isLong = length > 0xffff;
  const head = Buffer.alloc(isLong ? 14 : 8);
  head[0] = 0x80 | opcode;
  head[1] = 0x80 | (isLong ? 127 : 126);
  if (isLong) head.writeUIntBE(length, 4, 6);
  else head.writeUInt16BE(length, 2);
  return Buffer.concat([head, Buffer.from(payload)]);
}

const CONNECT = message('CONNECT\naccept-version:1.2\nlogin:test\npasscode:test\n\n\0');

/** Reads one frame: its first byte and its payload of less than 64 KiB. */
async function frameOf(socket: Socket): Promise<{ first: number; payload: Buffer }> {
  let bytes = Buffer.alloc(0);
  for (;;) {
    const at = (bytes[1] ?? 0) < 126 ? 2 : 4;
    const length = at === 2 ? (bytes[1] ?? 0) : bytes.length < 4 ? 65_536 : bytes.readUInt16BE(2);
    if (bytes.length >= at + length && bytes.length >= 2) {
      socket.unshift(bytes.subarray(at + length));
      return { first: bytes[0] ?? 0, payload: bytes.subarray(at, at + length) };
    }
    const chunk = socket.read() as Buffer | null;
    if (chunk !== null) bytes = Buffer.concat([bytes, chunk]);
    else await once(socket, 'readable');
  }
}

describe('STOMP over WebSocket', () => {
  let node: StompNode;
  let port: HttpServer;
  const sockets: Socket[] = [];

  const start = async (
    options: StompNodeOptions['options'] = {},
    more: Partial<WebSocketPortOptions> = {},
    authenticator: Authenticator = new TestAuthenticator(),
  ): Promise<void> => {
    node = await StompNode.start({ options, authenticator });
    const { server, clock } = node;
    port = await startWebSocketPort({ server, clock, path: '/stomp', ...more });
  };
  const ask = async (headers: Record<string, string> = {}, path = '/stomp'): Promise<Reply> => {
    const reply = await upgrade(port.address.port, headers, path);
    sockets.push(reply.socket);
    return reply;
  };
  afterEach(async () => {
    for (const socket of sockets.splice(0)) socket.destroy();
    await node.server.stop();
    await port.stop();
    await node.stop();
  });

  it('begins with a handshake that names the preferred subprotocol', async () => {
    await start();
    const { status, headers } = await ask({ 'sec-websocket-protocol': 'v10.stomp, v12.stomp' });
    assert.equal(status, 101);
    assert.equal(headers['sec-websocket-protocol'], 'v12.stomp');
    assert.equal(headers['sec-websocket-accept'], 's3pPLMBiTxaQ9kYGzzhZRbK+xOo=');
  });

  it('also begins if the target of the request is absolute, as RFC 6455 allows', async () => {
    await start();
    assert.equal((await ask({}, `http://127.0.0.1:${port.address.port}/stomp?x=1`)).status, 101);
  });

  it('is rejected if the client offers no supported subprotocol', async () => {
    await start();
    for (const offer of ['mqtt', 'v12.stompx, ']) {
      const { status, text } = await ask({ 'sec-websocket-protocol': offer });
      assert.equal(status, 400);
      assert.match(text, /Allowed: v12\.stomp, v11\.stomp, v10\.stomp/);
    }
  });

  it('is not served at another path, for another upgrade, or for another method', async () => {
    await start();
    for (const [headers, path] of [
      [{}, '/amqp'],
      [{ upgrade: 'h2c' }, '/stomp'],
    ] as const) {
      assert.notEqual((await ask(headers, path)).status, 101);
    }
    assert.notEqual((await upgrade(port.address.port, {}, '/stomp', 'POST')).status, 101);
    assert.equal(node.server.counts.connections, 0);
  });

  it('is required at its path: other requests, and handshakes of another version or without a key, are rejected with the reason', async () => {
    await start();
    for (const [headers, method, detail] of [
      [
        { upgrade: 'h2c' },
        'GET',
        'Path "/stomp" serves WebSocket only, but the request is without Upgrade: websocket or Connection: Upgrade. A proxy may have removed them.',
      ],
      [{}, 'POST', 'Path "/stomp" serves WebSocket only, but the request is a POST and not a GET.'],
      [{ 'sec-websocket-version': '7' }, 'GET', 'sec-websocket-version must be 13, not "7".'],
    ] as const) {
      const reply = await upgrade(port.address.port, headers, '/stomp', method);
      assert.equal(reply.status, 426);
      const { code, detail: got } = JSON.parse(reply.text);
      assert.deepEqual([code, got], ['upgrade-required', detail]);
      assert.equal(reply.headers.upgrade, 'websocket');
      assert.match(String(reply.headers.connection), /upgrade/);
      assert.equal(reply.headers['sec-websocket-version'], '13');
    }
    const { status, text } = await ask({ 'sec-websocket-key': 'short' });
    assert.equal(status, 400);
    assert.match(text, /sec-websocket-key must be 16 bytes in Base64, not \\"short\\"/);
    const repeated = await ask({ 'sec-websocket-protocol': 'v12.stomp, , v12.stomp' });
    assert.deepEqual([repeated.status, repeated.headers['sec-websocket-protocol']], [101, 'v12.stomp']);
  });

  it('is rejected if the request has a body, which would be read as frames', async () => {
    await start();
    for (const [name, value] of [
      ['content-length', '4'],
      ['transfer-encoding', 'chunked'],
    ] as const) {
      const { status, text } = await ask({ [name]: value });
      assert.equal(status, 400);
      assert.equal(JSON.parse(text).code, 'malformed-request');
      assert.match(text, new RegExp(`has ${name}`, 'i'));
    }
    assert.equal((await ask({ 'content-length': '0' })).status, 101);
  });

  it('survives clients that reset the connection while their handshake is rejected', async () => {
    await start({}, { http: { allowedOrigins: [] } });
    const rejected = [{ 'sec-websocket-protocol': 'mqtt' }, { origin: 'https://foreign.example' }];
    for (const headers of [...rejected, ...rejected, ...rejected, ...rejected, ...rejected]) {
      const socket = connect(port.address.port, '127.0.0.1');
      sockets.push(socket);
      socket.on('error', () => {});
      await once(socket, 'connect');
      const lines = Object.entries({ host: 'localhost', ...OFFER, ...headers }).map((one) => one.join(': '));
      socket.write(`GET /stomp HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`, () => socket.resetAndDestroy());
      await once(socket, 'close');
    }
    assert.equal((await ask()).status, 101);
  });

  it('accepts pages of this server and of allowed origins only, and logs foreign pages once', async () => {
    const logged: { fields: object; message: string }[] = [];
    await start({}, { http: { allowedOrigins: ['https://jobs.example'] }, logged });
    const own = `http://127.0.0.1:${port.address.port}`;
    for (const headers of [
      { origin: own },
      { origin: own, 'sec-fetch-site': 'same-origin' },
      { origin: 'https://jobs.example', 'sec-fetch-site': 'cross-site' },
    ]) {
      assert.equal((await ask(headers)).status, 101);
    }
    for (const headers of [{ origin: 'https://foreign.example' }, { 'sec-fetch-site': 'cross-site' }]) {
      const { status, text } = await ask(headers);
      assert.equal(status, 403);
      assert.match(text, /forbidden-origin/);
    }
    assert.equal(logged.filter(({ message }) => /foreign page/.test(message)).length, 1);
  });

  it('counts toward maxSockets of STOMP', async () => {
    await start({ maxSockets: 2 });
    const tcp = await node.client();
    assert.equal((await ask()).status, 101);
    assert.equal((await ask()).status, 503);
    const third = await node.stranger();
    assert.equal(await third.nextOrEnd(), null);
    await tcp.disconnect();
    await until(() => node.server.counts.sessions === 0);
    assert.equal((await ask()).status, 101);
  });

  it('counts toward the HTTP connections that one user may have', async () => {
    await start({}, { http: { maxSockets: 10 } });
    const logIn = async (): Promise<string> => {
      const { socket } = await ask();
      socket.write(message('CONNECT\naccept-version:1.2\nhost:x\nlogin:test\npasscode:test\n\n\0'));
      return (await frameOf(socket)).payload.toString();
    };
    for (let count = 1; count <= 9; count++) assert.match(await logIn(), /^CONNECTED\n/);
    assert.match(await logIn(), /^ERROR\nmessage:overloaded\n/);
    sockets[0]?.destroy();
    await until(() => node.server.counts.sessions === 8);
    assert.match(await logIn(), /^CONNECTED\n/);
  });

  it('reads at most 4 KiB before the login, even of an incomplete message', async () => {
    await start();
    const whole = await ask();
    whole.socket.write(message(`CONNECT\nx:${'x'.repeat(5000)}\n\n\0`));
    assert.match((await frameOf(whole.socket)).payload.toString(), /^ERROR\nmessage:headers-too-large\n/);
    // A message that never ends would be buffered forever.
    const part = await ask();
    part.socket.write(message('x'.repeat(40_000), 1, 60_000));
    const { first, payload } = await frameOf(part.socket);
    assert.deepEqual([first, payload.readUInt16BE(0)], [0x88, 1009]);
    await once(part.socket, 'close');
  });

  it('ends if the client does not log in within 10 seconds', async () => {
    await start();
    const { socket } = await ask();
    node.clock.advance(10_000);
    assert.match((await frameOf(socket)).payload.toString(), /^ERROR\nmessage:request-timeout\n/);
  });

  it('closes with 1009 after a message that is too long', async () => {
    await start({ bodyLimit: 1000 }, { maxMessageBytes: 2000 });
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    socket.write(message('x'.repeat(2001)));
    const { first, payload } = await frameOf(socket);
    assert.deepEqual([first, payload.readUInt16BE(0)], [0x88, 1009]);
    await until(() => node.server.counts.sessions === 0);
  });

  for (const { maxMessageBytes, what, first } of [
    { maxMessageBytes: 1_000_000, what: 'closes after', first: 0x88 },
    { maxMessageBytes: 8_000_000, what: 'accepts, if messages may be that large,', first: 0x81 },
  ]) {
    it(`${what} a message of 20,000 fragments`, async () => {
      await start({}, { maxMessageBytes });
      const { socket } = await ask();
      socket.write(CONNECT);
      await frameOf(socket);
      const fragments = Array.from({ length: 20_000 }, (_, i) => {
        const fragment = message('\n', i === 0 ? 1 : 0);
        fragment[0] = i === 0 ? 1 : 0;
        return fragment;
      });
      const last = message('SEND\ndestination:/q/N/a\nreceipt:r\n\n\0', 0);
      socket.write(Buffer.concat([...fragments, last]));
      assert.equal((await frameOf(socket)).first, first);
    });
  }

  for (const [what, frame] of [
    ['pings', control(9, '')],
    ['pongs', control(10, '')],
    ['empty messages', control(2, '')],
    ['heart-beats', control(1, '\n')],
  ] as const) {
    it(`serves other clients although its client sends many ${what}`, async () => {
      await start();
      const [busy, other] = [(await ask()).socket, (await ask()).socket];
      for (const socket of [busy, other]) {
        socket.write(CONNECT);
        await frameOf(socket);
      }
      // Large messages let the kernel hold more for this connection, so that the server could read it all in one turn.
      for (let i = 0; i < 3; i++) {
        busy.write(Buffer.concat([message('\n'.repeat(1_000_000)), control(9, '')]));
        await frameOf(busy);
      }
      const { storage } = node.engine.engine;
      const insert = storage.insert.bind(storage);
      const bodies: string[] = [];
      storage.insert = (queue, elements, options) => {
        bodies.push(...elements.map(({ body }) => Buffer.from(body).toString()));
        return insert(queue, elements, options);
      };
      const send = (body: string): Buffer => message(`SEND\ndestination:/q/N/a\n\n${body}\0`);
      busy.write(Buffer.concat([...Array<Buffer>(50_000).fill(frame), send('busy')]));
      other.write(send('other'));
      await until(() => bodies.length === 2);
      assert.deepEqual(bodies, ['other', 'busy']);
    });
  }

  it('serves others while many clients send empty fragments before their login', async () => {
    await start();
    const sockets = await Promise.all(Array.from({ length: 200 }, async () => (await ask()).socket));
    node.clock.monotonic = () => performance.now();
    const fragment = Buffer.from([0, 0x80, 0, 0, 0, 0]);
    const login = message('CONNECT\naccept-version:1.2\nlogin:test\npasscode:test\n\n\0', 0);
    const bytes = Buffer.concat([...Array<Buffer>(5_000).fill(fragment), login]);
    bytes[0] = 1;
    const share = await longestTurn(async () => {
      for (const socket of sockets) socket.write(bytes);
      for (const socket of sockets) {
        assert.match((await frameOf(socket)).payload.toString(), /^CONNECTED\n/);
      }
    });
    assert.ok(share < 0.3, `one turn of the event loop took ${share} of the time`);
  });

  it('passes on together the messages that arrive together: each of them alone took several times as long', async (t) => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    const passed = t.mock.method(FrameParser.prototype, 'push');
    const bytes = Buffer.from(`SEND\ndestination:/q/N/a\nreceipt:r\nk:${'x'.repeat(900)}\n\n\0`);
    socket.write(Buffer.concat(Array.from(bytes, (byte) => message(Buffer.of(byte), 2))));
    assert.match((await frameOf(socket)).payload.toString(), /^RECEIPT\n/);
    assert.ok(passed.mock.callCount() < 20, `${passed.mock.callCount()} parts of ${bytes.length} messages`);
  });

  describe('whose client sends many control frames', () => {
    const pings = Buffer.concat(Array.from({ length: 460 }, () => control(9, 'x'.repeat(125))));
    const fragment = (opcode: number): Buffer => {
      const first = message('\n'.repeat(200), opcode);
      first[0] = opcode;
      return first;
    };
    const logIn = async (): Promise<Socket> => {
      await start({ bodyLimit: 1000 }, { maxMessageBytes: 2000 });
      const { socket } = await ask();
      socket.write(CONNECT);
      await frameOf(socket);
      return socket;
    };
    /** The first frame that is not a pong. */
    const answerOf = async (socket: Socket): Promise<{ first: number; payload: Buffer }> => {
      for (;;) {
        const frame = await frameOf(socket);
        if (frame.first !== 0x8a) return frame;
      }
    };
    const last = 'SEND\ndestination:/q/N/a\nreceipt:r\n\n\0';

    it('closes if these come between fragments of a message, each of which retains the chunk it was read with', async () => {
      const socket = await logIn();
      for (const opcode of [1, 0, 0, 0]) socket.write(Buffer.concat([fragment(opcode), pings]));
      socket.write(message(last, 0));
      // The close frame is lost if the server has not read everything.
      const answer = await answerOf(socket).catch(() => null);
      assert.ok(answer === null || answer.first === 0x88);
      await until(() => node.server.counts.sessions === 0);
    });

    it('stays open if these come between messages', async () => {
      const socket = await logIn();
      for (let i = 0; i < 8; i++) socket.write(pings);
      socket.write(message(last));
      assert.match((await answerOf(socket)).payload.toString(), /^RECEIPT\n/);
    });
  });

  it('sends UTF-8 frames as text and others as binary messages, and reads frames that span messages', async () => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    assert.equal((await frameOf(socket)).first, 0x81);
    socket.write(message('SUBSCRIBE\nid:s\nack:auto\ndestination:/q/N/a\n'));
    socket.write(message('\n\0', 2));
    await node.insert('a', 'Grüße');
    assert.equal((await frameOf(socket)).first, 0x81);
    await node.insert('a', { body: Buffer.from([0xff, 0]) });
    const { first, payload } = await frameOf(socket);
    assert.equal(first, 0x82);
    assert.match(payload.toString('latin1'), /^MESSAGE\n[\s\S]*\n\n\xff\0\0\n$/);
  });

  it('counts every fragment of a slow message as a sign of life', async () => {
    await start();
    const { socket } = await ask();
    socket.write(message('CONNECT\naccept-version:1.2\nheart-beat:10000,0\nlogin:test\npasscode:test\n\n\0'));
    await frameOf(socket);
    for (const part of ['SEND\ndestination:', '/q/N/a\nreceipt:r\n', '\nhalf a ', 'body']) {
      const fragment = message(part, part.startsWith('SEND') ? 1 : 0);
      fragment[0] = (fragment[0] ?? 0) & 0x7f;
      // The pong means that the fragment has been read.
      socket.write(Buffer.concat([fragment, control(9, '')]));
      assert.equal((await frameOf(socket)).first, 0x8a);
      node.clock.advance(15_000);
    }
    socket.write(message('\0', 0));
    assert.match((await frameOf(socket)).payload.toString(), /^RECEIPT\n/);
  });

  it('executes the frames of one message a few milliseconds at a time', async () => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    const { storage } = node.engine.engine;
    const insert = storage.insert.bind(storage);
    const sizes: number[] = [];
    storage.insert = (queue, elements, options) => {
      sizes.push(elements.length);
      return insert(queue, elements, options);
    };
    // Each frame takes half a millisecond.
    node.clock.monotonic = () => node.server.counts.frames / 2;
    const count = 2_000;
    const last = 'SEND\ndestination:/q/N/a\nreceipt:last\n\n\0';
    socket.write(message('SEND\ndestination:/q/N/a\n\n\0'.repeat(count) + last));
    assert.match((await frameOf(socket)).payload.toString(), /^RECEIPT\n/);
    storage.insert = insert;
    assert.equal((await node.sizes('a')).ready, count + 1);
    assert.ok(Math.max(...sizes) <= 16, `${Math.max(...sizes)} frames were executed at once`);
  });

  it('answers pings', async () => {
    await start();
    const { socket } = await ask();
    socket.write(control(9, 'hello'));
    const { first, payload } = await frameOf(socket);
    assert.deepEqual([first, payload.toString()], [0x8a, 'hello']);
  });

  it('answers a close frame with a close frame after executing what was sent before it', async () => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    socket.write(message('SEND\ndestination:/q/N/a\n\nx\0'));
    socket.write(control(8, Buffer.from([0x03, 0xe8])));
    const { first, payload } = await frameOf(socket);
    assert.deepEqual([first, payload.readUInt16BE(0)], [0x88, 1000]);
    await until(() => node.server.counts.sessions === 0);
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('ends with its client after an invalid frame, although its client has sent more', async (t) => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    let hasWaited = false;
    const { setTimeout } = globalThis;
    t.mock.method(globalThis, 'setTimeout', (onTime: () => void, ms: number) =>
      setTimeout(() => {
        if (ms === 30_000) hasWaited = true;
        onTime();
      }, ms),
    );
    socket.write(control(3, ''));
    const { first, payload } = await frameOf(socket);
    assert.deepEqual([first, payload.readUInt16BE(0)], [0x88, 1002]);
    socket.write(Buffer.alloc(1_000_000));
    socket.end(control(8, payload));
    socket.resume();
    await until(() => node.server.counts.sessions === 0);
    assert.equal(hasWaited, false);
  });

  it('delivers nothing after the close frame of its client, even while the connection is open', async () => {
    await start();
    const { socket } = await ask();
    socket.write(CONNECT);
    await frameOf(socket);
    for (const [id, ack] of [
      ['pops', 'auto'],
      ['reserves', 'client'],
    ] as const) {
      socket.write(message(`SUBSCRIBE\nid:${id}\nack:${ack}\ndestination:/q/N/${id}\n\n\0`));
      await until(() => node.queue(id).consumers().length === 1);
    }
    socket.write(control(8, Buffer.from([0x03, 0xe8])));
    assert.equal((await frameOf(socket)).first, 0x88);
    await Promise.all([node.insert('pops', '0', '1', '2'), node.insert('reserves', '0', '1', '2')]);
    await until(() => node.server.counts.sessions === 0);
    for (const queue of ['pops', 'reserves']) {
      await until(async () => (await node.sizes(queue)).ready === 3);
      for (const _ of '012') assert.equal((await node.pop(queue))?.tries, 0, queue);
    }
  });

  it('executes what was sent before the close frame, even if the login takes longer', async () => {
    const authenticator = new SlowAuthenticator();
    await start({}, {}, authenticator);
    const { socket } = await ask();
    socket.write(CONNECT);
    socket.write(message('SEND\ndestination:/q/N/a\n\nx\0'));
    socket.write(control(8, Buffer.from([0x03, 0xe8])));
    await Promise.all([once(socket, 'close'), socket.resume()]);
    // Once this is answered, the server has also read the close frame.
    await ask();
    authenticator.acceptLogins();
    await until(() => node.server.counts.sessions === 1);
    assert.equal((await node.sizes('a')).ready, 1);
  });

  it('is rejected with 503 once the STOMP server stops or the HTTP port drains', async () => {
    await start();
    const open = await ask();
    open.socket.write(CONNECT);
    await frameOf(open.socket);
    const stopped = node.server.stop();
    assert.equal((await ask()).status, 503);
    assert.equal((await frameOf(open.socket)).first, 0x88);
    open.socket.destroy();
    await stopped;
    port.drain();
    assert.equal((await ask()).status, 503);
  });

  it('is not started by a pipelined request while an earlier request is unanswered', async () => {
    await start();
    const socket = connect(port.address.port, '127.0.0.1');
    sockets.push(socket);
    const lines = Object.entries({ host: 'here', ...OFFER }).map(([name, value]) => `${name}: ${value}\r\n`);
    // The second request arrives before the login of the first is checked.
    const first = `GET /q HTTP/1.1\r\nhost: here\r\nauthorization: ${basic('test', 'test')}\r\n\r\n`;
    socket.write(`${first}GET /stomp HTTP/1.1\r\n${lines.join('')}\r\n`);
    assert.equal((await socket.toArray()).length, 0);
    assert.equal(node.server.counts.connections, 0);
  });
});

describe('STOMP over WebSocket over TLS', () => {
  const certificate = makeCertificate();
  let node: StompNode;
  let port: HttpServer;

  before(async () => {
    node = await StompNode.start();
    const { server, clock } = node;
    const http = { tls: certificate };
    port = await startWebSocketPort({ server, clock, path: '/stomp', http });
  });
  after(async () => {
    await node.stop();
    await port.stop();
  });

  it('is served with the certificate of HTTP', async () => {
    const { request: ask } = await import('node:https');
    const asked = ask({
      port: port.address.port,
      host: '127.0.0.1',
      servername: 'localhost',
      path: '/stomp',
      headers: OFFER,
      ca: certificate.cert,
    });
    asked.end();
    const [, socket] = (await once(asked, 'upgrade')) as [IncomingMessage, Socket];
    socket.write(CONNECT);
    assert.match((await frameOf(socket)).payload.toString(), /^CONNECTED\n/);
    // A stop cuts connections that never carried a request; an upgraded connection is not one of them.
    const stopped = port.stop();
    socket.write(message('SEND\ndestination:/q/N/a\nreceipt:r\n\nx\0'));
    assert.match((await frameOf(socket)).payload.toString(), /^RECEIPT\n/);
    socket.destroy();
    await stopped;
  });
});

describe('AMQP over WebSocket', () => {
  it('works with the client library rhea', async () => {
    const node = await AmqpNode.start({ overWebSocket: true });
    const connect = rhea.websocket_connect(WebSocket as never);
    const details = connect(`ws://127.0.0.1:${node.port}/amqp`, ['amqp'] as never, {} as never);
    const client = await AmqpClient.open(node.port, 'test', { connection_details: details });
    const sender = await client.sender('N/a');
    const receiver = await client.receiver('N/a', {}, 10);
    for (const body of ['Grüße', 'x'.repeat(1_000_000)]) {
      assert.equal((await sender.send({ body })).kind, 'accepted');
      const got = await receiver.next();
      assert.equal(textOf(got), body);
      got.delivery.accept();
    }
    await client.close();
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
    await node.stop();
  });

  it('is closed with 1003 after a text message', async () => {
    const node = await AmqpNode.start();
    const { server, clock } = node;
    const port = await startWebSocketPort({ server, clock, path: '/amqp' });
    const { socket } = await upgrade(port.address.port, { 'sec-websocket-protocol': 'amqp' }, '/amqp');
    socket.write(message('AMQP\u0003\u0001\u0000\u0000'));
    const { first, payload } = await frameOf(socket);
    assert.deepEqual([first, payload.readUInt16BE(0)], [0x88, 1003]);
    socket.destroy();
    await port.stop();
    await node.stop();
  });
});
