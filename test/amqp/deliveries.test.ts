import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { UNOBSERVED } from '../../src/session/socket-writer.ts';
import { EndpointDriver } from './endpoint.ts';
import { KIND } from './raw-client.ts';
import {
  ACCEPTED,
  attachReceiver,
  attachSender,
  begin,
  bin,
  bytes,
  credit,
  dataSection,
  described,
  detach,
  disposition,
  end,
  FALSE,
  frame,
  furtherTransfer,
  list8,
  map8,
  NULL,
  str,
  sym,
  TRUE,
  transfer,
  ubyte,
  uint,
  uint32,
  type Wire,
} from './wire.ts';

const DECODE = 'amqp:decode-error';
const FIELD = 'amqp:invalid-field';
const STATE = 'amqp:illegal-state';
const LIMIT = 'amqp:resource-limit-exceeded';
const NOT_IMPLEMENTED = 'amqp:not-implemented';
const NO_CREDIT = 'amqp:link:transfer-limit-exceeded';
const NO_WINDOW = 'amqp:session:window-violation';

const BODY = dataSection('body');

/** A session with an attached link on which the client sends, with the given credit. */
function sending(credit = 10, messageBytes?: number): EndpointDriver {
  return new EndpointDriver({ credit, ...(messageBytes === undefined ? {} : { messageBytes }) })
    .withSession()
    .receive(attachSender());
}

/** A session with an attached link on which the client receives, with the given credit. */
function receiving(
  granted: number,
  firstId = 0,
  open: Buffer = frame('open', [str('client')]),
): EndpointDriver {
  return new EndpointDriver({ firstId })
    .receive(open, begin(), attachReceiver())
    .receive(frame('flow', [uint(firstId), uint(2048), uint(0), uint(2048), uint(0), uint(0), uint(granted)]))
    .clearFrames();
}

/** An id in a frame that the client was sent, at the byte offset of its field. */
function idOf(frameBytes: Buffer, at: number): number {
  return frameBytes.readUInt32BE(at);
}

/** A transfer with some of its fields replaced, by field position. */
function odd(fields: Readonly<Record<number, Wire>>, payload = BODY): Buffer {
  const usual = [uint(0), uint(0), bin('t'), uint(0), FALSE, FALSE, ...Array<Wire>(5).fill(NULL)];
  return frame(
    'transfer',
    usual.map((field, i) => fields[i] ?? field),
    { payload },
  );
}

/** A session flow: the client has seen all transfers before `nextIncomingId` and has room for `size` more. */
const window = (nextIncomingId: number, size: number): Buffer =>
  frame('flow', [uint(nextIncomingId), uint(size), uint(0), uint(2048)]);

