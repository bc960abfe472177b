import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { EndpointDriver, testAnswers } from './endpoint.ts';
import { conditionOf, KIND } from './raw-client.ts';
import {
  attachReceiver,
  attachSender,
  begin,
  bytes,
  dataSection,
  described,
  detach,
  end,
  FALSE,
  frame,
  list8,
  list32,
  map8,
  NULL,
  open,
  smallUlong,
  str,
  sym,
  TRUE,
  transfer,
  ubyte,
  uint,
  type Wire,
} from './wire.ts';

const FRAMING = 'amqp:connection:framing-error';
const DECODE = 'amqp:decode-error';
const FIELD = 'amqp:invalid-field';
const LIMIT = 'amqp:resource-limit-exceeded';

describe('The connection endpoint, on attach', () => {
  const source = described(0x28, list8(str('N/q')));
  const target = described(0x29, list8(str('N/q')));
  const sender = [str('l'), uint(0), FALSE, NULL, NULL, source, target, NULL, NULL, uint(0)];
  const receiver = [str('l'), uint(0), TRUE, ubyte(2), ubyte(1)];
  const withSource = (...fields: Wire[]): Wire[] => [...receiver, described(0x28, list8(...fields))];
  const withTarget = (...fields: Wire[]): Wire[] => [...receiver, NULL, described(0x29, list8(...fields))];

  testAnswers('attach', {
    'a sender': [sender, 'passed'],
    'a receiver': [receiver, 'passed'],
    'no name': [[NULL, uint(0), TRUE], FIELD],
    'a name that is not UTF-8': [[str(Buffer.from([0xff])), uint(0), TRUE], DECODE],
    'a name of 513 bytes': [[str('n'.repeat(513)), uint(0), TRUE], LIMIT],
    'a name of 512 bytes': [[str('n'.repeat(512)), uint(0), TRUE], 'passed'],
    'addresses and a name of 4097 bytes in total': [
      [...receiver, ...[0x28, 0x29].map((type) => described(type, list32(str('a'.repeat(2048)))))],
      LIMIT,
    ],
    'addresses and a name of 4096 bytes in total': [
      [
        ...receiver,
        described(0x28, list32(str('a'.repeat(2048)))),
        described(0x29, list32(str('a'.repeat(2047)))),
      ],
      'passed',
    ],
    'no handle': [[str('l'), NULL, TRUE], DECODE],
    'a handle above handle-max': [[str('l'), uint(256), TRUE], FRAMING],
    'no role': [[str('l'), uint(0)], FIELD],
    'a role that is a number': [[str('l'), uint(0), uint(1)], DECODE],
    'a snd-settle-mode of 3': [[str('l'), uint(0), TRUE, ubyte(3)], FIELD],
    'a rcv-settle-mode of 2': [[str('l'), uint(0), TRUE, NULL, ubyte(2)], FIELD],
    'a source that is a target': [[...receiver, target], DECODE],
    'a source that is a string': [[...receiver, str('N/q')], DECODE],
    'a target that is a source': [[...receiver, NULL, source], DECODE],
    'a coordinator': [[...receiver, NULL, described(0x30, list8(sym('amqp:local-transactions')))], 'passed'],
    'a source that is a coordinator': [[...receiver, described(0x30, list8())], DECODE],
    'a source address that is not UTF-8': [withSource(str(Buffer.from('N/M\xfcller', 'latin1'))), DECODE],
    'a target address that is not UTF-8': [withTarget(str(Buffer.from('N/M\xfcller', 'latin1'))), DECODE],
    'an address that is a symbol': [withSource(sym('N/q')), DECODE],
    'an address that is a map': [withTarget(map8()), DECODE],
    'durable as a boolean': [withSource(NULL, TRUE), DECODE],
    'an expiry-policy as a string': [withSource(NULL, NULL, str('never')), DECODE],
    'dynamic as a number': [withSource(NULL, NULL, NULL, NULL, uint(1)), DECODE],
    'a filter that is a list': [withSource(NULL, NULL, NULL, NULL, NULL, NULL, NULL, list8()), DECODE],
    'a filter': [
      withSource(NULL, NULL, NULL, NULL, NULL, NULL, NULL, map8(sym('f'), described('x:y', str('G')))),
      'passed',
    ],
    'a default-outcome and outcomes': [
      withSource(...Array<Wire>(8).fill(NULL), described(0x26, list8()), sym('amqp:released:list')),
      'passed',
    ],
    'capabilities of a source that are a list': [
      withSource(...Array<Wire>(9).fill(NULL), sym('amqp:released:list'), list8()),
      DECODE,
    ],
    'offered-capabilities that are a string': [[...sender, NULL, str('x')], DECODE],
    'desired-capabilities that are a string': [[...sender, NULL, NULL, str('x')], DECODE],
    'properties that are a list': [[...sender, NULL, NULL, NULL, list8()], DECODE],
    'outcomes that are a list': [withSource(...Array<Wire>(9).fill(NULL), list8()), DECODE],
    'capabilities of a target that are a string': [
      withTarget(...Array<Wire>(6).fill(NULL), str('queue')),
      DECODE,
    ],
    'unsettled as a list': [[...receiver, NULL, NULL, list8()], DECODE],
    'a sender without initial-delivery-count': [sender.slice(0, 9), FIELD],
    'a max-message-size that is an uint': [[...sender, uint(1)], DECODE],
    'a max-message-size': [[...sender, smallUlong(1)], 'passed'],
    'a list nested three levels deep': [
      [...sender, NULL, NULL, NULL, map8(sym('p'), list8(list8(list8())))],
      'passed',
    ],
  });

  it('rejects a handle that is in use', () => {
    const driver = new EndpointDriver().withSession();
    driver.receive(attachReceiver());
    assert.equal(driver.rejection(attachReceiver({ name: 'other' })), 'amqp:session:handle-in-use');
  });

  it('treats links of one name but opposite directions as different, and detaches an older link of the same direction', () => {
    const driver = new EndpointDriver().withSession();
    driver.receive(attachReceiver({ handle: 0 }), attachSender({ handle: 1 })).clearFrames();
    driver.receive(attachSender({ handle: 2 }));
    assert.deepEqual(driver.kinds, [KIND.detach, KIND.attach, KIND.flow]);
    assert.equal(conditionOf(driver.frames[0] ?? Buffer.alloc(0)), 'amqp:link:stolen');
    assert.deepEqual(driver.detached, [driver.links[1]]);
    // Once the client has confirmed the detach, its handle is free again.
    assert.deepEqual(driver.clearFrames().receive(detach(1)).frames, []);
    assert.equal(driver.rejection(attachSender({ name: 'other', handle: 1 })), 'passed');
  });

  it('detaches an older link of the same name in another session', () => {
    const driver = new EndpointDriver().withSession().receive(begin(1), attachSender()).clearFrames();
    driver.receive(attachSender({ channel: 1 }));
    assert.deepEqual(
      driver.frames.map((bytes) => [bytes[10], bytes.readUInt16BE(6)]),
      [
        [KIND.detach, 0],
        [KIND.attach, 1],
        [KIND.flow, 1],
      ],
    );
  });

  it('answers a rejected link with an attach without terminus and a detach, and discards the transfers sent after it', () => {
    const driver = new EndpointDriver({ rejected: 'N/no' }).withSession().clearFrames();
    driver.receive(
      attachSender({ address: 'N/no' }),
      transfer(dataSection('x')),
      transfer(dataSection('y'), { id: 1 }),
    );
    assert.deepEqual(driver.kinds, [KIND.attach, KIND.detach]);
    assert.ok(driver.frames[0]?.includes(bytes(0x40, 0x40)));
    driver.endpoint.flush();
    assert.deepEqual(driver.kinds, [KIND.attach, KIND.detach, KIND.disposition]);
    assert.deepEqual(driver.messages, []);
    assert.equal(driver.receive(detach()).rejection(attachSender()), 'passed');
  });

  it('copies a filter out of the received chunk', () => {
    const filter = map8(sym('f'), str('G'));
    const source = described(0x28, list8(str('N/q'), ...Array<Wire>(6).fill(NULL), filter));
    const driver = new EndpointDriver().withSession().receive(frame('attach', [...receiver, source]));
    assert.equal(driver.sender.request.source?.filter?.buffer.byteLength, filter.length);
  });

  it('rejects a link beyond the handle-max of the session', () => {
    const driver = new EndpointDriver();
    driver.receive(open());
    driver.receive(begin(0, uint(0)));
    driver.receive(attachReceiver());
    assert.equal(driver.rejection(attachReceiver({ handle: 1, name: 'b' })), 'amqp:not-allowed');
  });

  it('bounds the detached links whose detach the client has not confirmed', () => {
    const driver = new EndpointDriver({ rejected: 'N/no' }).withSession();
    const attach = (i: number): Buffer => {
      const channel = Math.floor(i / 256);
      return attachSender({ address: 'N/no', name: `l${i}`, handle: i % 256, channel });
    };
    for (let channel = 1; channel <= 4; channel++) driver.receive(begin(channel));
    for (let i = 0; i < 1024; i++) driver.receive(attach(i));
    assert.equal(driver.rejection(attach(1024)), LIMIT);
    assert.equal(driver.receive(detach(0)).rejection(attach(0)), 'passed');
    driver.receive(end(1));
    for (let i = 1024; i < 1280; i++) driver.receive(attach(i));
    assert.equal(driver.rejection(attach(256)), 'amqp:connection:framing-error');
  });

  it('allows a name and a handle to be reused after a detach', () => {
    const driver = new EndpointDriver().withSession();
    driver.receive(attachReceiver());
    driver.receive(detach());
    assert.equal(driver.rejection(attachReceiver()), 'passed');
  });

  for (const name of ['l', '__proto__', 'constructor', 'ä', 'n'.repeat(300)]) {
    it(`echoes the name of the link ${name.slice(0, 12)}`, () => {
      const driver = new EndpointDriver().withSession().clearFrames();
      driver.receive(attachReceiver({ name }));
      assert.ok(driver.frames[0]?.includes(str(name)));
    });
  }
});

