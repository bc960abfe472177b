import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import type { EventContext } from 'rhea';
import { KIND, RawClient } from '../amqp/guard-client.ts';
import { GuardNode } from '../amqp/guard-node.ts';
import {
  AMQP,
  attachSender,
  begin,
  close,
  dataSection,
  open,
  plain,
  SASL,
  transfer,
} from '../amqp/guard-wire.ts';
import { SESSIONS, sayBroken, sayCut, type Target } from './amqp-runs.ts';
import { ConsoleWatch } from './amqp-talk.ts';

const BODY = dataSection('still here');

describe('The guard and rhea with broken frames', () => {
  let node: GuardNode;
  let output: ConsoleWatch;
  let target: Target;

  before(async () => {
    output = new ConsoleWatch();
    node = await GuardNode.start();
    node.onSendable = send;
    target = { port: node.port, sound };
  });
  after(async () => {
    await node.stop();
    output.stop();
  });

  /** Has a few messages on their way to everybody who wants some. */
  const send = ({ sender }: EventContext): void => {
    for (let i = 0; i < 4 && sender?.sendable(); i++) sender.send(dataSection(Buffer.alloc(40)), `t${i}`, 0);
  };

  /** Nothing was left behind, and rhea met nothing that it could not take. */
  const sound = async (): Promise<void> => {
    await node.until(() => node.seen.every(({ isGone }) => isGone));
    const faults = node.seen.flatMap(({ events, refusals }) => [
      ...events.filter((name) => name === 'error' || name === 'protocol_error'),
      ...refusals.filter(({ condition }) => condition === 'amqp:internal-error'),
    ]);
    assert.deepEqual(faults, []);
    assert.deepEqual(output.written, []);
    assert.equal(node.clock.pending, 0);
    assert.equal(node.counts.outgoingBytes, 0);
    assert.equal(node.counts.stalled, 0);
    node.seen.length = 0;
    const client = await RawClient.open(node.port);
    client.write(SASL, plain('test', 'test'), AMQP, open(), begin(), attachSender());
    await client.until(KIND.flow);
    client.write(transfer(BODY));
    await client.until(KIND.disposition);
    client.write(close());
    client.socket.end();
    await client.until(KIND.close);
    assert.deepEqual(node.last.messages, [BODY]);
    await node.until(() => node.last.isGone);
    node.seen.length = 0;
  };

  it('before login answers and closes, and keeps nothing', (test) => sayBroken(test, target, false));

  it('after login answers and closes, and keeps nothing', async (test) => {
    const { frames } = node.counts;
    await sayBroken(test, target, true);
    // Broken frames are of use only where whole ones brought the session to where they break it.
    assert.ok(node.counts.frames - frames > 4 * SESSIONS);
  });

  it('cut at every byte closes', () => sayCut(target));
});
