import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { EndpointDriver, testAnswers } from './endpoint.ts';
import {
  array8,
  array32,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  close,
  credit,
  described,
  detach,
  end,
  frame,
  HEART_BEAT,
  list8,
  list32,
  map8,
  NULL,
  open,
  rawFrame,
  str,
  sym,
  TRUE,
  uint,
  uint32,
  ushort,
  type Wire,
} from './wire.ts';

const FRAMING = 'amqp:connection:framing-error';
const DECODE = 'amqp:decode-error';
const FIELD = 'amqp:invalid-field';
const STATE = 'amqp:illegal-state';
const LIMIT = 'amqp:resource-limit-exceeded';
const ERROR = described(0x1d, list8(sym('amqp:internal-error'), str('why')));

describe('The connection endpoint, on any frame', () => {
  it('rejects a data offset inside the header or past the end', () => {
    for (const doff of [0, 1, 3, 255]) {
      assert.equal(new EndpointDriver().rejection(rawFrame(0, 0, Buffer.alloc(0), doff)), FRAMING);
    }
  });

  it('ignores an extended header', () => {
    const body = open().subarray(8);
    assert.equal(new EndpointDriver().rejection(rawFrame(0, 0, bytes(Buffer.alloc(4), body), 3)), 'passed');
  });

  it('rejects frame types other than AMQP', () => {
    for (const type of [1, 2, 255]) {
      assert.equal(new EndpointDriver().rejection(rawFrame(type, 0, open().subarray(8))), FRAMING);
    }
    assert.throws(() => new EndpointDriver().receive(rawFrame(1, 0, open().subarray(8))), {
      description: 'Frame type 1 is not allowed here. Allowed: 0 (AMQP) after the login.',
    });
  });

  it('accepts heart-beats at any time', () => {
    assert.deepEqual(new EndpointDriver().receive(HEART_BEAT).frames, []);
  });

  it('rejects every performative before open', () => {
    const early = [begin(), attachSender(), credit(0, 1), detach(), end(), close()];
    for (const bytes of early) assert.equal(new EndpointDriver().rejection(bytes), STATE);
  });

  it('rejects bodies that are not a performative', () => {
    for (const body of [
      described(0x10, str('open')),
      described(0x10, NULL),
      described(0x19, list8()),
      described('amqp:nothing:list', list8()),
      described('constructor', list8()),
      described('toString', list8()),
      list8(str('client')),
      bytes(0, str('amqp:open:list'), list8(str('client'))),
      bytes(0),
      bytes(0, 0x53),
      bytes(0, 0x53, 0x10),
      bytes(0, 0x53, 0x10, 0xd0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1),
      bytes(0, 0x53, 0x10, 0xc0, 4, 1, 0xa1, 1, 0x61, 0x40),
      bytes(0, 0x53, 0x10, 0xc0, 4, 2, 0xa1, 1, 0x61),
    ]) {
      const driver = new EndpointDriver();
      assert.match(
        driver.rejection(rawFrame(0, 0, body)),
        /decode-error|illegal-state/,
        body.toString('hex'),
      );
    }
  });

  it('accepts performatives described by their symbols, or by a ulong in any encoding', () => {
    const fields = list8(str('client'));
    for (const descriptor of [
      sym('amqp:open:list'),
      bytes(0x80, Buffer.from('0000000000000010', 'hex')),
      bytes(0x53, 0x10),
    ]) {
      assert.equal(new EndpointDriver().rejection(rawFrame(0, 0, bytes(0, descriptor, fields))), 'passed');
    }
    const high = bytes(0x80, Buffer.from('0000000100000010', 'hex'));
    assert.equal(new EndpointDriver().rejection(rawFrame(0, 0, bytes(0, high, fields))), STATE);
  });

  it('rejects a payload after any performative but a transfer', () => {
    const behind = (whole: Buffer): Buffer => rawFrame(0, 0, bytes(whole.subarray(8), Buffer.from('x')));
    assert.equal(new EndpointDriver().rejection(behind(open())), DECODE);
    const others = [begin(1), attachSender({ name: 'm', handle: 1 }), credit(0, 1), detach(), end(), close()];
    for (const other of others) {
      const driver = new EndpointDriver().withSession();
      driver.receive(attachReceiver());
      const onChannel = Buffer.from(behind(other));
      other.copy(onChannel, 6, 6, 8);
      assert.equal(driver.rejection(onChannel), DECODE);
    }
  });

  it('ignores frames after a close by either side, except the close of the client', () => {
    const closed = new EndpointDriver().withSession().receive(close()).clearFrames();
    assert.deepEqual(closed.receive(begin(1), close()).frames, []);
    const closing = new EndpointDriver().withSession();
    closing.endpoint.close({ condition: 'amqp:internal-error', description: 'why' });
    assert.deepEqual(closing.clearFrames().receive(begin(1)).frames, []);
    assert.equal(closing.endpoint.isPeerClosed, false);
    assert.deepEqual(closing.receive(close()).frames, []);
    assert.equal(closing.endpoint.isPeerClosed, true);
  });
});