describe('The connection endpoint whose client accepts frames of 512 bytes', () => {
  const small = (): EndpointDriver => new EndpointDriver().receive(open(NULL, uint(512)), begin());
  const fits = ({ frames }: EndpointDriver): boolean => frames.every(({ length }) => length <= 512);

  it('closes the connection if its attach would not fit into a frame', () => {
    const seen = new Set<string>();
    for (let length = 1; length < 240; length += 7) {
      for (const attach of [attachReceiver, attachSender]) {
        const driver = small();
        seen.add(driver.rejection(attach({ name: 'n'.repeat(length), address: `N/${'q'.repeat(length)}` })));
        assert.ok(fits(driver), `${length}`);
      }
    }
    assert.deepEqual([...seen], ['passed', LIMIT]);
  });

  it('truncates the descriptions of errors', () => {
    const driver = small()
      .receive(attachSender(), attachReceiver({ name: 'm', handle: 1 }))
      .clearFrames();
    const info = { code: 'c'.repeat(100), parameter: 'p'.repeat(300) };
    const error = { condition: 'amqp:link:message-size-exceeded', description: 'é'.repeat(2000), info };
    driver.receive(transfer(Buffer.from('x')));
    driver.links[0]?.session.settleReceived(0, 'rejected', error);
    driver.sender.detach(error);
    driver.endpoint.close(error);
    assert.deepEqual(driver.kinds, [KIND.disposition, KIND.detach, KIND.close]);
    assert.ok(fits(driver));
    for (const bytes of driver.frames) assert.match(bytes.toString(), /message-size-exceeded.{3,5}é{50,}$/su);
  });
});
