import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { AMQP_LIMITS } from '../../src/amqp/guard/limits.ts';
import { FrameChecks } from './guard-frames.ts';
import {
  ACCEPTED,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  dataSection,
  described,
  detach,
  disposition,
  end,
  FALSE,
  frame,
  furtherTransfer,
  HEART_BEAT,
  list8,
  map8,
  NULL,
  rawFrame,
  str,
  sym,
  TRUE,
  transfer,
  ubyte,
  uint,
  uint32,
  type Wire,
} from './guard-wire.ts';

const DECODE = 'amqp:decode-error';
const FIELD = 'amqp:invalid-field';
const STATE = 'amqp:illegal-state';
const LIMIT = 'amqp:resource-limit-exceeded';
const NOT_IMPLEMENTED = 'amqp:not-implemented';
const NO_CREDIT = 'amqp:link:transfer-limit-exceeded';
const NO_WINDOW = 'amqp:session:window-violation';

const BODY = dataSection('body');

/** A session with a link on which the peer sends, and credit for it. */
function sending(credit = 10, window = 2048, messageBytes?: number): FrameChecks {
  const checks = new FrameChecks(messageBytes).begun();
  checks.hear(attachSender());
  checks.sayAttach('s:l', 0, true);
  checks.sayCredit(0, credit, window);
  return checks;
}

/** A transfer with other fields than usual, by their places. */
function odd(fields: Readonly<Record<number, Wire>>, payload = BODY): Buffer {
  const usual = [uint(0), uint(0), bin('t'), uint(0), FALSE, FALSE, ...Array<Wire>(5).fill(NULL)];
  return frame(
    'transfer',
    usual.map((field, i) => fields[i] ?? field),
    { payload },
  );
}

