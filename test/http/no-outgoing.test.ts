import assert from 'node:assert/strict';
import { Socket } from 'node:net';
import { describe, it } from 'node:test';
import { AmqpNode } from '../amqp/node.ts';
import { StompNode } from '../stomp/node.ts';
import { sharedHarness } from './harness.ts';
import { AUTHORIZATION, exchange, rawRequest } from './raw.ts';

/** Addresses that a server behind a firewall may reach, and its clients may not. */
const URLS = [
  'http://169.254.169.254/latest/meta-data',
  'http://[::ffff:169.254.169.254]/',
  'https://127.0.0.2:6379/',
  'http://0x7f000002/',
  'http://localhost.invalid/',
  'redis://127.0.0.2:6379/0',
  'postgres://127.0.0.2/db',
  'sqlite:///etc/passwd',
  'file:///etc/passwd',
  'amqp://127.0.0.2/N/q',
  'gopher://127.0.0.2:11211/_x',
];

describe('A request that names an address', () => {
  const harness = sharedHarness();

  it('does not make the server connect to it, wherever the address is', async (t) => {
    const [amqp, stomp] = [await AmqpNode.start(), await StompNode.start()];
    const stompClient = await stomp.client();
    const amqpClient = await amqp.client();
    const own = [harness().port, amqp.port, stomp.port];
    const targets: unknown[] = [];
    const { connect } = Socket.prototype;
    t.mock.method(Socket.prototype, 'connect', function count(this: Socket, ...given: unknown[]) {
      const [options] = [given[0]].flat() as { readonly port?: unknown }[];
      if (!own.includes(Number(options?.port))) targets.push(options);
      return connect.apply(this, given as never);
    });
    for (const url of URLS) {
      const name = encodeURIComponent(url);
      const exchanged = JSON.stringify({
        src: { ns: 'N', queue: url },
        dst: [
          { ns: 'N', queue: `${url}/b` },
          { ns: url, queue: 'b' },
        ],
        consumer: {},
      });
      const json = 'Content-Type: application/json';
      const requests = [
        ['PUT', `/q/N/${name}`, 'x', `X-Ks-Hdr-Reply-To: ${url}`],
        ['PUT', `/q/${name}/q`, 'x'],
        ['PUT', `/x/${name}`, exchanged, json],
        ['PUT', '/x/a', exchanged.replace(`,{"ns":"${url}","queue":"b"}`, ''), json],
        ['PUT', '/definitions', JSON.stringify({ queues: { N: { [url]: { paused: true } } } }), json],
        ['POST', `/backup?name=${name}`, ''],
        ['GET', '/q', '', `Forwarded: for="${url}"`, `X-Forwarded-For: ${url}`, `Referer: ${url}`],
        ['GET', `/events?ns=${name}`, ''],
      ] as const;
      for (const [method, path, body, ...headers] of requests) {
        const head = ['Host: test', AUTHORIZATION, 'Connection: close', `Content-Length: ${body.length}`];
        await exchange(harness().port, rawRequest([`${method} ${path} HTTP/1.1`, ...head, ...headers], body));
      }
      await stompClient.ask('SEND', { destination: `/q/N/${name}`, 'reply-to': url }, 'x');
      await stompClient.ask('SUBSCRIBE', { destination: `/q/N/${name}`, id: url });
      await amqpClient.receiver(url).catch(() => {});
      await amqpClient.sender(url).catch(() => {});
    }
    assert.deepEqual(targets, []);
    await Promise.all([amqp.stop(), stomp.stop()]);
  });
});
