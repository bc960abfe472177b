import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { sampleBodies } from '../support/bodies.ts';
import { plain } from '../support/broker.ts';
import type { StompClient } from './client.ts';
import { StompNode } from './node.ts';

describe('an element sent over STOMP', () => {
  let node: StompNode;
  let client: StompClient;
  let queue: string;
  let queues = 0;

  before(async () => {
    node = await StompNode.start();
    client = await node.client();
  });
  after(() => node.stop());

  const send = async (
    headers: Record<string, string | number>,
    body: string | Uint8Array = '',
  ): Promise<void> => {
    queues += 1;
    queue = `elements-${queues}`;
    await client.ask('SEND', { destination: `/q/N/${queue}`, ...headers }, body);
  };

  it('is stored with its body, content type and content encoding unchanged', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const encoding = contentEncoding === null ? {} : { 'content-encoding': contentEncoding };
      await send({ 'content-type': contentType, 'content-length': bytes.length, ...encoding }, bytes);
      const stored = await node.pop(queue);
      assert.ok(stored !== null && bytes.equals(stored.body), name);
      assert.equal(stored.contentType, contentType);
      assert.equal(stored.contentEncoding, contentEncoding);
    }
  });

  it('is returned over STOMP unchanged', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const encoding = contentEncoding === null ? {} : { 'content-encoding': contentEncoding };
      const own = { 'x-ks-hdr-colour': 'blue: light', 'x-ks-hdr-__proto__': 'kept' };
      await send({ 'content-type': contentType, 'content-length': bytes.length, ...encoding, ...own }, bytes);
      await client.ask('SUBSCRIBE', { destination: `/q/N/${queue}`, id: queue });
      const { headers, body } = await client.expect('MESSAGE');
      assert.ok(bytes.equals(body), name);
      assert.equal(headers.get('content-type'), contentType);
      assert.equal(headers.get('content-encoding') ?? null, contentEncoding);
      assert.equal(headers.get('content-length'), String(bytes.length));
      for (const [header, value] of Object.entries(own)) assert.equal(headers.get(header), value);
      assert.equal(headers.get('x-tries'), '0');
      assert.equal(headers.get('x-mature'), new Date(node.clock.now()).toISOString());
      await client.ask('UNSUBSCRIBE', { id: queue });
    }
  });

  it('has element headers under lower-case names, whether they were sent with the prefix x-ks-hdr- or without', async () => {
    await send({ 'X-KS-Hdr-Colour': 'blue', Size: '5', 'x-ks-hdr-size': '6' });
    assert.deepEqual((await node.pop(queue))?.headers, ['colour', 'blue', 'size', '5']);
  });

  it('is stored without the protocol headers of SEND and MESSAGE', async () => {
    await send({
      subscription: 'a',
      'message-id': 'b',
      ack: 'c',
      'x-mature': 'd',
      persistent: 'true',
    });
    assert.deepEqual((await node.pop(queue))?.headers, ['persistent', 'true']);
  });

  it('matures at x-next-t, or after x-delta-t; x-next-t takes precedence', async () => {
    const now = node.clock.now();
    await send({ 'x-next-t': now + 5000 });
    assert.equal((await node.broker.namespace('N').visit(queue).status(null)).next_mature_t, iso(now + 5000));
    await send({ 'x-delta-t': 7000 });
    assert.equal((await node.broker.namespace('N').visit(queue).status(null)).next_mature_t, iso(now + 7000));
    await send({ 'x-next-t': now + 1000, 'x-delta-t': 9000 });
    assert.equal((await node.broker.namespace('N').visit(queue).status(null)).next_mature_t, iso(now + 1000));
    await send({ 'x-delta-t': 0 });
    assert.equal((await node.sizes(queue)).ready, 1);
  });

  it('is delivered to a waiting subscription when it matures', async () => {
    await send({ 'x-delta-t': 3000 }, 'later');
    await client.ask('SUBSCRIBE', { destination: `/q/N/${queue}`, id: 'later' });
    await node.pass(3000, queue);
    assert.equal((await client.expect('MESSAGE')).body.toString(), 'later');
  });

  it('starts with the tries of x-tries', async () => {
    await send({ 'x-tries': 3 });
    assert.equal((await node.pop(queue))?.tries, 3);
  });

  it('is stored in the queue that its destination names, percent-encoded or not', async () => {
    const names = [
      ['/q/N/plain', 'plain'],
      ['/queue/N/alias', 'alias'],
      ['/q/N/a%2Fb', 'a/b'],
      ['/q/%4E/%C3%BC', 'ü'],
      ['/q/N/ü', 'ü'],
      ['/q/N/a%20b+c', 'a b+c'],
      ['/q/N/..', '..'],
      ['/q/N/__proto__', '__proto__'],
      ['/q/N/a:b', 'a:b'],
    ] as const;
    for (const [destination, name] of names) {
      await client.ask('SEND', { destination }, destination);
      assert.equal(Buffer.from((await node.pop(name))?.body ?? []).toString(), destination);
    }
  });

  it('is rejected if its destination names no queue', async () => {
    const wrong = [
      ['', 'malformed-request'],
      ['a', 'invalid-name'],
      ['/topic/N/a', 'invalid-name'],
      ['/q/N/', 'invalid-name'],
      ['/q//a', 'invalid-name'],
      ['/q/N/a/b', 'invalid-name'],
      ['/q/N/%', 'invalid-name'],
      ['/q/N/%FF', 'invalid-name'],
      ['/q/N/%00', 'invalid-name'],
      ['/q/N/a\nb', 'invalid-name'],
      [`/q/N/${'x'.repeat(256)}`, 'invalid-name'],
      ['/q/nowhere/a', 'namespace-not-found'],
      ['/q/__proto__/a', 'namespace-not-found'],
    ] as const;
    for (const [destination, code] of wrong) {
      const other = await node.client();
      other.send('SEND', { destination });
      await other.expectError(code);
    }
  });

  it('is rejected and not stored if one of its headers is invalid', async () => {
    const wrong = [
      [{ 'x-tries': '1.5' }, 'invalid-parameter'],
      [{ 'x-tries': '-1' }, 'invalid-parameter'],
      [{ 'x-tries': 'many' }, 'invalid-parameter'],
      [{ 'x-tries': '1000001' }, 'invalid-parameter'],
      [{ 'x-delta-t': '' }, 'invalid-parameter'],
      [{ 'x-delta-t': '1e3' }, 'invalid-parameter'],
      [{ 'x-delta-t': String(11 * 365 * 24 * 3600 * 1000) }, 'invalid-parameter'],
      [{ 'x-next-t': 'tomorrow' }, 'invalid-parameter'],
      [{ 'x-next-t': '95617584000000' }, 'invalid-parameter'],
      [{ 'x-ks-groups': 'G1' }, 'invalid-parameter'],
      [{ 'content-type': 'text/plain\n' }, 'invalid-header'],
      [{ 'content-type': 'x'.repeat(256) }, 'invalid-header'],
      [{ 'content-encoding': ' gzip' }, 'invalid-header'],
      [{ 'x-ks-hdr-a b': 'x' }, 'invalid-header'],
      [{ 'x-ks-hdr-': 'x' }, 'invalid-header'],
      [{ 'x-ks-hdr-a': 'x\r\ny' }, 'invalid-header'],
      [{ 'x-ks-hdr-a': ' x' }, 'invalid-header'],
      [{ 'x-ks-hdr-a': '\u007f' }, 'invalid-header'],
      [{ 'x-ks-hdr-a': 'x'.repeat(8192) }, 'invalid-header'],
      [Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`x-ks-hdr-${i}`, ''])), 'invalid-header'],
    ] as const;
    for (const [headers, code] of wrong) {
      const other = await node.client();
      other.send('SEND', { destination: '/q/N/refused', receipt: 'r', ...headers }, 'x');
      await other.expectError(code);
    }
    assert.deepEqual(await node.sizes('refused'), { ready: 0, scheduled: 0, reserved: 0 });
  });

  it('is rejected with an error that spells an invalid header as the client did', async () => {
    for (const [name, value] of [
      ['x-ks-hdr-', 'x'],
      ['x-ks-hdr-a', ' x'],
      ['X-Ks-Hdr-Colour', 'x\r\ny'],
      ['Two Words', 'x'],
      ['Größe', 'x'],
      ['x-ks-hdr-long', 'x'.repeat(8192)],
    ] as const) {
      const other = await node.client();
      other.send('SEND', { destination: '/q/N/refused', [name]: value }, 'x');
      const { headers, body } = await other.expectError('invalid-header');
      assert.equal(headers.get('x-ks-parameter'), name);
      assert.ok(body.toString().startsWith(`Header "${name}": `), body.toString());
    }
  });

  it('is stored before its receipt is sent, in the order of the SENDs', async () => {
    const to = '/q/N/ordered';
    client.write(
      Buffer.concat(Array.from({ length: 100 }, (_, i) => client.frame('SEND', { destination: to }, `${i}`))),
    );
    await client.ask('SEND', { destination: to }, '100');
    for (let i = 0; i <= 100; i++) {
      assert.equal(Buffer.from((await node.pop('ordered'))?.body ?? []).toString(), `${i}`);
    }
  });

  it('is stored if the queue has capacity for it; the first one that does not fit ends the session', async () => {
    await node.queue('small').storeOptions({ maxElements: 3 });
    const other = await node.client();
    const sends = Array.from({ length: 10 }, (_, i) =>
      other.frame('SEND', { destination: '/q/N/small', receipt: i }, `${i}`),
    );
    other.write(Buffer.concat(sends));
    for (const id of ['0', '1', '2']) {
      assert.equal((await other.expect('RECEIPT')).headers.get('receipt-id'), id);
    }
    assert.equal((await other.expectError('queue-full')).headers.get('receipt-id'), '3');
    assert.equal((await node.sizes('small')).ready, 3);
  });

  it('is stored together with many others, however their frames are chunked', async () => {
    const frames = Buffer.concat(
      Array.from({ length: 40 }, (_, i) => client.frame('SEND', { destination: '/q/N/chunks' }, `body ${i}`)),
    );
    for (let at = 0; at < frames.length; at += 37) client.write(frames.subarray(at, at + 37));
    await client.ask('SEND', { destination: '/q/N/chunks' }, 'last');
    assert.equal((await node.sizes('chunks')).ready, 41);
  });
});