describe('The session endpoint, on transfers', () => {
  const cases: Readonly<Record<string, [Buffer, string]>> = {
    'no handle': [odd({ 0: NULL }), DECODE],
    'a handle without a link': [odd({ 0: uint(5) }), 'amqp:session:unattached-handle'],
    'no delivery-id': [odd({ 1: NULL }), FIELD],
    'no delivery-tag': [odd({ 2: NULL }), FIELD],
    'a delivery-tag of 33 bytes': [odd({ 2: bin('t'.repeat(33)) }), FIELD],
    'a delivery-tag that is a string': [odd({ 2: str('t') }), DECODE],
    'another message-format': [odd({ 3: uint(1) }), NOT_IMPLEMENTED],
    'settled as a number': [odd({ 4: uint(1) }), DECODE],
    'more as a number': [odd({ 5: uint(1) }), DECODE],
    'a rcv-settle-mode of 2': [odd({ 6: ubyte(2) }), FIELD],
    'a state': [odd({ 7: ACCEPTED }), 'passed'],
    'a transactional state': [odd({ 7: described(0x34, list8(bin('x'))) }), NOT_IMPLEMENTED],
    'a state of an unknown type': [odd({ 7: described(0x99, list8()) }), DECODE],
    'a delivery that continues from another link': [odd({ 8: TRUE }), NOT_IMPLEMENTED],
    'an aborted delivery': [odd({ 9: TRUE }), 'passed'],
    'no payload': [odd({}, Buffer.alloc(0)), 'passed'],
  };
  for (const [what, [given, expected]] of Object.entries(cases)) {
    it(`answers ${what} with ${expected}`, () => assert.equal(sending().rejection(given), expected));
  }

  it('rejects a transfer on a link on which the peer receives', () => {
    const driver = new EndpointDriver().withSession().receive(attachReceiver());
    assert.equal(driver.rejection(transfer(BODY)), STATE);
  });

  it('accepts as many deliveries as there is credit', () => {
    const driver = sending(2).receive(transfer(BODY, { id: 0 }), transfer(BODY, { id: 1 }));
    assert.equal(driver.rejection(transfer(BODY, { id: 2 })), NO_CREDIT);
    const [link] = driver.links;
    assert.ok(link !== undefined && 'grant' in link);
    link.grant(1);
    assert.equal(driver.rejection(transfer(BODY, { id: 2 })), 'passed');
  });

  it('accepts transfers that are pipelined with open, begin and attach', () => {
    const driver = new EndpointDriver().withSession().receive(attachSender(), transfer(BODY));
    assert.deepEqual(driver.messages, [[0, BODY, false]]);
  });

  it('counts a delivery in progress once when new credit is granted', () => {
    const driver = sending(1).receive(transfer(BODY, { id: 0, more: true }));
    const [link] = driver.links;
    assert.ok(link !== undefined && 'grant' in link);
    link.grant(1);
    driver.receive(furtherTransfer(BODY, false), transfer(BODY, { id: 1 }));
    assert.equal(driver.rejection(transfer(BODY, { id: 2 })), NO_CREDIT);
  });

  it('accepts as many deliveries as the session window allows, and reopens the window when they are settled', () => {
    const driver = sending(AMQP_LIMITS.unsettled + 10);
    for (let id = 0; id < AMQP_LIMITS.unsettled; id++) driver.receive(transfer(BODY, { id }));
    assert.equal(driver.rejection(transfer(BODY, { id: AMQP_LIMITS.unsettled })), NO_WINDOW);
    const { session } = driver.links[0] ?? assert.fail();
    driver.clearFrames();
    for (let id = 0; id < 10; id++) session.settleReceived(id, 'accepted');
    driver.endpoint.flush();
    assert.deepEqual(driver.kinds, [KIND.disposition, KIND.flow]);
    for (let id = 0; id < 10; id++) driver.receive(transfer(BODY, { id: AMQP_LIMITS.unsettled + id }));
    assert.equal(driver.rejection(transfer(BODY, { id: AMQP_LIMITS.unsettled + 10 })), NO_WINDOW);
  });

  it('requires consecutive delivery-ids, starting anywhere', () => {
    const driver = sending().receive(transfer(BODY, { id: 4_000_000_000 }));
    assert.equal(driver.rejection(transfer(BODY, { id: 4_000_000_002 })), FIELD);
    const back = sending().receive(transfer(BODY, { id: 5 }));
    assert.equal(back.rejection(transfer(BODY, { id: 5 })), FIELD);
  });

  it('accepts delivery-ids that wrap at 2^32 and settles them by one disposition', () => {
    const driver = sending().receive(
      transfer(BODY, { id: 2 ** 32 - 2 }),
      transfer(BODY, { id: 2 ** 32 - 1 }),
    );
    driver.receive(transfer(BODY, { id: 0 }), transfer(BODY, { id: 1 }));
    assert.deepEqual(
      driver.messages.map(([id]) => id),
      [2 ** 32 - 2, 2 ** 32 - 1, 0, 1],
    );
    const { session } = driver.links[0] ?? assert.fail();
    driver.clearFrames();
    for (const [id] of driver.messages) session.settleReceived(id, 'accepted');
    driver.endpoint.flush();
    assert.deepEqual(driver.kinds, [KIND.disposition]);
    assert.ok(driver.frames[0]?.includes(bytes(0x41, uint32(2 ** 32 - 2), uint(1), 0x41)));
    const settle = (first: number, last: number): Buffer =>
      frame('disposition', [FALSE, uint(first), uint(last), TRUE]);
    assert.equal(driver.rejection(settle(2 ** 32 - 1, 1)), 'passed');
    assert.equal(driver.rejection(settle(2 ** 32 - 1, 2)), FIELD);
  });

  it('requires a delivery to end before another begins on its link', () => {
    const driver = sending().receive(transfer(BODY, { id: 0, more: true }));
    assert.equal(driver.rejection(transfer(BODY, { id: 1 })), STATE);
  });

  it('allows the deliveries of two links to interleave', () => {
    const driver = sending().receive(attachSender({ name: 'm', handle: 1 }));
    driver.receive(transfer(BODY, { id: 0, more: true }), transfer(BODY, { id: 1, handle: 1, more: true }));
    driver.receive(furtherTransfer(BODY, false), furtherTransfer(BODY, false, 1));
    const twice = Buffer.concat([BODY, BODY]);
    assert.deepEqual(driver.messages, [
      [0, twice, false],
      [1, twice, false],
    ]);
  });

  it('treats a delivery as settled if any of its transfers is', () => {
    const driver = sending().receive(transfer(BODY, { id: 0, more: true }));
    driver.receive(frame('transfer', [uint(0), undefined, undefined, undefined, TRUE], { payload: BODY }));
    assert.deepEqual(driver.messages, [[0, Buffer.concat([BODY, BODY]), true]]);
  });

  it('drops an aborted delivery, which uses up its credit', () => {
    const driver = sending(2).receive(transfer(BODY, { id: 0, more: true }));
    driver.receive(frame('transfer', [uint(0), ...Array<undefined>(8), TRUE]));
    assert.deepEqual([driver.messages, driver.creditLost], [[], 1]);
    driver.receive(transfer(BODY, { id: 1 }));
    assert.deepEqual(driver.messages, [[1, BODY, false]]);
    assert.equal(driver.rejection(transfer(BODY, { id: 2 })), NO_CREDIT);
  });

  it('truncates a delivery that is too large to one byte over the limit', () => {
    const part = Buffer.alloc(400, 'x');
    const driver = sending(10, 1000);
    driver.receive(transfer(part, { more: true }), furtherTransfer(part, true), furtherTransfer(part, true));
    driver.receive(furtherTransfer(part, true), furtherTransfer(part, false));
    assert.equal(driver.messages[0]?.[1].length, 1001);
    driver.receive(transfer(Buffer.alloc(1002), { id: 1 }));
    assert.equal(driver.messages[1]?.[1].length, 1002);
  });

  it('copies a small part out of the received chunk', () => {
    const driver = sending();
    const around = Buffer.concat([transfer(BODY, { more: true }), Buffer.alloc(60_000)]);
    driver.endpoint.receive(around, 0, around.length - 60_000);
    driver.receive(furtherTransfer(Buffer.alloc(0), false));
    const [, kept] = driver.messages[0] ?? assert.fail();
    assert.ok(kept.equals(BODY) && kept.buffer.byteLength < 200);
  });

  /** Begins deliveries of 8000 bytes, each on its own link, until one is rejected. Returns their number plus `from`. */
  const fillBegun = (driver: EndpointDriver, from: number): number => {
    for (let i = from; ; i++) {
      driver.receive(attachSender({ name: `l${i}`, handle: i }));
      const refusal = driver.rejection(transfer(Buffer.alloc(8000), { id: i, handle: i, more: true }));
      if (refusal !== 'passed') {
        assert.equal(refusal, LIMIT);
        return i;
      }
    }
  };

  it('bounds the number of incomplete deliveries', () => {
    const count = fillBegun(new EndpointDriver({ messageBytes: 8192 }).withSession(), 0);
    assert.equal(count, AMQP_LIMITS.begunMessages);
  });

  it('restores the session window when a link ends with an incomplete delivery', () => {
    const driver = new EndpointDriver().withSession();
    for (let id = 0; id < AMQP_LIMITS.unsettled + 10; id++) {
      driver.receive(attachSender(), transfer(BODY, { id, more: true }), detach());
      driver.endpoint.flush();
    }
    assert.equal(driver.links.length, AMQP_LIMITS.unsettled + 10);
  });

  it('forgets an incomplete delivery when its link or session ends', () => {
    const driver = new EndpointDriver({ messageBytes: 8192 }).withSession();
    for (let id = 0; id < 20; id++) {
      const more = transfer(Buffer.alloc(8000), { id, more: true });
      driver.receive(attachSender(), more, detach());
    }
    for (let round = 0; round < 20; round++) {
      const more = transfer(Buffer.alloc(8000), { more: true, channel: 1 });
      driver.receive(begin(1), attachSender({ channel: 1 }), more, end(1));
    }
    assert.equal(fillBegun(driver, 20), 20 + AMQP_LIMITS.begunMessages);
  });
});

