import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, it } from 'node:test';
import { connect as connectTls } from 'node:tls';
import { makeCertificate } from '../support/certificate.ts';
import { Harness } from './harness.ts';
import { AUTHORIZATION, RawConnection, rawRequest } from './raw.ts';

async function withHarness(test: (harness: Harness) => Promise<void>): Promise<void> {
  const harness = await Harness.start({ http: { drainMs: 5_000 } });
  try {
    await test(harness);
  } finally {
    await harness.close();
  }
}

describe('Stopping', () => {
  it('ends waiting calls with 503, Retry-After and Connection: close', () =>
    withHarness(async (harness) => {
      const connection = await RawConnection.open(harness.port);
      connection.send(rawRequest(['GET /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION]));
      await harness.waiting(1);
      harness.server.drain();
      harness.broker.drain();
      const stopped = harness.server.stop();
      const [answer] = await connection.untilClosed();
      assert.equal(answer?.status, 503);
      assert.equal(answer?.headers.get('retry-after'), '1');
      assert.equal(answer?.headers.get('connection'), 'close');
      assert.equal(JSON.parse(answer?.body ?? '').code, 'shutting-down');
      await stopped;
    }));

  it('answers a half-sent request and then closes its connection', () =>
    withHarness(async (harness) => {
      const connection = await RawConnection.open(harness.port);
      connection.send(
        rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, 'Content-Length: 4'], 'ab'),
      );
      const half = await RawConnection.open(harness.port);
      half.send('GET /readyz HTTP/1.1\r\nHost: te');
      // A response on a third connection means that the bytes sent before it have been read.
      await harness.client().namespaces();
      const stopped = harness.server.stop();
      half.send('st\r\n\r\n');
      const [probe] = await half.untilClosed();
      assert.equal(probe?.status, 503, 'not ready any more');
      connection.send('cd');
      const [answer] = await connection.untilClosed();
      assert.equal(answer?.status, 200);
      assert.equal(answer?.headers.get('connection'), 'close');
      await stopped;
    }));

  it('closes idle connections at once and refuses new ones', () =>
    withHarness(async (harness) => {
      const { port } = harness;
      const idle = await RawConnection.open(port);
      idle.send(rawRequest(['GET /livez HTTP/1.1', 'Host: test']));
      await idle.answers(1);
      const fresh = await RawConnection.open(port);
      await harness.client().namespaces();
      const stopped = harness.server.stop();
      await idle.untilClosed();
      await fresh.untilClosed();
      await stopped;
      const late = connect({ port, host: '127.0.0.1' });
      const [error] = await once(late, 'error');
      assert.equal((error as NodeJS.ErrnoException).code, 'ECONNREFUSED');
    }));

  it('closes TLS connections without a request at once, even during the handshake', async () => {
    const tls = makeCertificate();
    const harness = await Harness.start({ http: { tls } });
    const { port } = harness;
    const [host, ca] = ['127.0.0.1', tls.cert];
    const mute = connect({ port, host });
    await once(mute, 'connect');
    const fresh = connectTls({ port, host, ca });
    await once(fresh, 'secureConnect');
    const busy = connectTls({ port, host, ca });
    busy.write(rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, 'Content-Length: 4'], 'ab'));
    const idle = connectTls({ port, host, ca });
    idle.write(rawRequest(['GET /livez HTTP/1.1', 'Host: test']));
    await once(idle, 'data');
    const ended = Promise.all([once(mute, 'close'), once(fresh, 'close'), once(idle.resume(), 'close')]);
    const stopped = harness.server.stop();
    await ended;
    busy.write('cd');
    const [answer] = await once(busy, 'data');
    assert.match(String(answer), /^HTTP\/1\.1 200 /);
    await stopped;
    await harness.close();
  });

  it('cuts requests that are incomplete at the deadline', () =>
    withHarness(async (harness) => {
      const connection = await RawConnection.open(harness.port);
      connection.send(
        rawRequest(['PUT /q/N/q HTTP/1.1', 'Host: test', AUTHORIZATION, 'Content-Length: 4'], 'ab'),
      );
      await harness.client().namespaces();
      const stopped = harness.server.stop();
      await harness.passTime(4_999);
      assert.equal(connection.socket.destroyed, false);
      await harness.passTime(1);
      assert.deepEqual(await connection.untilClosed(), []);
      await stopped;
    }));

  it('may be called twice and returns the same promise', () =>
    withHarness(async (harness) => {
      const first = harness.server.stop();
      assert.equal(harness.server.stop(), first);
      await first;
      assert.throws(() => harness.server.address, /is not listening/);
    }));

  it('a start on a port in use is rejected with EADDRINUSE', () =>
    withHarness(async (harness) => {
      const second = Harness.start({ http: { port: harness.port } });
      await assert.rejects(second, { code: 'EADDRINUSE' });
    }));
});
