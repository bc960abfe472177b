import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { AmqpNode } from '../amqp/node.ts';
import { KIND, RawClient } from '../amqp/raw-client.ts';
import { AMQP, attachSender, begin, close, dataSection, open, plain, SASL, transfer } from '../amqp/wire.ts';
import { purge } from '../support/settle.ts';
import { runMutated, runTruncated, SESSIONS, type Target } from './amqp-runs.ts';
import { ConsoleWatch } from './amqp-talk.ts';
import { CUT_AT } from './mutations.ts';

describe('An AMQP server, on mutated frames', () => {
  let node: AmqpNode;
  let output: ConsoleWatch;
  let target: Target;

  before(async () => {
    output = new ConsoleWatch();
    node = await AmqpNode.start();
    target = { port: node.port, checkState };
    // Create its queues before mutated frames use up the number of queues that a namespace may have.
    await node.insertInto('S', 'fuzz', 'first');
    await checkState();
  });
  after(async () => {
    await node.stop();
    output.stop();
  });

  /** Checks that no state is left and no unexpected failure was logged. */
  const checkState = async (): Promise<void> => {
    const failed = node.logged.filter(({ message }) => message !== 'an AMQP connection was ended');
    assert.deepEqual(failed, []);
    node.logged.length = 0;
    assert.deepEqual(output.written, []);
    const client = await RawClient.open(node.port);
    client.write(SASL, plain('test', 'test'), AMQP, open(), begin(), attachSender({ address: 'N/sound' }));
    await client.until(KIND.flow);
    client.write(transfer(dataSection('still here')));
    await client.until(KIND.disposition);
    client.write(close());
    client.socket.end();
    await client.until(KIND.close);
    assert.equal(Buffer.from((await node.pop('sound'))?.body ?? []).toString(), 'still here');
    for (const namespace of node.broker.namespaces()) {
      for (const name of await namespace.queueNames()) {
        await purge(namespace.storage, { ns: namespace.name, name });
      }
    }
  };

  it('before login answers and closes, and keeps no state', (test) => runMutated(test, target, false));

  it('after login answers and closes, and keeps no state', async (test) => {
    const { counts } = node.server;
    const { frames, messages } = counts;
    await runMutated(test, target, true);
    // Mutated frames are useful only if intact ones have advanced the session before them.
    const [received, sent] = [counts.frames - frames, counts.messages - messages];
    assert.ok(received > 4 * SESSIONS, `the server received ${received} frames`);
    assert.ok(sent > SESSIONS / 10, `clients received ${sent} messages`);
  });

  it(`closes a session cut off ${CUT_AT} and returns its unsettled elements`, () => runTruncated(target));
});