describe('The connection endpoint, on open', () => {
  testAnswers('open', {
    'no container-id': [[NULL], FIELD],
    'a container-id that is a symbol': [[sym('a')], DECODE],
    'a hostname that is binary': [[str('a'), bin('b')], DECODE],
    'a max-frame-size of 511': [[str('a'), NULL, uint(511)], FIELD],
    'a max-frame-size of 0': [[str('a'), NULL, uint(0)], FIELD],
    'a max-frame-size of 512': [[str('a'), NULL, uint(512)], 'passed'],
    'a max-frame-size that is an ushort': [[str('a'), NULL, ushort(512)], DECODE],
    'a channel-max that is an uint': [[str('a'), NULL, NULL, uint(5)], DECODE],
    'an idle-time-out of 1 ms': [[str('a'), NULL, NULL, NULL, uint(1)], LIMIT],
    'an idle-time-out of 0': [[str('a'), NULL, NULL, NULL, uint(0)], 'passed'],
    'locales that are strings': [[str('a'), NULL, NULL, NULL, NULL, str('en')], DECODE],
    'locales that are an array of strings': [
      [str('a'), NULL, NULL, NULL, NULL, array8(0xa1, bytes(1, 0x61))],
      DECODE,
    ],
    'one locale': [[str('a'), NULL, NULL, NULL, NULL, sym('en')], 'passed'],
    'an array of locales': [
      [str('a'), NULL, NULL, NULL, NULL, array8(0xa3, bytes(2, Buffer.from('en')))],
      'passed',
    ],
    'properties that are a list': [[str('a'), ...Array<undefined>(8), list8()], DECODE],
    'properties whose keys are maps': [[str('a'), ...Array<undefined>(8), map8(map8(), NULL)], DECODE],
    'an array of more nulls than the frame has bytes': [
      [str('a'), ...Array<undefined>(8), map8(sym('p'), array32(5, 200, 0x40))],
      LIMIT,
    ],
    'properties within properties': [
      [str('a'), ...Array<undefined>(8), map8(sym('p'), map8(sym('q'), uint(1)))],
      'passed',
    ],
  });

  it('rejects a second open, and an open on a channel other than 0', () => {
    const driver = new EndpointDriver();
    driver.receive(open());
    assert.equal(driver.rejection(open()), STATE);
    assert.equal(new EndpointDriver().rejection(frame('open', [str('a')], { channel: 1 })), STATE);
  });
});

describe('The connection endpoint, on begin and end', () => {
  const fields = [undefined, uint(0), uint(1), uint(1)];

  testAnswers('begin', {
    'a channel that has a session': [fields, STATE],
  });

  for (const [what, more, expected] of [
    ['a remote-channel', [ushort(0), uint(0), uint(1), uint(1)], FIELD],
    ['no next-outgoing-id', [undefined, undefined, uint(1), uint(1)], DECODE],
    ['no incoming-window', [undefined, uint(0), undefined, uint(1)], DECODE],
    ['no outgoing-window', [undefined, uint(0), uint(1)], DECODE],
    ['a handle-max that is an ushort', [...fields, ushort(4)], DECODE],
    ['a handle-max of 0', [...fields, uint(0)], 'passed'],
    ['offered-capabilities that are a string', [...fields, undefined, str('x')], DECODE],
    ['desired-capabilities that are a string', [...fields, undefined, undefined, str('x')], DECODE],
    ['properties that are a list', [...fields, undefined, undefined, undefined, list8()], DECODE],
  ] as const) {
    it(`answers ${what} with ${expected}`, () => {
      assert.equal(
        new EndpointDriver().withSession().rejection(frame('begin', more, { channel: 1 })),
        expected,
      );
    });
  }

  it('rejects channels above its channel-max', () => {
    const { channelMax } = AMQP_LIMITS;
    assert.equal(new EndpointDriver().withSession().rejection(begin(channelMax)), 'passed');
    assert.equal(new EndpointDriver().withSession().rejection(begin(channelMax + 1)), FRAMING);
  });

  it('rejects more sessions than the peer’s channel-max allows', () => {
    const driver = new EndpointDriver();
    driver.receive(open(NULL, NULL, ushort(1)));
    driver.receive(begin(0));
    driver.receive(begin(7));
    assert.equal(driver.rejection(begin(9)), 'amqp:not-allowed');
    driver.receive(end(7));
    assert.equal(driver.rejection(begin(9)), 'passed');
  });

  it('rejects frames on a channel without a session', () => {
    const all = [attachSender({ channel: 1 }), credit(0, 1, 1), detach(0, 1), end(1)];
    for (const one of all) assert.equal(new EndpointDriver().withSession().rejection(one), FRAMING);
  });

  it('allows a channel to be reused after its end', () => {
    const driver = new EndpointDriver().withSession();
    assert.equal(driver.rejection(end()), 'passed');
    assert.equal(driver.rejection(end()), FRAMING);
  });

  testAnswers('end', {
    'no error': [[], 'passed'],
    'an error': [[ERROR], 'passed'],
    'an error of another type': [[described(0x24, list8())], DECODE],
    'an error that is a string': [[str('no')], DECODE],
    'an error without a condition': [[described(0x1d, list8())], FIELD],
    'an error whose condition is a string': [[described(0x1d, list8(str('no')))], DECODE],
  });
});