describe('The guard, of transfers', () => {
  it('strikes the format of a message out, and changes nothing else', () => {
    const formats: [Wire, Wire][] = [
      [uint(0), NULL],
      [bytes(0x52, 0), bytes(0xa0, 0)],
      [uint32(0), bytes(0x74, 0, 0, 0, 0)],
      [NULL, NULL],
    ];
    for (const [given, expected] of formats) {
      assert.deepEqual(sending().hear(odd({ 3: given })), odd({ 3: expected }));
    }
  });

  const cases: Readonly<Record<string, [Buffer, string]>> = {
    'no handle': [odd({ 0: NULL }), DECODE],
    'a handle that nothing is attached to': [odd({ 0: uint(5) }), 'amqp:session:unattached-handle'],
    'no delivery-id': [odd({ 1: NULL }), FIELD],
    'no delivery-tag': [odd({ 2: NULL }), FIELD],
    'a delivery-tag of 33 bytes': [odd({ 2: bin('t'.repeat(33)) }), FIELD],
    'a delivery-tag that is a string': [odd({ 2: str('t') }), DECODE],
    'another message-format': [odd({ 3: uint(1) }), NOT_IMPLEMENTED],
    'a settled that is a number': [odd({ 4: uint(1) }), DECODE],
    'a more that is a number': [odd({ 5: uint(1) }), DECODE],
    'a rcv-settle-mode of 2': [odd({ 6: ubyte(2) }), FIELD],
    'a state': [odd({ 7: ACCEPTED }), 'passed'],
    'a state of a transaction': [odd({ 7: described(0x34, list8(bin('x'))) }), NOT_IMPLEMENTED],
    'a state of no type': [odd({ 7: described(0x99, list8()) }), DECODE],
    'a delivery that goes on from another link': [odd({ 8: TRUE }), NOT_IMPLEMENTED],
    'an aborted delivery': [odd({ 9: TRUE }), NOT_IMPLEMENTED],
    'no payload': [odd({}, Buffer.alloc(0)), DECODE],
  };
  for (const [what, [given, expected]] of Object.entries(cases)) {
    it(`answers ${what} with ${expected}`, () => assert.equal(sending().refusal(given), expected));
  }

  it('refuses one on a link that the peer receives on', () => {
    const checks = new FrameChecks().begun();
    checks.hear(attachReceiver());
    assert.equal(checks.refusal(transfer(BODY)), STATE);
  });

  it('lets as many begin as there is credit', () => {
    const checks = sending(2);
    checks.hear(transfer(BODY, { id: 0 }));
    checks.hear(transfer(BODY, { id: 1 }));
    assert.equal(checks.refusal(transfer(BODY, { id: 2 })), NO_CREDIT);
    checks.sayCredit(0, 1);
    assert.equal(checks.refusal(transfer(BODY, { id: 2 })), 'passed');
  });

  it('gives none for a link that has not been answered', () => {
    const checks = new FrameChecks().begun();
    checks.hear(attachSender());
    assert.equal(checks.refusal(transfer(BODY)), NO_CREDIT);
  });

  it('does not count a delivery twice that has begun when new credit comes', () => {
    const checks = sending(2);
    checks.hear(transfer(BODY, { id: 0, more: true }));
    checks.sayCredit(0, 2);
    checks.hear(furtherTransfer(BODY, false));
    checks.hear(transfer(BODY, { id: 1 }));
    assert.equal(checks.refusal(transfer(BODY, { id: 2 })), NO_CREDIT);
  });

  it('lets as many come as the window of the session has room for', () => {
    const checks = sending(10, 2);
    checks.hear(transfer(BODY, { id: 0, more: true }));
    checks.hear(furtherTransfer(BODY, true));
    assert.equal(checks.refusal(furtherTransfer(BODY, false)), NO_WINDOW);
  });

  it('wants delivery-ids in their order, from wherever they begin', () => {
    const checks = sending();
    checks.hear(transfer(BODY, { id: 4_000_000_000 }));
    assert.equal(checks.refusal(transfer(BODY, { id: 4_000_000_002 })), FIELD);
    const back = sending();
    back.hear(transfer(BODY, { id: 5 }));
    assert.equal(back.refusal(transfer(BODY, { id: 5 })), FIELD);
  });

  it('wants a delivery to end before another begins on its link', () => {
    const checks = sending();
    checks.hear(transfer(BODY, { id: 0, more: true }));
    assert.equal(checks.refusal(transfer(BODY, { id: 1 })), STATE);
  });

  it('lets deliveries of two links mingle', () => {
    const checks = sending();
    checks.hear(attachSender({ name: 'm', handle: 1 }));
    checks.sayAttach('s:m', 1, true);
    checks.sayCredit(1, 1);
    checks.hear(transfer(BODY, { id: 0, more: true }));
    checks.hear(transfer(BODY, { id: 1, handle: 1, more: true }));
    checks.hear(furtherTransfer(BODY, false));
    assert.equal(checks.refusal(furtherTransfer(BODY, false, 1)), 'passed');
  });

  it('cuts a delivery that is too large one byte behind the limit', () => {
    const part = Buffer.alloc(400, 'x');
    const checks = sending(10, 2048, 1000);
    assert.deepEqual(payload(checks.hear(transfer(part, { more: true }))), part);
    assert.deepEqual(payload(checks.hear(furtherTransfer(part, true))), part);
    assert.deepEqual(payload(checks.hear(furtherTransfer(part, true))), part.subarray(0, 201));
    assert.deepEqual(payload(checks.hear(furtherTransfer(part, true))), Buffer.alloc(0));
    assert.deepEqual(payload(checks.hear(furtherTransfer(part, false))), Buffer.alloc(0));
    const next = transfer(Buffer.alloc(1001, 'y'), { id: 1 });
    assert.equal(payload(checks.hear(next))?.length, 1001);
    assert.equal(payload(checks.hear(transfer(Buffer.alloc(1002), { id: 2 })))?.length, 1001);
    assert.equal(checks.state.begunCost, 0);
  });

  it('keeps of a small part no more than itself', () => {
    const checks = sending();
    const around = Buffer.concat([transfer(BODY, { more: true }), Buffer.alloc(60_000)]);
    const heard = checks.hearIn(around, 0, around.length - 60_000);
    assert.ok(heard !== null && heard.buffer.byteLength < 200);
  });

  it('bounds what all deliveries that have begun keep', () => {
    const checks = new FrameChecks(8192).begun();
    const part = Buffer.alloc(8000);
    const most = 2 * AMQP_LIMITS.begunMessages * 8192;
    let id = 0;
    const beginOne = (): string => {
      checks.hear(attachSender({ name: `l${id}`, handle: id }));
      checks.sayAttach(`s:l${id}`, id, true);
      checks.sayCredit(id, 1);
      id += 1;
      return checks.refusal(transfer(part, { id: id - 1, handle: id - 1, more: true }));
    };
    while (checks.state.begunCost + 2 * part.length + 256 <= most) assert.equal(beginOne(), 'passed');
    assert.equal(beginOne(), LIMIT);
  });

  it('forgets a delivery with its link, and with its session', () => {
    const checks = sending();
    checks.hear(transfer(BODY, { more: true }));
    assert.ok(checks.state.begunCost > 0);
    checks.hear(detach());
    assert.equal(checks.state.begunCost, 0);
    const other = sending();
    other.hear(transfer(BODY, { more: true }));
    other.hear(end());
    assert.equal(other.state.begunCost, 0);
  });
});

