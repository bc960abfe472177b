import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { type Endpoint, ReceiverEndpoint } from '../../src/amqp/core/link.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import { FrameSplitter } from '../../src/amqp/core/splitter.ts';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { EndpointDriver } from '../amqp/endpoint.ts';
import { frame, open } from '../amqp/wire.ts';
import { type Broken, broken, brokenFrames } from './amqp-broken.ts';
import { ConsoleWatch } from './amqp-talk.ts';
import { breaks, pieces } from './mutations.ts';

/** Frames read; `npm run test:fuzz` reads a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 6_000);
/** A recorded session has more than that. */
const FRAMES_A_SESSION = 10;

/** The part of rhea that reads frames; its types do not show it. */
const { read_frame } = createRequire(import.meta.url)('rhea/lib/frames.js') as {
  read_frame(bytes: Buffer): { readonly performative?: object };
};

/** Accepts every link; a client that wants messages gets four at once. */
class FuzzedEndpoint extends EndpointDriver {
  override onAttach(link: Endpoint): void {
    super.onAttach(link);
    if (link instanceof ReceiverEndpoint || link.session.available < 4) return;
    link.credit += 4;
    this.sendMessages(4, 200);
  }
}

/** What becomes of these bytes: each frame that the client is sent, and why it ends, if it does. */
function read(chunks: readonly Buffer[]): string[] {
  const driver = new FuzzedEndpoint();
  const splitter = new FrameSplitter(AMQP_LIMITS.frameBytes);
  const ended: string[] = [];
  try {
    for (const chunk of chunks) {
      splitter.push(Buffer.from(chunk));
      while (splitter.next()) driver.endpoint.receive(splitter.bytes, splitter.start, splitter.end);
    }
  } catch (error) {
    if (!(error instanceof ProtocolError)) throw error;
    ended.push(error.condition);
    driver.endpoint.close(error);
  }
  driver.endpoint.flush();
  // Every field of every frame, as a client may ask for it.
  for (const sent of driver.frames) JSON.stringify(read_frame(Buffer.from(sent)).performative);
  return [...driver.frames.map((sent) => sent.toString('hex')), ...ended];
}

describe('The endpoint of a connection with broken frames', () => {
  it('answers with frames that rhea can read, and ends with nothing but a protocol error', (test) => {
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
    test.diagnostic(`${passed} frames were sent`);
  });

  it('reads frames of one byte after the other as it reads them whole', () => {
    const said = Buffer.concat([open(), frame('begin', []), Buffer.alloc(8)]);
    assert.deepEqual(read(Array.from(said, (byte) => Buffer.from([byte]))), read([said]));
  });
});
