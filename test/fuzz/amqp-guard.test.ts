import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import type { EventContext } from 'rhea';
import { KIND } from '../amqp/guard-client.ts';
import { GuardNode, type Seen } from '../amqp/guard-node.ts';
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
import { type Broken, broken, writes } from './amqp-broken.ts';
import { RECORDED } from './amqp-sessions.ts';
import { ConsoleWatch, slowest, talk } from './amqp-talk.ts';
import { memoryInUse } from './memory.ts';

/** Frames sent to guards; `npm run test:fuzz` sends a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 20_000) / 2;
/** A recorded session has more than that. */
const FRAMES_A_SESSION = 10;
/** Sessions that go on at the same time. */
const AT_ONCE = 4;
const RUNS = Math.ceil(FRAMES / FRAMES_A_SESSION / AT_ONCE / 2);
/** What may be left of the runs of the last three quarters. A leak of 100 bytes a frame would be more. */
const MOST_LEFT_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

describe('The guard and rhea with broken frames', () => {
  let node: GuardNode;
  let output: ConsoleWatch;

  before(async () => {
    output = new ConsoleWatch();
    node = await GuardNode.start();
    node.onSendable = send;
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
  const soundAfter = async (): Promise<void> => {
    await node.until(() => node.seen.every(({ isGone }) => isGone));
    const faults = node.seen.flatMap(({ events, refusals }: Seen) => [
      ...events.filter((name) => name === 'error' || name === 'protocol_error'),
      ...refusals.filter(({ condition }) => condition === 'amqp:internal-error'),
    ]);
    assert.deepEqual(faults, []);
    assert.deepEqual(output.written, []);
    assert.equal(node.clock.pending, 0);
    assert.equal(node.counts.outgoingBytes, 0);
    assert.equal(node.counts.stalled, 0);
    node.seen.length = 0;
    const frames = [open(), begin(), attachSender(), transfer(dataSection('still here')), close()];
    const said = await talk(node.port, [SASL, plain('test', 'test'), AMQP, ...frames]);
    assert.ok(said.some(({ kind }) => kind === KIND.disposition));
    assert.deepEqual(node.last.messages, [dataSection('still here')]);
    await node.until(() => node.last.isGone);
    node.seen.length = 0;
  };

  for (const isLoggedIn of [false, true]) {
    it(`${isLoggedIn ? 'after' : 'before'} login answers and closes, and keeps nothing`, async (test) => {
      let runs = 0;
      let atQuarter = 0;
      const { frames } = node.counts;
      const run = async (sessions: readonly Broken[]): Promise<void> => {
        await Promise.all(sessions.map((session) => talk(node.port, writes(session, isLoggedIn))));
        runs += 1;
        if (runs % 20 === 0) await soundAfter();
        if (runs === Math.ceil(RUNS / 4)) atQuarter = await memoryInUse();
      };
      const together = fc.array(broken, { minLength: AT_ONCE, maxLength: AT_ONCE });
      await fc.assert(fc.asyncProperty(together, run), { numRuns: RUNS });
      await soundAfter();
      assert.ok((await memoryInUse()) - atQuarter < MOST_LEFT_BYTES, 'memory stays flat');
      // Broken frames are of use only where whole ones brought the session to where they break it.
      if (isLoggedIn) assert.ok(node.counts.frames - frames > 4 * RUNS * AT_ONCE);
      test.diagnostic(`${node.counts.frames} frames passed to checks, slowest end ${slowest.closeMs} ms`);
    });
  }

  it('cut at every byte closes', async () => {
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
    }
    await soundAfter();
  });
});