describe('The guard, of dispositions', () => {
  /** A session on which that many deliveries were sent to the peer. */
  const sent = (count: number): FrameChecks => {
    const checks = new FrameChecks().begun();
    checks.hear(attachReceiver());
    for (let id = 0; id < count; id++) checks.say(transfer(BODY, { id }));
    return checks;
  };
  const stated = (state: Wire): Buffer => disposition(0, 0, state);
  const error = described(0x1d, list8(sym('a:b')));

  const states: Readonly<Record<string, [Wire, string]>> = {
    accepted: [ACCEPTED, 'passed'],
    'accepted by its symbol': [described('amqp:accepted:list', list8()), 'passed'],
    released: [described(0x26, list8()), 'passed'],
    rejected: [described(0x25, list8()), 'passed'],
    'rejected with an error': [described(0x25, list8(error)), 'passed'],
    'rejected with something else': [described(0x25, list8(str('no'))), DECODE],
    modified: [described(0x27, list8(TRUE, FALSE, map8(sym('x'), uint(1)))), 'passed'],
    'modified with a number': [described(0x27, list8(uint(1))), DECODE],
    'modified with annotations that are a list': [described(0x27, list8(TRUE, TRUE, list8())), DECODE],
    received: [described(0x23, list8(uint(0), bytes(0x44))), 'passed'],
    'received of no section': [described(0x23, list8()), DECODE],
    'a transaction': [described(0x34, list8(bin('x'), ACCEPTED)), NOT_IMPLEMENTED],
    'a type that there is not': [described(0x28, list8()), DECODE],
    'a string': [str('accepted'), DECODE],
    'an accepted that is no list': [described(0x24, map8()), DECODE],
  };
  for (const [what, [state, expected]] of Object.entries(states)) {
    it(`answers the state ${what} with ${expected}`, () => {
      assert.equal(sent(1).refusal(stated(state)), expected);
    });
  }

  const ranges: Readonly<Record<string, [Buffer, string]>> = {
    'no role': [frame('disposition', [NULL, uint(0)]), FIELD],
    'no first': [frame('disposition', [TRUE, NULL, uint(0)]), DECODE],
    'a delivery that was not sent': [disposition(5, 5), FIELD],
    'deliveries up to one that was not sent': [disposition(0, 2 ** 32 - 1), FIELD],
    'an end before the beginning': [disposition(3, 1), FIELD],
    'a batchable that is a number': [
      frame('disposition', [TRUE, uint(0), NULL, TRUE, NULL, uint(1)]),
      DECODE,
    ],
    'all that was sent': [disposition(0, 4), 'passed'],
    'one, without last': [frame('disposition', [TRUE, uint(4)]), 'passed'],
    'deliveries of the peer that have not come': [frame('disposition', [FALSE, uint(0)]), FIELD],
  };
  for (const [what, [given, expected]] of Object.entries(ranges)) {
    it(`answers ${what} with ${expected}`, () => assert.equal(sent(5).refusal(given), expected));
  }

  it('refuses one about more deliveries than can be unsettled', () => {
    const { unsettled } = AMQP_LIMITS;
    assert.equal(sent(unsettled + 1).refusal(disposition(1, unsettled)), 'passed');
    assert.equal(sent(unsettled + 1).refusal(disposition(0, unsettled)), LIMIT);
  });

  it('counts what it costs to go over them', () => {
    const checks = sent(100);
    const before = checks.effort;
    checks.hear(disposition(0, 0));
    const one = checks.effort - before;
    checks.hear(disposition(0, 99));
    assert.equal(checks.effort - before, 2 * one + 99);
  });

  it('lets the peer settle what it sent', () => {
    const checks = sending();
    checks.hear(transfer(BODY, { id: 7 }));
    const settle = (id: number): Buffer => frame('disposition', [FALSE, uint(id), uint(id), TRUE]);
    assert.equal(checks.refusal(settle(7)), 'passed');
    assert.equal(checks.refusal(settle(8)), FIELD);
  });

  it('leaves a state of null out, which rhea takes for an unknown one', () => {
    const fields = [TRUE, uint(0), uint(0), TRUE, NULL, FALSE];
    const short = sent(1).hear(frame('disposition', fields));
    const content = Buffer.concat(fields);
    const expected = bytes(0xc0, content.length + 1, 4, content);
    assert.deepEqual(short, rawFrame(0, 0, described(0x15, expected)));
    for (const more of [0, 300]) {
      const long = Buffer.concat([content, Buffer.alloc(more, NULL)]);
      const list = bytes(0xd0, uint32(long.length + 4).subarray(1), uint32(6 + more).subarray(1), long);
      const heard = sent(1).hear(rawFrame(0, 0, described(0x15, list)));
      list.writeUInt32BE(4, 5);
      assert.deepEqual(heard, rawFrame(0, 0, described(0x15, list)));
    }
  });
});