describe('The connection endpoint, on flow, detach and close', () => {
  const session = [undefined, uint(1), uint(0), uint(1)];

  testAnswers('flow', {
    'a flow for the session': [session, 'passed'],
    'no incoming-window': [[undefined, undefined, uint(0), uint(1)], DECODE],
    'no next-outgoing-id': [[undefined, uint(1), undefined, uint(1)], DECODE],
    'no outgoing-window': [[undefined, uint(1), uint(0)], DECODE],
    'a handle without a link': [[...session, uint(9), uint(0), uint(1)], 'amqp:session:unattached-handle'],
    'no link-credit from a receiver': [[...session, uint(0), uint(0)], FIELD],
    'credit from a receiver': [[...session, uint(0), uint(0), uint32(2 ** 32 - 1)], 'passed'],
    'an unknown delivery-count': [[...session, uint(0), undefined, uint(5)], 'passed'],
    'a link-credit that is a string': [[...session, uint(0), uint(0), str('1')], DECODE],
    'available as a string': [[...session, uint(0), uint(0), uint(1), str('x')], DECODE],
    'echo as a number': [[...session, NULL, NULL, NULL, NULL, NULL, uint(1)], DECODE],
    'properties that are a list': [[...session, NULL, NULL, NULL, NULL, NULL, NULL, list8()], DECODE],
    'drain as a number': [[...session, uint(0), uint(0), uint(1), undefined, uint(1)], DECODE],
  });

  it('answers a flow that requests an echo, for a link or the session', () => {
    const driver = new EndpointDriver({ credit: 7 })
      .withSession()
      .receive(attachSender(), attachReceiver({ handle: 1 }));
    const echo = (...link: (Wire | undefined)[]): Buffer =>
      frame('flow', [...session, ...link, ...Array<undefined>(5 - link.length), TRUE]);
    for (const link of [[], [uint(0)], [uint(1), uint(0), uint(3)]]) {
      driver.clearFrames().receive(echo(...link));
      assert.deepEqual(driver.kinds, [0x13]);
    }
    // Handle 1, delivery-count 0, credit 3, available 0, drain false.
    const tail = bytes(0x52, 1, 0x43, 0x52, 3, 0x40, 0x42);
    assert.deepEqual(driver.frames[0]?.subarray(-tail.length), tail);
  });

  it('regains the credit that a sender uses up by a drain', () => {
    const driver = new EndpointDriver({ credit: 10 }).withSession().receive(attachSender());
    const advanced = (count: number): Buffer =>
      frame('flow', [...session, uint(0), uint(count), uint(0), uint(0), TRUE]);
    driver.receive(advanced(7));
    assert.equal(driver.creditLost, 7);
    driver.receive(advanced(7), advanced(3), advanced(1000));
    assert.equal(driver.creditLost, 7);
  });

  testAnswers('detach', {
    'no handle': [[undefined, TRUE], DECODE],
    'a handle without a link': [[uint(4), TRUE], 'amqp:session:unattached-handle'],
    'closed as a number': [[uint(0), uint(1)], DECODE],
    'an error': [[uint(0), TRUE, ERROR], 'passed'],
    'an error of another type': [[uint(0), TRUE, described(0x28, list8())], DECODE],
  });

  it('rejects a second detach', () => {
    const driver = new EndpointDriver().withSession();
    driver.receive(attachReceiver());
    assert.equal(driver.rejection(detach()), 'passed');
    assert.equal(driver.rejection(detach()), 'amqp:session:unattached-handle');
  });

  testAnswers('close', {
    'an error': [[ERROR], 'passed'],
    'an error of another type': [[described(0x23, list8())], DECODE],
    'more fields than defined': [[NULL, uint(1), list32(uint(1))], 'passed'],
  });
});
