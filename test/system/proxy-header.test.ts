import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { connect, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { Networks } from '../../src/access/networks.ts';
import type { User } from '../../src/access/user.ts';
import { AmqpClient } from '../amqp/client.ts';
import { AmqpNode } from '../amqp/node.ts';
import { StompClient } from '../stomp/client.ts';
import { StompNode, TestAuthenticator } from '../stomp/node.ts';
import { makeCertificate } from '../support/certificate.ts';
import { needDebian } from '../support/debian.ts';
import { freePort } from '../support/free-port.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { until } from '../support/until.ts';

/** Records the address of each login. */
class RecordingAuthenticator extends TestAuthenticator {
  readonly addresses: string[] = [];

  override recall(): null {
    return null;
  }

  override login(authorization?: string, address?: string): Promise<User> {
    this.addresses.push(address ?? '');
    const user = super.recall(authorization ?? '');
    return user === null ? super.login() : Promise.resolve(user);
  }
}

const SIGNATURE = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1');
const TRUSTED = new Networks(['127.0.0.0/8']);

/** A header: version and command, address family, and the remaining bytes. */
function header(command: number, family: number, rest: Buffer): Buffer {
  const fixed = Buffer.alloc(4);
  fixed.set([command, family]);
  fixed.writeUInt16BE(rest.length, 2);
  return Buffer.concat([SIGNATURE, fixed, rest]);
}

const PORTS = Buffer.from([0x30, 0x39, 0xf0, 0xad]);
const IPV4 = Buffer.concat([Buffer.from([192, 0, 2, 7, 127, 0, 0, 1]), PORTS]);
const IPV6 = Buffer.concat([Buffer.from('20010db8000000000000000000000001'.padEnd(64, '0'), 'hex'), PORTS]);
const EXTENSION = Buffer.from([0x04, 0x00, 0x02, 0x00, 0x00]);
const CONNECT = 'CONNECT\naccept-version:1.2\nhost:h\nlogin:test\npasscode:test\n\n\0';

describe('A PROXY protocol header', () => {
  const authenticator = new RecordingAuthenticator();
  let node: StompNode;

  before(async () => {
    node = await StompNode.start({ authenticator, options: { trustedProxies: TRUSTED } });
  });
  after(() => node.stop());

  /** Sends the pieces in separate writes. Resolves with the response; empty if the server closed the connection. */
  const responseTo = async (...pieces: readonly (Buffer | string)[]): Promise<string> => {
    const socket = connect({ port: node.port, host: '127.0.0.1' });
    let text = '';
    socket.on('data', (bytes) => {
      text += bytes;
    });
    const over = Promise.race([once(socket, 'data'), once(socket, 'close')]);
    for (const piece of pieces) {
      socket.write(piece);
      await new Promise(setImmediate);
    }
    await over;
    socket.destroy();
    return text;
  };

  for (const [what, bytes, address] of [
    ['of a client over IPv4', header(0x21, 0x11, IPV4), '192.0.2.7'],
    ['of a client over IPv6', header(0x21, 0x21, IPV6), '2001:db8::1'],
    ['with extensions', header(0x21, 0x11, Buffer.concat([IPV4, EXTENSION])), '192.0.2.7'],
    ['of the proxy itself', header(0x20, 0x00, Buffer.alloc(0)), '127.0.0.1'],
    ['of the proxy itself, with addresses', header(0x20, 0x11, IPV4), '127.0.0.1'],
    ['of an unknown client', header(0x21, 0x00, Buffer.alloc(0)), '127.0.0.1'],
  ] as const) {
    it(`${what} determines the client's address`, async () => {
      authenticator.addresses.length = 0;
      assert.match(await responseTo(Buffer.concat([bytes, Buffer.from(CONNECT)])), /^CONNECTED\n/);
      const single = [...bytes].map((byte) => Buffer.from([byte]));
      assert.match(await responseTo(...single, CONNECT), /^CONNECTED\n/);
      assert.deepEqual(authenticator.addresses, [address, address]);
    });
  }

  for (const [what, bytes, problem] of [
    ['that is missing', Buffer.from(CONNECT), /signature of version 2 is missing/],
    [
      'of version 1',
      Buffer.from('PROXY TCP4 192.0.2.7 127.0.0.1 1 2\r\n'),
      /signature of version 2 is missing/,
    ],
    ['of another version', header(0x11, 0x11, IPV4), /command 0x11; allowed are 0x20 and 0x21/],
    ['with an unknown command', header(0x22, 0x11, IPV4), /command 0x22/],
    ['of UDP', header(0x21, 0x12, IPV4), /family 0x12; allowed are 0x00, 0x11, 0x21, 0x31/],
    ['that is too short for its addresses', header(0x21, 0x21, IPV4), /12 bytes of addresses/],
    ['that is too long', header(0x21, 0x11, Buffer.alloc(2049)), /at most 2048/],
  ] as const) {
    it(`${what} ends the connection and is logged`, async () => {
      node.logged.length = 0;
      assert.equal(await responseTo(bytes), '');
      assert.equal(node.logged.length, 1);
      const { fields, message } = node.logged[0] as { fields: { problem: string }; message: string };
      assert.match(fields.problem, problem);
      assert.equal(message, 'STOMP: a trusted proxy sent no valid PROXY header');
    });
  }

  it('that is incomplete ends the connection and is logged, wherever it ends', async () => {
    const whole = header(0x21, 0x21, IPV6);
    for (let bytes = SIGNATURE.length; bytes < whole.length; bytes += 1) {
      node.logged.length = 0;
      const socket = connect({ port: node.port, host: '127.0.0.1' });
      socket.on('data', (data) => assert.fail(`the server answered ${data}`));
      socket.on('error', () => {});
      socket.end(whole.subarray(0, bytes));
      await once(socket, 'close');
      await until(() => node.logged.length > 0);
      const problems = node.logged.map(({ fields }) => (fields as { problem: string }).problem);
      assert.equal(problems.length, 1);
      assert.match(problems[0] ?? '', /^the connection ended/);
    }
  });

  it('must arrive within five seconds', async () => {
    const { pending } = node.clock;
    const socket = connect({ port: node.port, host: '127.0.0.1' });
    socket.write(SIGNATURE);
    socket.on('data', (bytes) => assert.fail(`the server answered ${bytes}`));
    await until(() => node.clock.pending > pending || socket.destroyed);
    socket.on('error', () => {});
    const closed = new Promise((resolve) => socket.on('close', resolve));
    node.clock.advance(5_000);
    await closed;
  });

  it('is not read from an address that is not trusted', async (context) => {
    const strict = await StompNode.start({
      authenticator,
      options: { trustedProxies: new Networks(['127.0.0.9']) },
    });
    context.after(() => strict.stop());
    const client = await strict.stranger();
    client.write(Buffer.concat([header(0x21, 0x11, IPV4), Buffer.from(CONNECT)]));
    await client.expectError('malformed-request');
  });

  it('is read before the TLS handshake', async () => {
    const tls = makeCertificate();
    const secure = await StompNode.start({
      authenticator,
      options: { tls, trustedProxies: TRUSTED },
    });
    // A proxy that sends the header in one write with the client's first bytes.
    const prefixing = createServer((client: Socket) => {
      const server = connect(secure.port, '127.0.0.1');
      client.once('data', (bytes) => {
        server.write(Buffer.concat([header(0x21, 0x11, IPV4), bytes]));
        client.pipe(server);
      });
      server.pipe(client);
      for (const socket of [client, server]) socket.on('error', () => {});
    });
    prefixing.listen(0, '127.0.0.1');
    await once(prefixing, 'listening');
    const { port } = prefixing.address() as { port: number };
    authenticator.addresses.length = 0;
    const client = await StompClient.open(port, { ca: tls.cert });
    await client.connect();
    assert.deepEqual(authenticator.addresses, ['192.0.2.7']);
    await client.disconnect();
    prefixing.close();
    await secure.stop();
  });
});

describe('HAProxy with send-proxy-v2', () => {
  it('passes the addresses of clients to STOMP and AMQP', async () => {
    needDebian('haproxy');
    const [stompLogins, amqpLogins] = [new RecordingAuthenticator(), new RecordingAuthenticator()];
    const options = { trustedProxies: TRUSTED };
    const stomp = await StompNode.start({ authenticator: stompLogins, options });
    const amqp = await AmqpNode.start({ authenticator: amqpLogins, options });
    const folder = await mkdtemp(join(tmpdir(), 'quayside-haproxy-'));
    const relays = await Promise.all([stomp.port, amqp.port].map((port, i) => haproxy(folder, i, port)));
    try {
      const [stompPort = 0, amqpPort = 0] = relays.map(({ port }) => port);
      const client = from('127.0.0.2', stompPort);
      client.write(CONNECT);
      assert.match(String(await once(client, 'data')), /^CONNECTED\n/);
      client.destroy();
      const connecting = {
        connect: (_port: number, _host: string, _options: object, connected: () => void) =>
          from('127.0.0.3', amqpPort).once('connect', connected),
      };
      const other = await AmqpClient.open(amqpPort, 'test', { connection_details: () => connecting });
      await other.close();
      assert.deepEqual(stompLogins.addresses, ['127.0.0.2']);
      assert.deepEqual(amqpLogins.addresses, ['127.0.0.3']);
    } finally {
      for (const { stop } of relays) await stop();
      await rm(folder, { recursive: true });
      await stomp.stop();
      await amqp.stop();
    }
  });
});

/** Connects from another address of this machine. */
function from(localAddress: string, port: number): Socket {
  return connect({ host: '127.0.0.1', port, localAddress });
}

/** Starts HAProxy in front of a port of this machine. */
async function haproxy(
  folder: string,
  number: number,
  target: number,
): Promise<{ port: number; stop: () => Promise<void> }> {
  const port = await freePort();
  const file = join(folder, `${number}.cfg`);
  writeFileSync(
    file,
    `defaults
  mode tcp
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen quayside
  bind 127.0.0.1:${port}
  server one 127.0.0.1:${target} send-proxy-v2
`,
  );
  const child = spawnOwned('/usr/sbin/haproxy', ['-db', '-f', file], {
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const exited = once(child, 'exit');
  const isUp = async (): Promise<boolean> => {
    const socket = connect(port, '127.0.0.1');
    const result = await Promise.race([
      once(socket, 'connect').then(() => true),
      once(socket, 'close').then(() => false),
    ]).catch(() => false);
    socket.destroy();
    return result;
  };
  await until(isUp);
  const stop = async (): Promise<void> => {
    child.kill();
    await exited;
  };
  return { port, stop };
}
