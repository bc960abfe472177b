import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import rhea, { type Message } from 'rhea';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { sampleBodies } from '../support/bodies.ts';
import { newElement } from '../support/elements.ts';
import type { AmqpClient, Outcome, TestReceiver, TestSender } from './client.ts';
import { AmqpNode } from './node.ts';
import { conditionOf, KIND } from './raw-client.ts';
import {
  attachSender,
  begin,
  bytes,
  described,
  furtherTransfer,
  list8,
  map8,
  map32,
  str,
  transfer,
  uint,
} from './wire.ts';

const { types, message: rheaMessage } = rhea;
const data = (bytes: string | Buffer): object => rheaMessage.data_section(Buffer.from(bytes));
const AT = 1_800_000_000_123;

/** A list of nulls that has this many values, itself included. */
function listOfNulls(values: number): Buffer {
  const list = Buffer.alloc(9 + values - 1, 0x40);
  list[0] = 0xd0;
  list.writeUInt32BE(list.length - 5, 1);
  list.writeUInt32BE(values - 1, 5);
  return list;
}

describe('a message and its element', () => {
  let node: AmqpNode;
  let client: AmqpClient;
  let queue: string;
  let sender: TestSender;
  let queues = 0;

  before(async () => {
    node = await AmqpNode.start();
    client = await node.client();
  });
  after(() => node.stop());

  const fresh = async (ns = 'N'): Promise<void> => {
    queues += 1;
    queue = `elements-${queues}`;
    sender = await client.sender(`${ns}/${queue}`);
  };
  const send = async (message: object): Promise<Outcome> => {
    await fresh();
    return sender.send(message);
  };
  const accept = async (message: object): Promise<void> => {
    assert.deepEqual(await send(message), { kind: 'accepted', error: null });
  };
  const receive = async (): Promise<Message> => {
    const receiver: TestReceiver = await client.receiver(`N/${queue}`, { snd_settle_mode: 1 }, 1);
    const { message } = await receiver.next();
    await receiver.close();
    return message;
  };

  it('preserve binary bodies byte for byte, and content type and encoding character for character', async () => {
    for (const { name, bytes, contentType, contentEncoding } of sampleBodies()) {
      const types = {
        content_type: contentType,
        ...(contentEncoding && { content_encoding: contentEncoding }),
      };
      await accept({ body: data(bytes), ...types });
      const stored = await node.pop(queue);
      assert.ok(stored !== null && bytes.equals(stored.body), name);
      assert.equal(stored.contentType, contentType);
      assert.equal(stored.contentEncoding, contentEncoding);
      assert.deepEqual(stored.headers, []);
      await accept({ body: data(bytes), ...types });
      const back = await receive();
      assert.ok(bytes.equals((back.body as { content: Buffer }).content), name);
      assert.equal(back.content_type, contentType);
      assert.equal(back.content_encoding ?? null, contentEncoding);
    }
  });

  it('concatenate several data sections', async () => {
    await accept({
      body: rheaMessage.data_sections([Buffer.from('one,'), Buffer.from(''), Buffer.from('two')]),
    });
    assert.equal(Buffer.from((await node.pop(queue))?.body ?? []).toString(), 'one,two');
  });

  it('preserve whether the body was a string, a binary or null', async () => {
    const bodies = [
      'a string: é',
      Buffer.from([0, 255, 128]),
      null,
      '',
      'x'.repeat(300),
      Buffer.alloc(300, 7),
    ];
    for (const body of bodies) {
      await accept({ body });
      const stored = (await node.reserve(queue)) ?? assert.fail();
      assert.ok(Buffer.from(body ?? '').equals(stored.body));
      await accept({ body });
      assert.deepEqual((await receive()).body, body);
    }
  });

  it('preserve bodies that are maps, lists, numbers or sequences', async () => {
    const bodies = [
      { a: 'map', nested: { list: [1, 'two', null] } },
      ['a', 'list'],
      42,
      true,
      Array.from({ length: 10_000 }, (_, i) => i),
    ];
    for (const body of bodies) {
      await accept({ body });
      const stored = (await node.pop(queue)) ?? assert.fail();
      assert.deepEqual(stored.headers, ['x-amqp-body', 'value']);
      await accept({ body });
      assert.deepEqual((await receive()).body, body);
    }
    await accept({ body: types.wrap_array([1, 2], 0x71, undefined as never) });
    assert.deepEqual((await receive()).body, [1, 2]);
  });

  it('preserve the lists of an amqp-sequence body', async () => {
    const body = rheaMessage.sequence_sections([[1, 2], [], ['three']]);
    await accept({ body });
    assert.deepEqual((await node.pop(queue))?.headers, ['x-amqp-body', 'sequence']);
    await accept({ body });
    const back = (await receive()).body as { typecode?: number; content: unknown; multiple?: boolean };
    assert.deepEqual([back.typecode, back.multiple, back.content], [0x76, true, [[1, 2], [], ['three']]]);
  });

  it('are rejected if the body is malformed', async () => {
    await fresh();
    const raw = await node.rawClient(begin(), attachSender({ address: `N/${queue}` }));
    await raw.until(KIND.flow);
    const broken = [
      described(0x77, bytes(0xc0, 2, 9, 0x40)),
      described(0x76, str('no list')),
      Buffer.concat([described(0x77, uint(1)), described(0x76, list8())]),
      described(0x77, bytes(0x3f)),
    ];
    for (const [id, payload] of broken.entries()) {
      raw.write(transfer(payload, { id }));
      assert.equal(conditionOf(await raw.until(KIND.disposition)), 'amqp:decode-error');
    }
    assert.equal(await node.pop(queue), null);
  });

  /** Sends the payloads on one link, which must stay attached, and returns the conditions of their rejection. */
  const rejections = async (...payloads: Buffer[]): Promise<(string | null)[]> => {
    await fresh();
    const raw = await node.rawClient(begin(), attachSender({ address: `N/${queue}` }));
    await raw.until(KIND.flow);
    const conditions: (string | null)[] = [];
    for (const [id, payload] of payloads.entries()) {
      raw.write(transfer(payload, { id }));
      conditions.push(conditionOf(await raw.until(KIND.disposition)));
    }
    assert.equal(await node.pop(queue), null);
    return conditions;
  };

  it('are rejected if descriptors are nested at any depth, and the connection continues', async () => {
    const nested = Buffer.concat([bytes(0x00, 0x53, 0x71), Buffer.alloc(100_000)]);
    const described2 = bytes(0x00, 0x53, 0x71, 0x00, described(0x01, uint(1)), uint(1));
    assert.deepEqual(await rejections(nested, described2), ['amqp:decode-error', 'amqp:decode-error']);
    assert.deepEqual(node.logged, []);
  });

  it('are rejected if they have non-ASCII symbols or invalid chars, which the server never sends either', async () => {
    const values = [
      bytes(0xa3, 2, 0xc3, 0xa9),
      bytes(0x73, 0xff, 0xff, 0xff, 0xff),
      bytes(0x73, 0, 0, 0xd8, 0),
    ];
    const messages = values.map((value) => described(0x74, map8(str('a'), value)));
    assert.deepEqual(
      await rejections(...messages),
      values.map(() => 'amqp:decode-error'),
    );
    await fresh();
    const headers = ['a', 'Ã©', 'b', '4294967295', 'x-amqp-types', 'a=symbol, b=char'];
    await node.insert(queue, { body: Buffer.from('x'), headers });
    assert.deepEqual((await receive()).application_properties, { a: 'é', b: '4294967295' });
  });

  it('are rejected if a map has too many entries, before its values are read', async () => {
    const names = Array.from({ length: 10_000 }, (_, i) => [str(String(i)), bytes(0x3f)]).flat();
    // The first value has an unknown type, so reading it would give another error.
    assert.deepEqual(await rejections(described(0x74, map32(...names))), ['amqp:invalid-field']);
  });

  it('return a sequence of more lists than a message may have sections as data', async () => {
    await fresh();
    const headers = ['x-amqp-body', 'sequence'];
    for (const [count, typecode] of [
      [4096, 0x76],
      [4097, 0x75],
    ] as const) {
      await node.insert(queue, { body: Buffer.alloc(count, 0x45), headers });
      assert.equal(((await receive()).body as { typecode?: number }).typecode, typecode);
    }
  });

  it('are rejected with more values than the limit, and returned as data if another protocol inserted them', async () => {
    const { bodyValues } = AMQP_LIMITS;
    const large = await AmqpNode.start({ options: { bodyLimit: 2 * bodyValues } });
    try {
      const raw = await large.rawClient(begin(), attachSender({ address: 'N/values' }));
      await raw.until(KIND.flow);
      for (const [id, count] of [bodyValues, bodyValues + 1].entries()) {
        const message = described(0x77, listOfNulls(count));
        const middle = message.length >> 4;
        raw.write(transfer(message.subarray(0, middle), { id, more: true }));
        for (let from = middle; from < message.length; from += middle) {
          const end = from + middle;
          raw.write(furtherTransfer(message.subarray(from, end), end < message.length));
        }
        assert.equal(
          conditionOf(await raw.until(KIND.disposition)),
          count > bodyValues ? 'amqp:decode-error' : null,
        );
      }
      const headers = ['x-amqp-body', 'value'];
      await large.insert('returned', { body: listOfNulls(bodyValues + 1), headers });
      const receiver = await (await large.client()).receiver('N/returned', {}, 1);
      const { body } = (await receiver.next()).message;
      assert.equal((body as { typecode?: number }).typecode, 0x75);
    } finally {
      await large.stop();
    }
  });

  it('return a body as data if it is not an encoded value', async () => {
    for (const form of ['value', 'sequence']) {
      await fresh();
      await node.insert(queue, { body: Buffer.from('no encoding'), headers: ['x-amqp-body', form] });
      assert.equal(((await receive()).body as { content: Buffer }).content.toString(), 'no encoding');
    }
  });

  it('preserve fields of the properties as headers of the same names', async () => {
    const fields = {
      message_id: 'm-1',
      user_id: Buffer.from('test'),
      to: 'somewhere',
      subject: 'Größe',
      reply_to: 'N/answers',
      correlation_id: 'c-1',
      absolute_expiry_time: new Date(AT),
      creation_time: new Date(AT),
      group_id: 'g',
      group_sequence: 7,
      reply_to_group_id: 'rg',
    };
    await accept({ ...fields, body: data('x') });
    const back = await receive();
    for (const [name, value] of Object.entries(fields)) {
      assert.deepEqual((back as unknown as Record<string, unknown>)[name], value, name);
    }
    await accept({ ...fields, body: data('x') });
    assert.deepEqual((await node.pop(queue))?.headers, [
      ...['message-id', 'm-1', 'user-id', 'test', 'to', 'somewhere'],
      ...['subject', Buffer.from('Größe').toString('latin1'), 'reply-to', 'N/answers'],
      ...['correlation-id', 'c-1', 'absolute-expiry-time', String(AT), 'creation-time', String(AT)],
      ...['group-id', 'g', 'group-sequence', '7', 'reply-to-group-id', 'rg'],
    ]);
  });

  it('preserve the types of ids that are not strings', async () => {
    const ids = [
      42,
      Buffer.from('00112233445566778899aabbccddeeff', 'hex'),
      types.wrap_binary(Buffer.from([0, 1, 255])),
    ];
    for (const id of ids) {
      await accept({ message_id: id, correlation_id: id, body: data('x') });
      const { message_id, correlation_id } = await receive();
      const expected = typeof id === 'object' && 'value' in id ? id.value : id;
      assert.deepEqual(message_id, expected);
      assert.deepEqual(correlation_id, expected);
    }
  });

  it('preserve a user-id that is not valid UTF-8', async () => {
    const user_id = Buffer.from([1, 2, 255]);
    await accept({ user_id, body: data('x') });
    assert.deepEqual((await receive()).user_id, user_id);
  });

  it('preserve names and types of application properties, with values that every protocol can read', async () => {
    const properties = {
      colour: 'blue',
      orderId: 'A-1',
      big: types.wrap_ulong(2 ** 52),
      small: types.wrap_byte(-5),
      Flag: true,
      ratio: 0.25,
      nothing: null,
      when: new Date(AT),
      letter: types.wrap_char(0x1f600),
      bytes: Buffer.from([9, 0, 9]),
      word: types.wrap_symbol('sym'),
      subject: 'taken',
      'x-amqp-types': 'taken as well',
    };
    await accept({ body: data('x'), application_properties: properties });
    const { application_properties: back = {} } = await receive();
    assert.deepEqual(Object.keys(back).sort(), Object.keys(properties).sort());
    assert.deepEqual(back, {
      ...properties,
      big: 2 ** 52,
      small: -5,
      letter: 0x1f600,
      word: 'sym',
    });
    await accept({ body: data('x'), application_properties: properties });
    const { headers = [] } = (await node.pop(queue)) ?? {};
    const value = (name: string): string | undefined => headers[headers.indexOf(name) + 1];
    assert.deepEqual(['colour', 'orderid', 'big', 'small', 'flag', 'ratio', 'nothing', 'when'].map(value), [
      ...['blue', 'A-1', String(2 ** 52), '-5', 'true', '0.25', '', String(AT)],
    ]);
    assert.equal(value('x-amqp-property-subject'), 'taken');
    assert.match(value('x-amqp-types') ?? '', /(^|, )orderId, big=ulong, small=byte, Flag=boolean, /);
  });

  it('preserve message annotations and drop delivery annotations and the footer', async () => {
    await accept({
      message_annotations: { 'x-opt-colour': 'blue', 'x-opt-number': 5, 'x-opt-ks-id': 'not mine' },
      delivery_annotations: { 'x-opt-hop': 1 },
      footer: { hash: 1 },
      body: data('x'),
    });
    const back = await receive();
    const { 'x-opt-ks-id': id, 'x-opt-ks-mature': mature, ...others } = back.message_annotations ?? {};
    assert.deepEqual(others, { 'x-opt-colour': 'blue', 'x-opt-number': 5 });
    assert.notEqual(id, 'not mine');
    assert.deepEqual(mature, new Date(node.clock.now()));
    assert.equal(back.delivery_annotations, undefined);
    assert.equal(back.footer, undefined);
  });

  it('carry id and maturity as annotations and tries as delivery-count', async () => {
    await fresh();
    const [id] = await node.insert(queue, { tries: 300, body: Buffer.from('x') });
    const { message_annotations: annotations, delivery_count, durable } = await receive();
    assert.deepEqual(annotations, { 'x-opt-ks-id': id, 'x-opt-ks-mature': new Date(node.clock.now()) });
    assert.equal(delivery_count, 300);
    assert.equal(durable, true);
  });

  it('have unique map keys and the server’s own annotations, whatever headers another protocol set', async () => {
    await fresh();
    const forged = ['x-opt-ks-id', 'x-opt-ks-mature', 'x-opt-ks-group'].flatMap((name) => [
      `x-amqp-annotation-${name}`,
      'forged',
    ]);
    const names = ['x-amqp-property-colour', 'colour', 'x-amqp-own', 'x-amqp-property-x-amqp-own'];
    const headers = [...forged, ...names.flatMap((name) => [name, `of ${name}`])];
    const [id] = await node.insert(queue, { headers, body: Buffer.from('x') });
    const { message_annotations: annotations, application_properties: properties } = await receive();
    assert.deepEqual(annotations, { 'x-opt-ks-id': id, 'x-opt-ks-mature': new Date(node.clock.now()) });
    assert.deepEqual(properties, {
      'x-amqp-property-colour': 'of x-amqp-property-colour',
      colour: 'of colour',
      'x-amqp-own': 'of x-amqp-own',
    });
  });

  it('take delivery-count as the initial tries', async () => {
    await accept({ delivery_count: 4, body: data('x') });
    assert.equal((await node.pop(queue))?.tries, 4);
  });

  it('mature at x-opt-delivery-time or x-next-t, or after x-opt-delivery-delay or x-delta-t', async () => {
    const ways = [
      (at: number) => ({ message_annotations: { 'x-opt-delivery-time': types.wrap_timestamp(at) } }),
      (at: number) => ({ message_annotations: { 'x-opt-delivery-time': types.wrap_long(at) } }),
      () => ({ message_annotations: { 'x-opt-delivery-delay': 5000 } }),
      (at: number) => ({ application_properties: { 'x-next-t': at } }),
      () => ({ application_properties: { 'x-delta-t': '5000' } }),
    ];
    for (const way of ways) {
      const at = node.clock.now() + 5000;
      await accept({ ...way(at), body: data('x') });
      assert.deepEqual(await node.sizes(queue), { ready: 0, scheduled: 1, reserved: 0 });
      node.clock.advance(5000);
      const due = (await node.pop(queue)) ?? assert.fail();
      assert.equal(due.matureAt, at);
      assert.deepEqual(due.headers, []);
    }
  });

  it('treat null as absent for the time, the delay and the groups', async () => {
    const annotations = { 'x-opt-delivery-time': null, 'x-opt-delivery-delay': null };
    const properties = { 'x-next-t': null, 'x-delta-t': null, 'x-ks-groups': null };
    await accept({
      message_annotations: annotations,
      application_properties: properties,
      body: data('x'),
    });
    assert.deepEqual((await node.pop(queue))?.headers, []);
  });

  it('are rejected if a header could not be returned over HTTP, and nothing is stored', async () => {
    const broken = [
      { application_properties: { 'two words': 'x' } },
      { application_properties: { lines: 'one\ntwo' } },
      { application_properties: { space: ' around ' } },
      { application_properties: { long: 'x'.repeat(9000) } },
      { application_properties: Object.fromEntries(Array.from({ length: 65 }, (_, i) => [`n${i}`, 'x'])) },
      { application_properties: { Twice: '1', twice: '2' } },
      { subject: 'one\ntwo' },
      { content_type: 'x'.repeat(300) },
    ];
    for (const fields of broken) {
      const { kind, error } = await send({ ...fields, body: data('x') });
      assert.equal(kind, 'rejected', JSON.stringify(fields).slice(0, 50));
      assert.equal(error?.condition, 'amqp:invalid-field');
      assert.equal((error as { info?: { code?: string } }).info?.code, 'invalid-header');
      assert.equal(await node.pop(queue), null);
    }
  });

  it('are rejected if a time, a count or the groups are invalid', async () => {
    const broken = [
      { application_properties: { 'x-next-t': 'soon' } },
      { application_properties: { 'x-delta-t': -1 } },
      { message_annotations: { 'x-opt-delivery-delay': 1.5 } },
      { delivery_count: 2_000_000 },
      { application_properties: { 'x-ks-groups': 'G1' } },
    ];
    for (const fields of broken) {
      const { kind, error } = await send({ ...fields, body: data('x') });
      assert.deepEqual([kind, error?.condition], ['rejected', 'amqp:invalid-field']);
      assert.equal(await node.pop(queue), null);
    }
  });

  it('are rejected if the bytes are not a well-formed message', async () => {
    const broken = [
      '',
      '00',
      '0053',
      '005375',
      '005375a005',
      '005399a000',
      '00537045',
      '00a3036162634000',
      '405377',
      // A header of six fields.
      '005370c00706404040404040005375a000',
      // A map of two pairs whose count is one, and a list too short for its count.
      '005374c10d02a10161a10162a10163a10164',
      '005370c000005375a000',
      // Application properties that occur twice.
      '005374c10702a10161a10162005374c10702a10163a10164',
    ];
    for (const hex of broken) {
      await fresh();
      const { kind, error } = await sender.send(Buffer.from(hex, 'hex'), 0);
      if (hex === '00537045') assert.equal(kind, 'accepted', 'a header alone: an empty body');
      else assert.deepEqual([hex, kind, error?.condition], [hex, 'rejected', 'amqp:decode-error']);
    }
  });

  it('map the headers of an element inserted over HTTP or STOMP to the fields of the same names', async () => {
    await fresh();
    const headers = [
      'correlation-id',
      'c',
      'group-sequence',
      'not a number',
      'Ö'.toLowerCase(),
      'x',
      'colour',
      'é',
    ];
    const plain = headers.filter((_, i) => i !== 4 && i !== 5);
    await node.insert(queue, newElement({ headers: plain, contentType: 'text/plain; x=\xe9' }));
    const back = await receive();
    assert.equal(back.correlation_id, 'c');
    assert.equal(back.content_type, undefined);
    assert.deepEqual(back.application_properties, {
      'content-type': 'text/plain; x=é',
      'group-sequence': 'not a number',
      colour: 'é',
    });
  });

  it('ignore type marks of other protocols that do not fit the values', async () => {
    await fresh();
    const marks =
      'a=int, b=uuid, c=ulong, d=boolean, e=double, f=char, g=nonsense, h=binary, i=null, __proto__=int';
    const headers = [...'abcdefghi'].flatMap((name) => [name, 'x y']);
    await node.insert(
      queue,
      newElement({ headers: [...headers, 'x-amqp-types', marks, 'x-amqp-body', 'what'] }),
    );
    const { application_properties: back } = await receive();
    assert.deepEqual(back, Object.fromEntries([...'abcdefghi'].map((name) => [name, 'x y'])));
  });
});