describe('The guard, of what rhea writes', () => {
  it('lets heart-beats and the header go as they are', () => {
    const checks = new FrameChecks().begun();
    assert.deepEqual(checks.say(HEART_BEAT), HEART_BEAT);
  });

  it('puts cargo on the last frame of its delivery, and on no other', () => {
    const checks = new FrameChecks().begun();
    const isOn = checks.carry(0, 3);
    const further = frame('transfer', [uint(0), uint(3), bin('t3'), uint(0), FALSE, FALSE]);
    const rides = [
      transfer(BODY, { id: 2 }),
      transfer(BODY, { id: 3, more: true }),
      frame('flow', [uint(0), uint(1), uint(0), uint(1)]),
      further,
      further,
    ].map((said) => {
      checks.say(said);
      return isOn();
    });
    assert.deepEqual(rides, [false, false, false, true, false]);
  });

  it('tells deliveries of two sessions apart', () => {
    const checks = new FrameChecks().begun();
    const isOn = checks.carry(1, 0);
    checks.say(transfer(BODY, { id: 0 }));
    assert.equal(isOn(), false);
    checks.say(transfer(BODY, { id: 0, channel: 1 }));
    assert.equal(isOn(), true);
  });

  it('bears answers to a session that the peer has ended meanwhile', () => {
    const checks = new FrameChecks().begun();
    checks.hear(begin(1));
    checks.hear(end(1));
    checks.sayBegin(1, 5);
    checks.sayAttach('s:l', 0, true, 5);
    checks.sayCredit(0, 1, 2048, 5);
    checks.say(transfer(BODY, { id: 0, channel: 5 }));
    assert.equal(checks.state.channelCount, 1);
  });
});

/** What is behind the performative of a transfer. */
function payload(whole: Buffer | null): Buffer | undefined {
  if (whole === null) return undefined;
  assert.equal(whole.readUInt32BE(0), whole.length);
  assert.equal(whole[11], 0xc0);
  return whole.subarray(13 + (whole[12] ?? 0));
}
