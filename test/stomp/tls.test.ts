import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect as connectTcp } from 'node:net';
import { Duplex } from 'node:stream';
import { after, before, describe, it } from 'node:test';
import { connect, type TLSSocket } from 'node:tls';
import { sampleBody } from '../support/bodies.ts';
import { CertificateAuthority, makeCertificate } from '../support/certificate.ts';
import { SlowAuthenticator } from '../support/session-node.ts';
import { until } from '../support/until.ts';
import { StompClient } from './client.ts';
import { readSlowly, StompNode } from './node.ts';

describe('STOMP over TLS', () => {
  const first = makeCertificate();
  let node: StompNode;

  before(async () => {
    node = await StompNode.start({ options: { tls: first } });
  });
  after(() => node.stop());

  it('supports the same protocol as TCP', async () => {
    const client = await StompClient.open(node.port, { ca: first.cert });
    await client.connect();
    const { bytes } = sampleBody('largest');
    await client.ask('SEND', { destination: '/q/N/a', 'content-length': bytes.length }, bytes);
    await client.ask('SUBSCRIBE', { destination: '/q/N/a', id: 's', ack: 'client' });
    const message = await client.expect('MESSAGE');
    assert.ok(message.body.equals(bytes));
    await client.ask('ACK', { id: message.headers.get('ack') ?? null });
    await client.disconnect();
    assert.deepEqual(await node.sizes('a'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('returns the messages of a client that disconnects', async () => {
    await node.insert('b', 'x');
    const client = await StompClient.open(node.port, { ca: first.cert });
    await client.connect();
    await client.ask('SUBSCRIBE', { destination: '/q/N/b', id: 's', ack: 'client' });
    await client.expect('MESSAGE');
    const next = await StompClient.open(node.port, { ca: first.cert });
    await next.connect();
    await next.ask('SUBSCRIBE', { destination: '/q/N/b', id: 's', ack: 'client' });
    client.socket.destroy();
    assert.equal((await next.expect('MESSAGE')).headers.get('x-tries'), '1');
    next.socket.destroy();
  });

  it('does not disconnect a client that reads slowly', async () => {
    const client = await StompClient.open(node.port, { ca: first.cert });
    await client.connect();
    await readSlowly(node, client);
    client.socket.destroy();
    await until(() => node.server.counts.sessions === 0);
  });

  it('executes and confirms the frames that a client sent before it closed, even if the login check took longer', async () => {
    const authenticator = new SlowAuthenticator();
    const other = await StompNode.start({ options: { tls: first }, authenticator });
    const open = (): Promise<StompClient> => StompClient.open(other.port, { ca: first.cert });
    try {
      const client = await open();
      const frames = [
        client.frame('CONNECT', { 'accept-version': '1.2', host: 'here', login: 'test', passcode: 'test' }),
        client.frame('SEND', { destination: '/q/N/a', receipt: 'sent' }, 'x'),
      ];
      client.socket.allowHalfOpen = true;
      client.socket.end(Buffer.concat(frames));
      await once(client.socket, 'finish');
      // After this handshake the server has also seen that the first client closed.
      const next = await open();
      authenticator.acceptLogins();
      await client.expect('CONNECTED');
      assert.equal((await client.expect('RECEIPT')).headers.get('receipt-id'), 'sent');
      assert.equal((await other.sizes('a')).ready, 1);
      // The server closes its side without a time-out: its clock stands still.
      await client.expectClose();
      await until(() => other.server.counts.sessions === 0);
      next.socket.destroy();
    } finally {
      await other.stop();
    }
  });

  it('accepts TLS 1.2 and 1.3 only', async () => {
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
      const socket = await handshake({ minVersion: version, maxVersion: version });
      assert.equal(socket.getProtocol(), version);
      socket.destroy();
    }
    await assert.rejects(
      handshake({ minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' }),
    );
  });

  it('closes a connection that sends plain STOMP without a reply', async () => {
    const client = await StompClient.open(node.port);
    client.send('CONNECT', { login: 'test', passcode: 'test' });
    assert.equal(await client.nextOrEnd(), null);
  });

  it('uses a reloaded certificate for new connections', async () => {
    const old = await StompClient.open(node.port, { ca: first.cert });
    const second = makeCertificate();
    node.server.reloadTls(second);
    await assert.rejects(StompClient.open(node.port, { ca: first.cert }));
    const client = await StompClient.open(node.port, { ca: second.cert });
    await client.connect();
    await client.disconnect();
    await old.connect();
    await old.disconnect();
  });

  it('closes a connection whose handshake takes too long', async () => {
    const other = await StompNode.start({ options: { tls: first, loginTimeoutMs: 1 } });
    const client = await StompClient.open(other.port);
    assert.equal(await client.nextOrEnd(), null);
    await other.stop();
  });

  it('stops although a client has not completed its handshake', async () => {
    const other = await StompNode.start({ options: { tls: first } });
    const socket = connectTcp({ port: other.port, host: '127.0.0.1' });
    await new Promise((resolve) => socket.once('connect', resolve));
    const closed = new Promise((resolve) => socket.once('close', resolve));
    socket.on('error', () => {});
    await other.stop();
    await closed;
  });

  it('rejects a client whose handshake completes after the stop has started', async () => {
    const other = await StompNode.start({ options: { tls: first } });
    const staying = await StompClient.open(other.port, { ca: first.cert });
    await staying.connect();
    staying.socket.pause();
    const raw = connectTcp({ port: other.port, host: '127.0.0.1' });
    const hello = once(raw, 'data');
    const between = new Duplex({ read: () => {}, write: (bytes, _, done) => void raw.write(bytes, done) });
    const late = connect({ socket: between, ca: first.cert, servername: 'localhost' });
    late.on('error', () => {});
    const [answer] = await hello;
    const stopped = other.server.stop();
    raw.on('data', (bytes) => between.push(bytes));
    between.push(answer);
    let closed = false;
    raw.once('close', () => {
      closed = true;
    });
    await until(() => closed || other.server.counts.connections === 2);
    assert.equal(other.server.counts.connections, 1);
    await until(() => other.server.counts.outgoingBytes === 0);
    other.clock.advance(2_000);
    await stopped;
    late.destroy();
    await other.stop();
  });

  it('logs a client in by its certificate if CONNECT has neither login nor passcode', async () => {
    const authority = new CertificateAuthority();
    const other = await StompNode.start({ options: { tls: { ...first, clientCa: authority.cert } } });
    const open = (subject: string): Promise<StompClient> =>
      StompClient.open(other.port, { ca: first.cert, ...authority.sign(subject) });
    const none = { login: null, passcode: null };

    try {
      const reader = await open('/CN=reader');
      await reader.connect(none);
      await reader.ask('SUBSCRIBE', { destination: '/q/N/c', id: 's' });
      reader.send('SEND', { destination: '/q/N/c' }, 'x');
      await reader.expectError('forbidden');

      const named = await open('/CN=reader');
      named.send('CONNECT', { login: 'reader', passcode: 'wrong' });
      await named.expectError('unauthorized');
      const nobody = await open('/CN=nobody');
      nobody.send('CONNECT');
      assert.match((await nobody.expectError('unauthorized')).body.toString(), /no user "nobody"/);
      const foreign = new CertificateAuthority().sign('/CN=test');
      const stranger = await StompClient.open(other.port, { ca: first.cert, ...foreign });
      stranger.send('CONNECT');
      assert.match((await stranger.expectError('unauthorized')).body.toString(), /was not accepted \(/);
      const without = await StompClient.open(other.port, { ca: first.cert });
      without.send('CONNECT');
      assert.match(
        (await without.expectError('unauthorized')).body.toString(),
        /needs the login and passcode/,
      );
    } finally {
      await other.stop();
    }
  });

  const handshake = (options: object): Promise<TLSSocket> =>
    new Promise((resolve, reject) => {
      const socket = connect({
        port: node.port,
        host: '127.0.0.1',
        ca: first.cert,
        servername: 'localhost',
        ...options,
      });
      socket.once('secureConnect', () => resolve(socket));
      socket.once('error', reject);
    });
});
