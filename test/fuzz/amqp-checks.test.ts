import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrameCutter } from '../../src/amqp/guard/cutter.ts';
import { AMQP_LIMITS } from '../../src/amqp/guard/limits.ts';
import { Breach } from '../../src/amqp/guard/refusal.ts';
import { KIND } from '../amqp/guard-client.ts';
import { FrameChecks } from '../amqp/guard-frames.ts';
import { dataSection, frame, open, transfer } from '../amqp/guard-wire.ts';
import { type Broken, broken, brokenFrames } from './amqp-broken.ts';
import { ConsoleWatch } from './amqp-talk.ts';
import { breaks, pieces } from './mutations.ts';

/** Frames read; `npm run test:fuzz` reads a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 20_000);
/** A recorded session has more than that. */
const FRAMES_A_SESSION = 10;

interface Performative {
  readonly name?: string;
  readonly handle?: number;
  readonly role?: boolean;
}

/** The part of rhea that reads frames; its types do not show it. */
const { read_frame } = createRequire(import.meta.url)('rhea/lib/frames.js') as {
  read_frame(bytes: Buffer): { readonly channel: number; readonly performative?: Performative };
};

/** As if rhea had answered what it got; a peer that wants messages gets four. */
function answer(checks: FrameChecks, heard: Buffer): void {
  const { channel, performative } = read_frame(Buffer.from(heard));
  // Every field, as whoever uses rhea may ask for it.
  JSON.stringify(performative);
  const { name = '', handle = 0, role = false } = performative ?? {};
  switch (heard[10]) {
    case KIND.begin:
      checks.sayBegin(channel);
      break;
    case KIND.attach:
      checks.sayAttach(name, handle, !role, channel);
      if (!role) checks.sayCredit(handle, 10, 2048, channel);
      break;
    case KIND.flow:
      for (let id = 0; id < 4; id++) checks.say(transfer(dataSection('x'), { id, channel }));
      break;
  }
}

/** What becomes of these bytes: each frame as rhea gets it, then why it ends, if it does. */
function read(chunks: readonly Buffer[]): string[] {
  const checks = new FrameChecks();
  const cutter = new FrameCutter(AMQP_LIMITS.frameBytes);
  const seen: string[] = [];
  try {
    for (const chunk of chunks) {
      cutter.push(Buffer.from(chunk));
      while (cutter.next()) {
        const heard = checks.hearIn(cutter.bytes, cutter.start, cutter.end);
        if (heard === null) continue;
        seen.push(heard.toString('hex'));
        answer(checks, heard);
      }
    }
  } catch (error) {
    if (!(error instanceof Breach)) throw error;
    seen.push(error.condition);
  }
  return seen;
}

describe('The checks of the guard with broken frames', () => {
  it('let nothing pass that rhea cannot read, and end with nothing but a breach', (test) => {
    const output = new ConsoleWatch();
    let passed = 0;
    try {
      fc.assert(
        fc.property(broken, breaks, (session: Broken, at) => {
          const frames = brokenFrames(session);
          const whole = read([Buffer.concat(frames)]);
          passed += whole.length - 1;
          assert.deepEqual(read(pieces(Buffer.concat(frames), at)), whole);
        }),
        { numRuns: Math.ceil(FRAMES / FRAMES_A_SESSION) },
      );
      assert.deepEqual(output.written, []);
    } finally {
      output.stop();
    }
    test.diagnostic(`${passed} frames passed`);
  });

  it('read frames of one byte after the other as they read them whole', () => {
    const said = Buffer.concat([open(), frame('begin', []), Buffer.alloc(8)]);
    assert.deepEqual(read(Array.from(said, (byte) => Buffer.from([byte]))), read([said]));
  });
});
