import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import type { Harness } from '../http/harness.ts';
import { HEADERS_TRIED, headerNames, headerTexts, ParityNode, textIn } from '../session/parity-node.ts';
import { sampleBodies } from '../support/bodies.ts';
import { elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import type { Headers, ServerFrame, StompClient } from './client.ts';

describe('an element inserted and consumed over HTTP and STOMP', () => {
  let node: ParityNode;
  let harness: Harness;
  let http: QueueClient;
  let stomp: StompClient;

  before(async () => {
    node = await ParityNode.start();
    harness = node.harness;
    http = node.http;
    stomp = await node.stompClient();
  });
  after(() => node.stop());

  const connect = (): Promise<StompClient> => node.stompClient();
  const to = (queue: string, ns = 'N'): string => `/q/${ns}/${queue}`;

  it('body, content type, content encoding, element headers: sent over STOMP, received unchanged over HTTP', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const queue = harness.queue();
      const encoding = contentEncoding === null ? {} : { 'content-encoding': contentEncoding };
      const headers = { 'x-ks-hdr-colour': 'blue; light', 'X-KS-Hdr-__proto__': 'kept', size: '☃' };
      await stomp.ask(
        'SEND',
        {
          destination: to(queue),
          'content-type': contentType,
          'content-length': bytes.length,
          ...encoding,
          ...headers,
        },
        bytes,
      );
      const answer = await http.get('N', queue, { to: 0 });
      assert.ok(bytes.equals(answer.body), name);
      assert.equal(answer.headers['content-type'], contentType);
      assert.equal(answer.headers['content-encoding'] ?? null, contentEncoding);
      assert.deepEqual(
        [...elementHeadersOf(answer)],
        [
          ['colour', 'blue; light'],
          ['__proto__', 'kept'],
          ['size', Buffer.from('☃').toString('latin1')],
        ],
      );
    }
  });

  it('id, text in headers: inserted over HTTP, received unchanged over STOMP', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const queue = harness.queue();
      const headers = {
        'x-ks-hdr-colour': 'blue; light',
        'x-ks-hdr-text': Buffer.from('Grüße ☃').toString('latin1'),
        'x-ks-hdr-latin': 'Gr\xfc\xdfe',
        ...(contentEncoding === null ? {} : { 'content-encoding': contentEncoding }),
      };
      const { id } = jsonOf<{ id: string }>(
        await http.insert('N', queue, bytes, { contentType, headers, tries: 2 }),
      );
      await stomp.ask('SUBSCRIBE', { destination: to(queue), id: queue });
      const message = await stomp.expect('MESSAGE');
      assert.ok(bytes.equals(message.body), name);
      assert.equal(message.headers.get('message-id'), id);
      assert.equal(message.headers.get('content-type'), contentType);
      assert.equal(message.headers.get('content-encoding') ?? null, contentEncoding);
      assert.equal(message.headers.get('x-ks-hdr-colour'), 'blue; light');
      assert.equal(message.headers.get('x-ks-hdr-text'), 'Grüße ☃');
      // Bytes that are not UTF-8 are read as ISO 8859-1, since STOMP allows only UTF-8.
      assert.equal(message.headers.get('x-ks-hdr-latin'), 'Grüße');
      assert.equal(message.headers.get('x-tries'), '2');
      await stomp.ask('UNSUBSCRIBE', { id: queue });
    }
  });

  it('maturity, tries, groups: are the same over both protocols', async () => {
    const queue = harness.queue();
    const at = harness.opened.now() + 60_000;
    await stomp.ask('SEND', {
      destination: to(queue, 'events'),
      'x-next-t': at,
      'x-tries': 3,
      'x-ks-groups': 'A,B',
    });
    await harness.passTime(60_000);
    for (const group of ['A', 'B']) {
      const answer = await http.get('events', queue, { to: 0, group });
      assert.equal(headerOf(answer, 'x-ks-tries'), '3');
      assert.equal(headerOf(answer, 'x-ks-mature'), new Date(at).toISOString());
    }
    assert.equal((await http.get('events', queue, { to: 0 })).status, 504);
  });

  it('rollback: counts a failed try, and delays the element', async () => {
    const queue = harness.queue();
    const sizes = async (): Promise<unknown[]> => {
      const { size, schedSize, resvSize } = jsonOf<Record<string, unknown>>(await http.status('N', queue));
      return [size, schedSize, resvSize];
    };
    const subscribed = async (ack: string): Promise<[StompClient, ServerFrame]> => {
      const client = await connect();
      await client.ask('SUBSCRIBE', { destination: to(queue), id: 's', ack, 'x-wsize': 1 });
      return [client, await client.expect('MESSAGE')];
    };
    const ackOf = ({ headers }: ServerFrame): Headers => ({ id: headers.get('ack') ?? '' });
    await http.insert('N', queue, 'x');
    const [client, message] = await subscribed('client-individual');
    await client.ask('NACK', { ...ackOf(message), 'x-delta-t': 2000 });
    assert.deepEqual(await sizes(), [0, 1, 0]);
    await client.disconnect();
    await node.harness.passTime(2000);
    const reserved = await http.reserve('N', queue, { to: 0 });
    assert.equal(headerOf(reserved, 'x-ks-tries'), '1');
    await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
    const [second, again] = await subscribed('client');
    assert.equal(again.headers.get('x-tries'), '2');
    await second.ask('NACK', ackOf(again));
    assert.deepEqual(await sizes(), [0, 1, 0]);
    await second.disconnect();
  });

  it('refused headers: all other headers are returned unchanged over both protocols', async () => {
    let kept = 0;
    let refused = 0;
    const queue = harness.queue();
    let client = await connect();
    await fc.assert(
      fc.asyncProperty(headerNames, headerTexts, fc.boolean(), async (header, text, prefixed) => {
        const full = prefixed ? `x-ks-hdr-${header}` : `own-${header}`;
        client.send('SEND', { destination: to(queue), [full]: text, receipt: 'r' }, 'x');
        const reply = await client.next();
        if (reply.command === 'ERROR') {
          refused += 1;
          assert.ok(['invalid-header', 'malformed-request'].includes(reply.headers.get('message') ?? ''));
          client.socket.destroy();
          client = await connect();
          return;
        }
        kept += 1;
        const reserved = await http.reserve('N', queue, { to: 0 });
        const short = (prefixed ? header : full).toLowerCase();
        assert.equal(textIn(reserved, short), text);
        await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
        await client.ask('SUBSCRIBE', { destination: to(queue), id: 's' });
        const message = await client.expect('MESSAGE');
        assert.equal(message.headers.get(`x-ks-hdr-${short}`), text);
        await client.ask('UNSUBSCRIBE', { id: 's' });
      }),
      { numRuns: HEADERS_TRIED },
    );
    client.socket.destroy();
    assert.ok(kept > HEADERS_TRIED / 4 && refused > HEADERS_TRIED / 20, `${kept} kept, ${refused} refused`);
  });

  it('limits: headers are rejected over STOMP if HTTP could not return them', async () => {
    for (const headers of [
      Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`x-ks-hdr-${i}`, 'v'])),
      { 'x-ks-hdr-long': 'x'.repeat(8189) },
    ]) {
      const client = await connect();
      client.send('SEND', { destination: to('many'), ...headers }, 'x');
      await client.expectError('invalid-header');
    }
    const queue = harness.queue();
    const most = Object.fromEntries(
      Array.from({ length: 64 }, (_, i) => [`x-ks-hdr-${100 + i}`, ':'.repeat(125)]),
    );
    await stomp.ask('SEND', { destination: to(queue), ...most }, 'x');
    assert.equal(elementHeadersOf(await http.get('N', queue, { to: 0 })).size, 64);
  });
});
