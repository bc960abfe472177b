import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import { KIND, RawClient } from '../amqp/guard-client.ts';
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
import { AmqpNode } from '../amqp/node.ts';
import { type Broken, broken, writes } from './amqp-broken.ts';
import { RECORDED } from './amqp-sessions.ts';
import { ConsoleWatch, slowest, talk } from './amqp-talk.ts';
import { memoryInUse } from './memory.ts';

/** Frames sent to the server; `npm run test:fuzz` sends a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 20_000) / 2;
/** A recorded session has more than that. */
const FRAMES_A_SESSION = 10;
/** Sessions that go on at the same time. */
const AT_ONCE = 4;
const RUNS = Math.ceil(FRAMES / FRAMES_A_SESSION / AT_ONCE / 2);
/** What may be left of the runs of the last three quarters. A leak of 100 bytes a frame would be more. */
const MOST_LEFT_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

describe('AMQP with broken frames', () => {
  let node: AmqpNode;
  let output: ConsoleWatch;

  before(async () => {
    output = new ConsoleWatch();
    node = await AmqpNode.start();
    // Its queues exist before the broken frames have used up what a namespace may have.
    await node.insertInto('S', 'fuzz', 'first');
    await soundAfter();
  });
  after(async () => {
    await node.stop();
    output.stop();
  });

  const tidy = async (): Promise<void> => {
    for (const namespace of node.broker.namespaces()) {
      for (const name of await namespace.queueNames()) {
        await namespace.storage.purge({ ns: namespace.name, name });
      }
    }
  };

  /** Nothing was left behind, and nothing failed that should not. */
  const soundAfter = async (): Promise<void> => {
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
  };

  for (const isLoggedIn of [false, true]) {
    it(`${isLoggedIn ? 'after' : 'before'} login answers and closes, and keeps nothing`, async (test) => {
      let runs = 0;
      let atQuarter = 0;
      const { counts } = node.server;
      const { frames, messages } = counts;
      const run = async (sessions: readonly Broken[]): Promise<void> => {
        await Promise.all(sessions.map((session) => talk(node.port, writes(session, isLoggedIn))));
        runs += 1;
        if (runs % 50 === 0) {
          await soundAfter();
          await tidy();
        }
        if (runs === Math.ceil(RUNS / 4)) atQuarter = await memoryInUse();
      };
      const together = fc.array(broken, { minLength: AT_ONCE, maxLength: AT_ONCE });
      await fc.assert(fc.asyncProperty(together, run), { numRuns: RUNS });
      await soundAfter();
      await tidy();
      assert.ok((await memoryInUse()) - atQuarter < MOST_LEFT_BYTES, 'memory stays flat');
      // Broken frames are of use only where whole ones brought the session to where they break it.
      const sessions = RUNS * AT_ONCE;
      if (isLoggedIn)
        assert.ok(counts.frames - frames > 4 * sessions && counts.messages - messages > sessions / 10);
      test.diagnostic(`${counts.frames - frames} frames checked, ${counts.messages - messages} messages out`);
      test.diagnostic(`slowest end of a connection: ${slowest.closeMs.toFixed(1)} ms`);
    });
  }

  it('cut at every byte closes, and gives back what was held', async () => {
    for (const { login, frames } of RECORDED) {
      const said = Buffer.concat([...login, ...frames]);
      const loginBytes = Buffer.concat([...login]).length;
      for (let from = 0; from <= said.length; from += 32) {
        const cuts = Array.from({ length: Math.min(32, said.length + 1 - from) }, (_, i) => from + i);
        await Promise.all(
          cuts.map((end) =>
            talk(node.port, [
              said.subarray(0, Math.min(end, loginBytes)),
              said.subarray(Math.min(end, loginBytes), end),
            ]),
          ),
        );
      }
      await tidy();
    }
    await soundAfter();
  });
});