describe('The session endpoint, on dispositions', () => {
  /** A session on which `count` deliveries were sent to the peer. */
  const sent = (count: number): EndpointDriver => receiving(count).sendMessages(count);
  const stated = (state: Wire): Buffer => disposition(0, 0, state);
  const error = described(0x1d, list8(sym('a:b')));

  const states: Readonly<Record<string, [Wire, string]>> = {
    accepted: [ACCEPTED, 'passed'],
    'accepted by its symbol': [described('amqp:accepted:list', list8()), 'passed'],
    released: [described(0x26, list8()), 'passed'],
    rejected: [described(0x25, list8()), 'passed'],
    'rejected with an error': [described(0x25, list8(error)), 'passed'],
    'rejected with a string instead of an error': [described(0x25, list8(str('no'))), DECODE],
    modified: [described(0x27, list8(TRUE, FALSE, map8(sym('x'), uint(1)))), 'passed'],
    'modified with a number': [described(0x27, list8(uint(1))), DECODE],
    'modified with annotations that are a list': [described(0x27, list8(TRUE, TRUE, list8())), DECODE],
    received: [described(0x23, list8(uint(0), bytes(0x44))), 'passed'],
    'received without a section': [described(0x23, list8()), DECODE],
    'a transactional state': [described(0x34, list8(bin('x'), ACCEPTED)), NOT_IMPLEMENTED],
    'an unknown type': [described(0x28, list8()), DECODE],
    'a string': [str('accepted'), DECODE],
    'accepted without a list': [described(0x24, map8()), DECODE],
  };
  for (const [what, [state, expected]] of Object.entries(states)) {
    it(`answers the state ${what} with ${expected}`, () => {
      assert.equal(sent(1).rejection(stated(state)), expected);
    });
  }

  const ranges: Readonly<Record<string, [Buffer, string]>> = {
    'no role': [frame('disposition', [NULL, uint(0)]), FIELD],
    'no first': [frame('disposition', [TRUE, NULL, uint(0)]), DECODE],
    'a delivery that was not sent': [disposition(5, 5), FIELD],
    'deliveries up to one that was not sent': [disposition(0, 2 ** 32 - 1), FIELD],
    'a last before first': [disposition(3, 1), FIELD],
    'batchable as a number': [frame('disposition', [TRUE, uint(0), NULL, TRUE, NULL, uint(1)]), DECODE],
    'all sent deliveries': [disposition(0, 4), 'passed'],
    'one delivery, without last': [frame('disposition', [TRUE, uint(4)]), 'passed'],
    'deliveries that the peer has not sent': [frame('disposition', [FALSE, uint(0)]), FIELD],
  };
  for (const [what, [given, expected]] of Object.entries(ranges)) {
    it(`answers ${what} with ${expected}`, () => assert.equal(sent(5).rejection(given), expected));
  }

  it('skips any number of deliveries that are already settled', () => {
    const { unsettled } = AMQP_LIMITS;
    const driver = receiving(2 * unsettled)
      .sendMessages(unsettled)
      .receive(disposition(0, 0), window(unsettled, 2048))
      .sendMessages(1);
    assert.equal(driver.rejection(disposition(0, unsettled)), 'passed');
    assert.equal(driver.dispositions.length, unsettled + 1);
    assert.equal(driver.rejection(disposition((unsettled + 3 + 2 ** 31) % 2 ** 32, 2)), 'passed');
    assert.equal(driver.dispositions.length, unsettled + 1);
  });

  it('allows the peer to settle the deliveries that it sent', () => {
    const driver = sending().receive(transfer(BODY, { id: 7 }));
    const settle = (id: number): Buffer => frame('disposition', [FALSE, uint(id), uint(id), TRUE]);
    assert.equal(driver.rejection(settle(7)), 'passed');
    assert.equal(driver.rejection(settle(8)), FIELD);
  });

  it('settles each delivery once, even if dispositions repeat', () => {
    const driver = sent(3).receive(disposition(1, 1), disposition(0, 2), disposition(0, 2));
    assert.deepEqual(
      driver.dispositions.map(([id]) => id),
      [1, 0, 2],
    );
  });

  it('keeps a delivery with an outcome unsettled until the server settles it', () => {
    const driver = sent(2).receive(frame('disposition', [TRUE, uint(0), uint(1), FALSE, ACCEPTED]));
    assert.deepEqual(driver.dispositions, [
      [0, 0x24, false],
      [1, 0x24, false],
    ]);
    driver.clearFrames();
    const { sender } = driver;
    for (const one of [...driver.sent, ...driver.sent.slice(1)]) sender.session.settleSent(one);
    driver.endpoint.flush();
    assert.deepEqual(driver.kinds, [KIND.disposition]);
    assert.equal(sender.unsettledCount, 0);
    assert.equal(driver.receive(disposition(0, 1)).dispositions.length, 2);
  });

  it('never applies an old delivery-id to the delivery that took its slot', () => {
    const { unsettled } = AMQP_LIMITS;
    const driver = receiving(3 * unsettled)
      .sendMessages(unsettled)
      .receive(disposition(0, unsettled - 1), window(unsettled, 2048));
    driver.sendMessages(unsettled);
    const { length } = driver.dispositions;
    driver.receive(disposition(0, unsettled - 1));
    assert.equal(driver.dispositions.length, length);
    // Nor does the server, which may settle a delivery after its client has.
    const { sender } = driver;
    for (const one of driver.sent.slice(0, unsettled)) sender.session.settleSent(one);
    assert.equal(sender.unsettledCount, unsettled);
  });
});

