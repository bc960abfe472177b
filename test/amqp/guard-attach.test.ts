import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { answers, FrameChecks } from './guard-frames.ts';
import {
  attachReceiver,
  attachSender,
  begin,
  bytes,
  described,
  detach,
  FALSE,
  frame,
  list8,
  list32,
  map8,
  NULL,
  open,
  rawFrame,
  smallUlong,
  str,
  sym,
  TRUE,
  ubyte,
  uint,
  uint32,
  type Wire,
} from './guard-wire.ts';

const FRAMING = 'amqp:connection:framing-error';
const DECODE = 'amqp:decode-error';
const FIELD = 'amqp:invalid-field';
const STATE = 'amqp:illegal-state';
const LIMIT = 'amqp:resource-limit-exceeded';
const NOT_IMPLEMENTED = 'amqp:not-implemented';

describe('The guard, of attach', () => {
  const source = described(0x28, list8(str('N/q')));
  const target = described(0x29, list8(str('N/q')));
  const sender = [str('l'), uint(0), FALSE, NULL, NULL, source, target, NULL, NULL, uint(0)];
  const receiver = [str('l'), uint(0), TRUE, ubyte(2), ubyte(1)];
  const withSource = (...fields: Wire[]): Wire[] => [...receiver, described(0x28, list8(...fields))];
  const withTarget = (...fields: Wire[]): Wire[] => [...receiver, NULL, described(0x29, list8(...fields))];

  answers('attach', {
    'a sender': [sender, 'passed'],
    'a receiver': [receiver, 'passed'],
    'no name': [[NULL, uint(0), TRUE], FIELD],
    'a name that is no UTF-8': [[str(Buffer.from([0xff])), uint(0), TRUE], DECODE],
    'a name of 513 bytes': [[str('n'.repeat(513)), uint(0), TRUE], LIMIT],
    'a name of 512 bytes': [[str('n'.repeat(512)), uint(0), TRUE], 'passed'],
    'no handle': [[str('l'), NULL, TRUE], DECODE],
    'a handle above the highest': [[str('l'), uint(256), TRUE], FRAMING],
    'no role': [[str('l'), uint(0)], FIELD],
    'a role that is a number': [[str('l'), uint(0), uint(1)], DECODE],
    'a snd-settle-mode of 3': [[str('l'), uint(0), TRUE, ubyte(3)], FIELD],
    'a rcv-settle-mode of 2': [[str('l'), uint(0), TRUE, NULL, ubyte(2)], FIELD],
    'a source that is a target': [[...receiver, target], DECODE],
    'a source that is a string': [[...receiver, str('N/q')], DECODE],
    'a target that is a source': [[...receiver, NULL, source], DECODE],
    'a coordinator': [[...receiver, NULL, described(0x30, list8())], NOT_IMPLEMENTED],
    'an address of a source that is no UTF-8': [
      withSource(str(Buffer.from('N/M\xfcller', 'latin1'))),
      DECODE,
    ],
    'an address of a target that is no UTF-8': [
      withTarget(str(Buffer.from('N/M\xfcller', 'latin1'))),
      DECODE,
    ],
    'an address that is a symbol': [withSource(sym('N/q')), DECODE],
    'an address that is a map': [withTarget(map8()), DECODE],
    'a durable that is a boolean': [withSource(NULL, TRUE), DECODE],
    'an expiry-policy that is a string': [withSource(NULL, NULL, str('never')), DECODE],
    'a dynamic that is a number': [withSource(NULL, NULL, NULL, NULL, uint(1)), DECODE],
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
    'an unsettled that is a list': [[...receiver, NULL, NULL, list8()], DECODE],
    'a sender without initial-delivery-count': [sender.slice(0, 9), FIELD],
    'a max-message-size that is an uint': [[...sender, uint(1)], DECODE],
    'a max-message-size': [[...sender, smallUlong(1)], 'passed'],
    'a list within lists within lists': [
      [...sender, NULL, NULL, NULL, map8(sym('p'), list8(list8(list8())))],
      'passed',
    ],
  });

  it('refuses a handle that is in use', () => {
    const checks = new FrameChecks().begun();
    checks.hear(attachReceiver());
    assert.equal(checks.refusal(attachReceiver({ name: 'other' })), 'amqp:session:handle-in-use');
  });

  it('tells links of one name apart by their direction, and refuses a third', () => {
    const checks = new FrameChecks().begun();
    checks.hear(attachReceiver({ handle: 0 }));
    assert.equal(checks.refusal(attachSender({ handle: 1 })), 'passed');
    assert.equal(checks.refusal(attachSender({ handle: 2 })), STATE);
  });

  it('refuses more links than the peer has handles', () => {
    const checks = new FrameChecks();
    checks.hear(open());
    checks.hear(begin(0, uint(0)));
    checks.hear(attachReceiver());
    assert.equal(checks.refusal(attachReceiver({ handle: 1, name: 'b' })), 'amqp:not-allowed');
  });

  it('lets a name and a handle be used again after a detach', () => {
    const checks = new FrameChecks().begun();
    checks.hear(attachReceiver());
    checks.hear(detach());
    assert.equal(checks.refusal(attachReceiver()), 'passed');
  });

  for (const name of ['l', '__proto__', 'constructor', 'ä', 'n'.repeat(300)]) {
    it(`gives the link ${name.slice(0, 12)} a prefix towards rhea, and takes it off again`, () => {
      const checks = new FrameChecks().begun();
      const renamed = (prefix: string, role: Wire): Buffer =>
        rawFrame(0, 0, described(0x12, list32(bytes(0xb1, sized(prefix + name)), uint(0), role)));
      assert.deepEqual(checks.hear(frame('attach', [str(name), uint(0), TRUE])), renamed('r:', TRUE));
      assert.deepEqual(checks.sayAttach(`r:${name}`, 0, false), renamed('', FALSE));
    });
  }
});

function sized(text: string): Buffer {
  const content = Buffer.from(text);
  return bytes(uint32(content.length).subarray(1), content);
}
