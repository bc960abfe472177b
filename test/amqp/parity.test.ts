import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import rhea, { type Message } from 'rhea';
import { AMQP_PREFIX, HEADER_FIELDS, PROPERTY_PREFIX } from '../../src/amqp/message.ts';
import type { Harness } from '../http/harness.ts';
import { addressOf } from '../session/addresses.ts';
import { HEADERS_TRIED, headerNames, headerTexts, ParityNode, textIn } from '../session/parity-node.ts';
import type { StompClient } from '../stomp/client.ts';
import { sampleBodies } from '../support/bodies.ts';
import { elementHeadersOf, headerOf, jsonOf, type QueueClient } from '../support/http-client.ts';
import { until } from '../support/until.ts';
import type { AmqpClient, Outcome } from './client.ts';

const { types } = rhea;
const data = (bytes: Uint8Array): object => rhea.message.data_section(Buffer.from(bytes));
const bytesOf = ({ body }: Message): Buffer => (body as { content: Buffer }).content;

describe('the content of an element over AMQP, HTTP and STOMP', () => {
  let node: ParityNode;
  let harness: Harness;
  let http: QueueClient;
  let amqp: AmqpClient;
  let stomp: StompClient;

  before(async () => {
    node = await ParityNode.start();
    harness = node.harness;
    http = node.http;
    amqp = await node.amqpClient();
    stomp = await node.stompClient();
  });
  after(() => node.stop());

  const send = async (queue: string, message: object, ns = 'N'): Promise<Outcome> => {
    const sender = await amqp.sender(addressOf(queue, ns));
    const outcome = await sender.send(message);
    await sender.close();
    return outcome;
  };
  const pop = async (queue: string, ns = 'N'): Promise<Message> => {
    const receiver = await amqp.receiver(addressOf(queue, ns), { snd_settle_mode: 1 }, 1);
    const { message } = await receiver.next();
    await receiver.close();
    return message;
  };

  it('body, content type, content encoding, element headers: sent over AMQP, received unchanged over HTTP and STOMP', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const queue = harness.queue();
      const message = {
        body: data(bytes),
        content_type: contentType,
        ...(contentEncoding !== null && { content_encoding: contentEncoding }),
        subject: 'Größe',
        application_properties: { colour: 'blue; light', size: '☃' },
      };
      for (let i = 0; i < 2; i++) assert.equal((await send(queue, message)).kind, 'accepted');
      const answer = await http.get('N', queue, { to: 0 });
      assert.ok(bytes.equals(answer.body), name);
      assert.equal(answer.headers['content-type'], contentType);
      assert.equal(answer.headers['content-encoding'] ?? null, contentEncoding);
      assert.deepEqual(
        [...elementHeadersOf(answer)],
        [
          ['subject', Buffer.from('Größe').toString('latin1')],
          ['colour', 'blue; light'],
          ['size', Buffer.from('☃').toString('latin1')],
        ],
      );
      await stomp.ask('SUBSCRIBE', { destination: `/q/N/${queue}`, id: queue });
      const frame = await stomp.expect('MESSAGE');
      assert.ok(bytes.equals(frame.body), name);
      assert.equal(frame.headers.get('content-type'), contentType);
      assert.equal(frame.headers.get('content-encoding') ?? null, contentEncoding);
      assert.equal(frame.headers.get('x-ks-hdr-subject'), 'Größe');
      assert.equal(frame.headers.get('x-ks-hdr-size'), '☃');
      await stomp.ask('UNSUBSCRIBE', { id: queue });
    }
  });

  it('id, text in headers: inserted over HTTP and STOMP, received unchanged over AMQP', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const queue = harness.queue();
      const encoding = contentEncoding === null ? {} : { 'content-encoding': contentEncoding };
      const headers = {
        'x-ks-hdr-colour': 'blue; light',
        'x-ks-hdr-text': Buffer.from('Grüße ☃').toString('latin1'),
        'x-ks-hdr-latin': 'Gr\xfc\xdfe',
        'x-ks-hdr-reply-to': 'N/answers',
        ...encoding,
      };
      const { id } = jsonOf<{ id: string }>(
        await http.insert('N', queue, bytes, { contentType, headers, tries: 2 }),
      );
      const message = await pop(queue);
      assert.ok(bytes.equals(bytesOf(message)), name);
      assert.equal(message.message_annotations?.['x-opt-ks-id'], id);
      assert.equal(message.content_type, contentType);
      assert.equal(message.content_encoding ?? null, contentEncoding);
      // Header bytes that are not UTF-8 are read as ISO 8859-1, because AMQP strings are UTF-8 only.
      const properties = { colour: 'blue; light', text: 'Grüße ☃', latin: 'Grüße' };
      assert.deepEqual(message.application_properties, properties);
      assert.equal(message.reply_to, 'N/answers');
      assert.equal(message.delivery_count, 2);
      await stomp.ask(
        'SEND',
        {
          destination: `/q/N/${queue}`,
          'content-type': contentType,
          'content-length': bytes.length,
          ...encoding,
          'x-ks-hdr-text': 'Grüße ☃',
          'correlation-id': 'c',
        },
        bytes,
      );
      const back = await pop(queue);
      assert.ok(bytes.equals(bytesOf(back)), name);
      assert.equal(back.content_type, contentType);
      assert.equal(back.correlation_id, 'c');
      assert.deepEqual(back.application_properties, { text: 'Grüße ☃' });
    }
  });

  it('body: a string is returned as a string over AMQP, and as its bytes over HTTP', async () => {
    const queue = harness.queue();
    for (let i = 0; i < 2; i++) await send(queue, { body: 'Grüße, ☃' });
    assert.equal((await http.get('N', queue, { to: 0 })).body.toString(), 'Grüße, ☃');
    assert.equal((await pop(queue)).body, 'Grüße, ☃');
  });

  it('body: a map or a sequence is returned as such over AMQP, and as its encoding over HTTP, in both directions', async () => {
    const sequence = rhea.message.sequence_sections([[1], ['two']]);
    for (const [form, body] of [
      ['value', { a: 1, list: ['x', null] }],
      ['sequence', sequence],
    ] as const) {
      const queue = harness.queue();
      await send(queue, { body });
      const { body: encoding, headers } = await http.get('N', queue, { to: 0 });
      assert.equal(headers['x-ks-hdr-x-amqp-body'], form);
      await http.insert('N', queue, encoding, { headers: { 'x-ks-hdr-x-amqp-body': form } });
      const { body: back } = await pop(queue);
      if (form === 'value') assert.deepEqual(back, body);
      else assert.deepEqual((back as { content: unknown }).content, [[1], ['two']]);
    }
  });

  it('content type: a missing one stays missing over AMQP', async () => {
    const queue = harness.queue();
    await http.insert('N', queue, 'x');
    assert.equal((await pop(queue)).content_type, undefined);
    await send(queue, { body: data(Buffer.from('x')) });
    assert.equal((await http.get('N', queue, { to: 0 })).headers['content-type'], 'application/octet-stream');
  });

  it('maturity, tries, groups: are the same over both protocols', async () => {
    const queue = harness.queue();
    const at = harness.opened.now() + 60_000;
    await send(
      queue,
      {
        body: data(Buffer.from('x')),
        delivery_count: 3,
        message_annotations: { 'x-opt-delivery-time': types.wrap_timestamp(at) },
        application_properties: { 'x-ks-groups': 'A,B,C' },
      },
      'events',
    );
    await harness.passTime(60_000);
    for (const group of ['A', 'B']) {
      const answer = await http.get('events', queue, { to: 0, group });
      assert.equal(headerOf(answer, 'x-ks-tries'), '3');
      assert.equal(headerOf(answer, 'x-ks-mature'), new Date(at).toISOString());
    }
    assert.equal((await http.get('events', queue, { to: 0 })).status, 504);
    const receiver = await amqp.receiver(`${addressOf(queue, 'events')}?group=C`, {}, 1);
    const { message, delivery } = await receiver.next();
    assert.equal(message.delivery_count, 3);
    assert.deepEqual(message.message_annotations?.['x-opt-ks-mature'], new Date(at));
    assert.equal(message.message_annotations?.['x-opt-ks-group'], 'C');
    delivery.accept();
    await receiver.close();
  });

  it('rollback: counts a failed try, with the same delays; released counts none', async () => {
    const queue = harness.queue();
    const sizesAre = (...expected: number[]): Promise<void> =>
      until(async () => {
        const { size, schedSize, resvSize } = jsonOf<Record<string, unknown>>(await http.status('N', queue));
        return JSON.stringify([size, schedSize, resvSize]) === JSON.stringify(expected);
      });
    await http.insert('N', queue, 'x');
    const client = await node.amqpClient();
    const receiver = await client.receiver(addressOf(queue), {}, 1);
    (await receiver.next()).delivery.release();
    (await receiver.take()).delivery.modified({ delivery_failed: true });
    await sizesAre(1, 0, 0);
    const reserved = await http.reserve('N', queue, { to: 0 });
    assert.equal(headerOf(reserved, 'x-ks-tries'), '1');
    await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
    const again = await receiver.take();
    assert.equal(again.message.delivery_count, 2);
    again.delivery.reject();
    await sizesAre(0, 1, 0);
    await harness.passTime((2 * 2 * 3 + 2 * 3 + 3) * 1000);
    assert.equal(headerOf(await http.get('N', queue, { to: 0 }), 'x-ks-tries'), '3');
    await client.close();
  });

  it('refused headers: all other headers are returned unchanged over both protocols', async () => {
    const value = fc.oneof(
      { weight: 4, arbitrary: headerTexts },
      fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }),
      fc.boolean(),
    );
    let kept = 0;
    let refused = 0;
    const queue = harness.queue();
    const sender = await amqp.sender(addressOf(queue));
    const receiver = await amqp.receiver(addressOf(queue), { snd_settle_mode: 1 });
    await fc.assert(
      fc.asyncProperty(headerNames, value, async (header, own) => {
        // rhea would set the prototype of its object instead of a property.
        fc.pre(header !== '__proto__');
        const { kind, error } = await sender.send({ body: 'x', application_properties: { [header]: own } });
        if (kind === 'rejected') {
          refused += 1;
          assert.equal((error as { info?: { code?: string } }).info?.code, 'invalid-header');
          return;
        }
        kept += 1;
        const reserved = await http.reserve('N', queue, { to: 0 });
        assert.equal(textIn(reserved, keptName(header.toLowerCase())), String(own));
        await http.rollback('N', queue, headerOf(reserved, 'x-ks-id'));
        const { message } = await receiver.take();
        assert.deepEqual(message.application_properties, { [header]: own });
      }),
      { numRuns: HEADERS_TRIED },
    );
    assert.ok(kept > HEADERS_TRIED / 4 && refused > HEADERS_TRIED / 20, `${kept} kept, ${refused} refused`);
  });

  it('limits: headers are rejected over AMQP if HTTP could not return them', async () => {
    const most = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`n-${100 + i}`, ':'.repeat(120)]));
    const queue = harness.queue();
    for (const [properties, kind] of [
      [most, 'accepted'],
      [{ ...most, more: 'v' }, 'rejected'],
      [{ long: 'x'.repeat(8189) }, 'rejected'],
    ] as const) {
      const outcome = await send(queue, { body: data(Buffer.from('x')), application_properties: properties });
      assert.equal(outcome.kind, kind);
    }
    assert.equal(elementHeadersOf(await http.get('N', queue, { to: 0 })).size, 64);
  });
});

/**
 * The element header in which an application property is stored. Names of message fields, such as `to`, are reserved.
 */
function keptName(name: string): string {
  return HEADER_FIELDS.has(name) || name.startsWith(AMQP_PREFIX) ? `${PROPERTY_PREFIX}${name}` : name;
}
