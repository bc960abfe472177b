import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect as connectTcp } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { connect, type TLSSocket } from 'node:tls';
import type { TlsMaterial } from '../../src/session/options.ts';
import { sampleBody } from '../support/bodies.ts';
import { StompClient } from './client.ts';
import { readSlowly, StompNode, until } from './node.ts';

describe('STOMP over TLS', () => {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-stomp-tls-'));
  let first: TlsMaterial;
  let node: StompNode;

  before(async () => {
    first = certificate('first');
    node = await StompNode.start({ options: { tls: first } });
  });
  after(async () => {
    await node.stop();
    rmSync(folder, { recursive: true });
  });

  const certificate = (name: string): TlsMaterial => {
    const [cert, key] = [join(folder, `${name}.cert`), join(folder, `${name}.key`)];
    const subject = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
    const files = ['-keyout', key, '-out', cert, '-days', '2', '-nodes'];
    execFileSync(
      'openssl',
      ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', ...subject, ...files],
      {
        stdio: 'ignore',
      },
    );
    return { cert: readFileSync(cert, 'utf8'), key: readFileSync(key, 'utf8') };
  };

  it('is the same protocol', async () => {
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

  it('gives back what a client held that goes away', async () => {
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

  it('shows as well that a client reads slowly', async () => {
    const client = await StompClient.open(node.port, { ca: first.cert });
    await client.connect();
    await readSlowly(node, client);
    client.socket.destroy();
    await until(() => node.server.counts.sessions === 0);
  });

  it('is TLS 1.2 or newer', async () => {
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
      const socket = await handshake({ minVersion: version, maxVersion: version });
      assert.equal(socket.getProtocol(), version);
      socket.destroy();
    }
    await assert.rejects(
      handshake({ minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' }),
    );
  });

  it('answers nobody who speaks plain STOMP', async () => {
    const client = await StompClient.open(node.port);
    client.send('CONNECT', { login: 'test', passcode: 'test' });
    assert.equal(await client.nextOrEnd(), null);
  });

  it('takes another certificate while it runs, for connections from then on', async () => {
    const old = await StompClient.open(node.port, { ca: first.cert });
    const second = certificate('second');
    node.server.reloadTls(second);
    await assert.rejects(StompClient.open(node.port, { ca: first.cert }));
    const client = await StompClient.open(node.port, { ca: second.cert });
    await client.connect();
    await client.disconnect();
    await old.connect();
    await old.disconnect();
  });

  it('stops although somebody has not ended their handshake', async () => {
    const other = await StompNode.start({ options: { tls: first } });
    const socket = connectTcp({ port: other.port, host: '127.0.0.1' });
    await new Promise((resolve) => socket.once('connect', resolve));
    const closed = new Promise((resolve) => socket.once('close', resolve));
    socket.on('error', () => {});
    const stopped = other.server.stop();
    other.clock.advance(10_000);
    await stopped;
    await closed;
    await other.stop();
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