describe('The session endpoint, when it sends', () => {
  it('sends only as much as the client’s window allows, and the rest when it opens', () => {
    const driver = receiving(10).receive(window(0, 2)).sendMessages(5);
    assert.deepEqual([driver.kinds.length, driver.sender.sendable], [2, 0]);
    driver.receive(window(1, 2));
    assert.equal(driver.kinds.length, 3);
    driver.receive(window(3, 2048));
    assert.equal(driver.kinds.length, 5);
    assert.equal(driver.sender.sendable, 5);
  });

  it('numbers transfers and deliveries across the wrap at 2^32, and accepts dispositions for them', () => {
    const firstId = 2 ** 32 - 3;
    const driver = receiving(10, firstId).sendMessages(6);
    const ids = driver.frames.map((bytes) => idOf(bytes, 20));
    assert.deepEqual(ids, [2 ** 32 - 3, 2 ** 32 - 2, 2 ** 32 - 1, 0, 1, 2]);
    driver.receive(disposition(2 ** 32 - 1, 1));
    assert.deepEqual(
      driver.dispositions.map(([id]) => id),
      [2 ** 32 - 1, 0, 1],
    );
    // The client has seen five of the six transfers and has room for four.
    driver.receive(frame('flow', [uint(2), uint(4), uint(0), uint(2048)]));
    assert.equal(driver.sender.session.sendable, 3);
    assert.equal(driver.rejection(disposition(2, 3)), FIELD);
  });

  it('counts unsettled deliveries across the wrap at 2^32', () => {
    const { unsettled } = AMQP_LIMITS;
    const driver = receiving(2 * unsettled, 2 ** 32 - 100).sendMessages(unsettled);
    assert.equal(driver.sender.session.available, 0);
    assert.throws(() => driver.sendMessages(1), /no room/);
    driver.receive(disposition(2 ** 32 - 100, 99));
    assert.equal(driver.sender.session.available, 200);
  });

  it('splits messages into frames of the client’s max-frame-size', () => {
    const open = frame('open', [str('client'), NULL, uint(512)]);
    const driver = receiving(3, 0, open).sendMessages(1, 1500);
    assert.equal(driver.kinds.length, 4);
    assert.ok(driver.frames.every(({ length }) => length <= 512));
    assert.deepEqual(
      driver.observers.map((observer) => observer !== UNOBSERVED),
      [false, false, false, true],
    );
    const sizes = driver.frames.map((bytes) => bytes.length - 13 - (bytes[12] ?? 0));
    assert.equal(
      sizes.reduce((sum, size) => sum + size),
      1500,
    );
  });

  it('sends the frames of a message only as far as the writer takes them', () => {
    const open = frame('open', [str('client'), NULL, uint(512)]);
    const driver = receiving(3, 0, open);
    driver.canWrite = false;
    driver.sendMessages(2, 1500);
    assert.equal(driver.kinds.length, 0);
    driver.receive(window(0, 1));
    driver.canWrite = true;
    driver.endpoint.sendQueued();
    assert.equal(driver.kinds.length, 1);
    driver.receive(window(1, 2048));
    assert.equal(driver.kinds.length, 8);
  });

  it('reports used credit after the link’s own queued messages, but not after those of other links', () => {
    const driver = receiving(10).receive(window(0, 1)).sendMessages(3);
    driver.receive(
      frame('flow', [uint(0), uint(1), uint(0), uint(2048), uint(0), uint(0), uint(10), NULL, TRUE]),
    );
    const drained = driver.sender;
    assert.equal(drained.isDraining, true);
    drained.drained();
    assert.deepEqual([driver.kinds, drained.sendable], [[KIND.transfer], 0]);
    driver.receive(attachReceiver({ name: 'other', handle: 1 })).clearFrames();
    driver.sender.drained();
    assert.deepEqual(driver.kinds, [KIND.flow]);
    driver.clearFrames().receive(window(1, 10));
    assert.deepEqual(driver.kinds, [KIND.transfer, KIND.transfer, KIND.flow]);
    // Delivery-count 10, credit 0, drain true.
    const tail = bytes(0x52, 10, 0x43, 0x40, 0x41);
    assert.deepEqual(driver.frames.at(-1)?.subarray(-tail.length), tail);
  });

  /** A flow with link fields. */
  const linkFlow = (handle: number, size: number, given: object): Buffer => {
    const {
      seen,
      count = 100,
      drain = false,
      echo = false,
    } = given as {
      seen?: number;
      count?: number;
      drain?: boolean;
      echo?: boolean;
    };
    const fields = [uint(0), uint(size), uint(0), uint(2048), uint(handle)];
    const ofLink = [seen === undefined ? NULL : uint(seen), uint(count), NULL];
    return frame('flow', [...fields, ...ofLink, drain ? TRUE : FALSE, echo ? TRUE : FALSE]);
  };

  it('queues a single flow per link, however many echoes the client requests, and sends it when the window opens', () => {
    const driver = receiving(100).receive(window(0, 0)).sendMessages(2).clearFrames();
    const echo = linkFlow(0, 0, { seen: 0, echo: true });
    for (let i = 0; i < 200_000; i++) driver.endpoint.receive(echo, 0, echo.length);
    driver.receive(linkFlow(0, 0, { seen: 0, drain: true }));
    driver.sender.drained();
    assert.deepEqual(driver.kinds, []);
    driver.receive(window(0, 10));
    assert.deepEqual(driver.kinds, [KIND.transfer, KIND.transfer, KIND.flow]);
    // Delivery-count 100, credit 0, drain true.
    const tail = bytes(0x52, 100, 0x43, 0x40, 0x41);
    assert.deepEqual(driver.frames.at(-1)?.subarray(-tail.length), tail);
  });

  for (const [what, seen] of [
    ['claims to have seen more than was sent', 100],
    ['names no delivery-count', undefined],
  ] as const) {
    it(`grants no credit again that a drain has used up, even if the client ${what}`, () => {
      const driver = receiving(100).receive(window(0, 0)).sendMessages(1);
      for (let i = 0; i < 4; i++) {
        driver.receive(
          linkFlow(0, 0, { ...(seen !== undefined && { seen }), count: 2 ** 32 - 1, drain: true }),
        );
        driver.sender.drained();
        const { credit: left, queued } = driver.sender;
        assert.ok(left + queued < 2 ** 32, `${left} + ${queued}`);
      }
      driver.clearFrames().receive(linkFlow(0, 10, { seen: 100, count: 2 ** 32 - 1, echo: true }));
      assert.deepEqual(driver.kinds.slice(0, 2), [KIND.transfer, KIND.flow]);
    });
  }

  it('subtracts deliveries in flight from new credit', () => {
    const driver = receiving(5).sendMessages(3);
    driver.receive(credit(0, 4));
    assert.equal(driver.sender.credit, 1);
    driver.receive(frame('flow', [uint(3), uint(2048), uint(0), uint(2048), uint(0), uint(3), uint(4)]));
    assert.equal(driver.sender.credit, 4);
    driver.receive(credit(0, 2));
    assert.equal(driver.sender.credit, 0);
    driver.receive(
      frame('flow', [uint(3), uint(2048), uint(0), uint(2048), uint(0), uint(3), uint32(2 ** 32 - 1)]),
    );
    assert.equal(driver.sender.credit, 2 ** 32 - 1);
  });

  it('counts credit without a delivery-count from the first delivery on', () => {
    const driver = receiving(5).sendMessages(3);
    driver.receive(frame('flow', [uint(0), uint(2048), uint(0), uint(2048), uint(0), NULL, uint(4)]));
    assert.equal(driver.sender.credit, 1);
  });

  it('keeps an unsettled delivery when a disposition names a much later, pre-settled one', () => {
    const driver = receiving(100).sendMessages(1).sendMessages(40, 4, true).clearFrames();
    for (let id = 1; id <= 40; id++) driver.receive(disposition(id, id));
    assert.deepEqual([driver.dispositions, driver.sender.unsettledCount], [[], 1]);
    driver.receive(disposition(0, 0));
    assert.deepEqual([driver.dispositions, driver.sender.unsettledCount], [[[0, 0x24, true]], 0]);
  });

  it('skips deliveries that a disposition names again, even if later ones took their slots', () => {
    const driver = receiving(100).sendMessages(3).receive(disposition(0, 2)).clearFrames();
    driver.sendMessages(16).receive(disposition(0, 3));
    assert.deepEqual(
      driver.dispositions.map(([id]) => id),
      [0, 1, 2, 3],
    );
    assert.equal(driver.sender.unsettledCount, 15);
  });

  it('drops the queued messages of a link that ends, and sends those queued after them', () => {
    const driver = receiving(10).receive(attachReceiver({ name: 'm', handle: 1 }), window(0, 1));
    driver
      .receive(frame('flow', [uint(0), uint(1), uint(0), uint(2048), uint(1), uint(0), uint(9)]))
      .clearFrames();
    const [first, second] = driver.links;
    assert.ok(first !== undefined && 'drained' in first && second !== undefined && 'drained' in second);
    driver.links.reverse();
    driver.sendMessages(3);
    driver.links.reverse();
    driver.sendMessages(1);
    driver.receive(detach(0));
    assert.deepEqual(driver.lost, [1, 2]);
    assert.deepEqual(driver.kinds, [KIND.transfer, KIND.detach]);
    driver.receive(window(1, 5));
    assert.deepEqual(driver.kinds, [KIND.transfer, KIND.detach, KIND.transfer]);
    assert.deepEqual([first.unsettledCount, second.unsettledCount], [0, 1]);
    // Clients close their connection if a delivery-id is skipped.
    assert.deepEqual([idOf(driver.frames[0] ?? BODY, 20), idOf(driver.frames[2] ?? BODY, 20)], [0, 1]);
    assert.equal(second.session.available, AMQP_LIMITS.unsettled - 1);
  });

  it('keeps its counts consistent over any order of sends, dispositions, windows and credit', () => {
    const step = fc.oneof(
      fc.record({ kind: fc.constant('send' as const), count: fc.integer({ min: 1, max: 40 }) }),
      fc.record({
        kind: fc.constant('settle' as const),
        from: fc.nat(50),
        count: fc.integer({ min: 1, max: 60 }),
      }),
      fc.record({ kind: fc.constant('window' as const), size: fc.nat(60) }),
      fc.record({ kind: fc.constant('credit' as const), count: fc.nat(80) }),
    );
    fc.assert(
      fc.property(
        fc.array(step, { maxLength: 60 }),
        fc.constantFrom(0, 2 ** 32 - 70, 2 ** 31 - 60),
        (steps, firstId) => {
          const driver = receiving(100, firstId);
          const { sender } = driver;
          const { session } = sender;
          const unsettled = new Set<number>();
          const at = (offset: number): number => (firstId + offset) >>> 0;
          const transfers = (): number => driver.kinds.filter((kind) => kind === KIND.transfer).length;
          let sent = 0;
          let size = 2048;
          let seen = 0;
          for (const one of steps) {
            if (one.kind === 'send') {
              const count = Math.min(one.count, sender.sendable);
              for (let i = 0; i < count; i++) unsettled.add(sent + i);
              sent += count;
              driver.sendMessages(count);
            } else if (one.kind === 'settle') {
              const last = Math.min(one.from + one.count, sent) - 1;
              if (last < one.from) continue;
              driver.receive(disposition(at(one.from), at(last)));
              for (let i = one.from; i <= last; i++) unsettled.delete(i);
            } else if (one.kind === 'window') {
              seen = transfers();
              size = one.size;
              driver.receive(window(at(seen), size));
            } else {
              const flow = [
                uint(at(seen)),
                uint(size),
                uint(0),
                uint(2048),
                uint(0),
                uint(seen),
                uint(one.count),
              ];
              driver.receive(frame('flow', flow));
              assert.equal(sender.credit, Math.max(0, one.count - (sent - seen)));
            }
            assert.ok(transfers() - seen <= size);
            assert.equal(sender.unsettledCount, unsettled.size);
            assert.equal(session.available, AMQP_LIMITS.unsettled - unsettled.size);
          }
          driver.receive(window(at(transfers()), 2048));
          assert.equal(transfers(), sent);
          assert.equal(new Set(driver.dispositions.map(([id]) => id)).size, driver.dispositions.length);
          assert.equal(driver.dispositions.length, sent - unsettled.size);
        },
      ),
      { numRuns: 200 },
    );
  });
});