describe('a SEND to a queue that was dropped since the last SEND', () => {
  it('is rejected if the namespace has maxQueues queues', async () => {
    const node = await StompNode.start();
    try {
      const client = await node.client();
      await client.ask('SEND', { destination: '/q/N/a' }, 'x');
      await node.pop('a');
      assert.ok(await node.broker.namespace('N').drop({ ns: 'N', name: 'a' }));
      await Promise.all(Array.from({ length: 1000 }, (_, i) => node.insert(`other-${i}`, 'x')));
      client.send('SEND', { destination: '/q/N/a' }, 'x');
      await client.expectError('too-many-queues');
    } finally {
      await node.stop();
    }
  });
});

describe('a SEND that would exceed the maxGroups of a stream', () => {
  it('is answered with an ERROR, and stores nothing', async () => {
    const node = await StompNode.start({ policies: [plain('S', { groups: ['G1'], maxGroups: 1 })] });
    const client = await node.client();
    await client.ask('SEND', { destination: '/q/S/a', 'x-ks-groups': 'G2' });
    client.send('SEND', { destination: '/q/S/a', 'x-ks-groups': 'G2,G3', receipt: 'r' });
    assert.equal((await client.expectError('too-many-groups')).headers.get('receipt-id'), 'r');
    assert.equal((await node.sizes('a', 'S')).ready, 1);
    await node.stop();
  });
});

function iso(at: number): string {
  return new Date(at).toISOString();
}
