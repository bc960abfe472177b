import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { FrameParser, RULES } from '../../src/stomp/codec.ts';
import { StompClient, show } from '../stomp/client.ts';
import { StompNode } from '../stomp/node.ts';
import { memoryInUse } from '../support/memory.ts';
import { purge } from '../support/settle.ts';
import {
  breaks,
  CUT_AT,
  cuts,
  type Mutation,
  mutated,
  mutations,
  pieces,
  place,
  TURNS_TO_ANSWER,
  turns,
} from './mutations.ts';
import { otherHeader, otherNumber, RECORDED, type Recorded } from './stomp-sessions.ts';

/** Frames to send; `npm run test:fuzz` sends a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 3_000);
/** Every recorded session has more frames. */
const FRAMES_A_RUN = 10;
const RUNS = 2 * Math.ceil(FRAMES / FRAMES_A_RUN / 2);
/**
 * Bound on the memory kept after the last three quarters of the runs. A leak of 100 bytes per frame would exceed it.
 */
const MAX_LEAKED_BYTES = 2 * 1024 * 1024 + (FRAMES * 100 * 3) / 4;

const changes = mutations(otherNumber, otherHeader);
/** Chosen by index, so that a report shows the index instead of every byte. */
const session = fc.constantFrom(...RECORDED.keys());

function recorded(which: number): Recorded {
  const found = RECORDED[which];
  assert.ok(found !== undefined);
  return found;
}

/** Above this, an answer counts as late. A busy machine has a few. */
const LATE_MS = 100;

describe('A STOMP server, on mutated frames', () => {
  let node: StompNode;
  /** Time from the client's end of input to the ERROR or the close; reported, not tested. */
  const answers = { all: 0, late: 0, longestMs: 0 };

  before(async () => {
    node = await StompNode.start();
    // Create its queue before mutated frames use up the number of queues that a namespace may have.
    await checkState();
  });
  after(() => node.stop());

  /** Sends these writes as one client, and reads until the server has closed. */
  const talk = async (version: Recorded['version'], writes: readonly Buffer[]): Promise<void> => {
    const client = await StompClient.open(node.port);
    client.version = version;
    for (const bytes of writes) {
      client.write(bytes);
      await turns(bytes.includes('SUBSCRIBE') ? TURNS_TO_ANSWER : 1);
    }
    client.socket.end();
    const endedAt = performance.now();
    for (let frame = await client.nextOrEnd(); frame !== null; frame = await client.nextOrEnd()) {
      if (frame.command !== 'ERROR') continue;
      assert.notEqual(frame.headers.get('message'), 'internal', show(frame));
      assert.equal(await client.nextOrEnd(), null, 'an ERROR is the last frame');
      break;
    }
    count(performance.now() - endedAt);
    client.socket.destroy();
  };

  const count = (ms: number): void => {
    answers.all += 1;
    if (ms > LATE_MS) answers.late += 1;
    answers.longestMs = Math.max(answers.longestMs, ms);
  };

  const purgeQueues = async (): Promise<void> => {
    for (const namespace of node.broker.namespaces()) {
      for (const name of await namespace.queueNames()) {
        await purge(namespace.storage, { ns: namespace.name, name });
      }
    }
  };

  /** Checks that no unexpected failure was logged, and that the server still works. */
  const checkState = async (): Promise<void> => {
    assert.deepEqual(
      node.logged.filter(({ message }) => message === 'a session failed'),
      [],
    );
    const client = await node.client();
    await client.ask('SEND', { destination: '/q/N/sound' }, 'still here');
    assert.equal(Buffer.from((await node.pop('sound'))?.body ?? []).toString(), 'still here');
    await client.disconnect();
  };

  for (const isLoggedIn of [false, true]) {
    it(`${isLoggedIn ? 'after' : 'before'} login answers an ERROR or closes, and keeps nothing`, async (test) => {
      Object.assign(answers, { all: 0, late: 0, longestMs: 0 });
      let runs = 0;
      let atQuarter = 0;
      const run = async (
        which: number,
        share: number,
        change: readonly Mutation[],
        at: readonly number[],
      ) => {
        const { version, login, frames } = recorded(which);
        const changed = isLoggedIn ? 1 + Math.floor(share * frames.length) : 0;
        const sent = [login, ...frames].map((frame, i) => (i === changed ? mutated(frame, change) : frame));
        const rest = Buffer.concat(sent.slice(changed));
        await talk(version, [...sent.slice(0, changed), ...pieces(rest, at)]);
        runs += 1;
        if (runs % 200 === 0) await purgeQueues();
        if (runs === Math.ceil(RUNS / 8)) atQuarter = await memoryInUse();
      };
      const { frames, messages } = node.server.counts;
      await fc.assert(fc.asyncProperty(session, place, changes, breaks, run), { numRuns: RUNS / 2 });
      const { all, late, longestMs } = answers;
      test.diagnostic(
        `${late} of ${all} answers came after ${LATE_MS} ms; the last after ${longestMs.toFixed(1)} ms`,
      );
      await purgeQueues();
      assert.ok((await memoryInUse()) - atQuarter < MAX_LEAKED_BYTES, 'memory stays flat');
      // Mutated frames are useful only if intact ones have advanced the session before them.
      const { counts } = node.server;
      if (isLoggedIn) assert.ok(counts.frames - frames > RUNS && counts.messages - messages > RUNS / 10);
      await checkState();
      node.logged.length = 0;
    });
  }

  it(`closes a session cut off ${CUT_AT} and returns its unsettled elements`, async () => {
    for (const { version, login, frames } of RECORDED) {
      const whole = Buffer.concat([login, ...frames]);
      for (const ends of cuts(whole.length)) {
        await Promise.all(ends.map((end) => talk(version, [whole.subarray(0, end)])));
      }
      await purgeQueues();
    }
    await checkState();
  });
});

describe('The STOMP parser, on mutated frames', () => {
  const limits = { headBytes: 24_576, headers: 128, bodyBytes: 4096 };

  const parsed = (version: Recorded['version'], writes: readonly Buffer[]): string[] => {
    const parser = new FrameParser(limits);
    parser.rules = RULES[version];
    const seen: string[] = [];
    try {
      for (const bytes of writes) {
        parser.push(bytes);
        for (let frame = parser.next(); frame !== null; frame = parser.next()) {
          seen.push(`${frame.command} ${JSON.stringify(frame.headers)} ${frame.body.toString('latin1')}`);
        }
      }
    } catch (error) {
      if (!(error instanceof QuaysideError)) throw error;
      seen.push(error.code);
    }
    return seen;
  };

  it('parses the same frames however the bytes are split, and throws only QuaysideErrors', () => {
    fc.assert(
      fc.property(session, changes, breaks, (which, change, at) => {
        const { version, frames } = recorded(which);
        const bytes = mutated(Buffer.concat(frames), change);
        const whole = parsed(version, [bytes]);
        assert.deepEqual(parsed(version, pieces(bytes, at)), whole);
        const single = pieces(
          bytes,
          Array.from(bytes, (_, i) => i / bytes.length),
        );
        if (bytes.length < 2000) assert.deepEqual(parsed(version, single), whole);
      }),
      { numRuns: RUNS },
    );
  });
});
