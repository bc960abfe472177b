import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrameSplitter } from '../../src/amqp/core/frames.ts';
import { type Endpoint, ReceiverEndpoint } from '../../src/amqp/core/link.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import { AMQP_LIMITS } from '../../src/amqp/limits.ts';
import { EndpointDriver } from '../amqp/endpoint.ts';
import { frame, open } from '../amqp/wire.ts';
import { type MutatedSession, mutatedFrames, mutatedSessions } from './amqp-broken.ts';
import { ConsoleWatch } from './amqp-talk.ts';
import { breaks, pieces } from './mutations.ts';

/** Frames to read; `npm run test:fuzz` reads a million. */
const FRAMES = Number(process.env.FUZZ_FRAMES ?? 3_000);
/** Every recorded session has more frames. */
const FRAMES_A_SESSION = 10;

/** The frame decoder of rhea, which its types do not declare. */
const { read_frame } = createRequire(import.meta.url)('rhea/lib/frames.js') as {
  read_frame(bytes: Buffer): { readonly performative?: object };
};

/** Accepts every link, and sends four messages to each receiving one. */
class FuzzedEndpoint extends EndpointDriver {
  override onAttach(link: Endpoint): void {
    super.onAttach(link);
    if (link instanceof ReceiverEndpoint || link.session.available < 4) return;
    link.credit += 4;
    this.sendMessages(4, 200);
  }
}

/** Everything that the client is sent for these bytes: each frame, and the condition of the protocol error, if any. */
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
  // Decode every field of every frame, as a client may do.
  for (const sent of driver.frames) JSON.stringify(read_frame(Buffer.from(sent)).performative);
  return [...driver.frames.map((sent) => sent.toString('hex')), ...ended];
}

describe('The connection endpoint, on mutated frames', () => {
  it('sends only frames that rhea can decode, and fails only with protocol errors', (test) => {
    const output = new ConsoleWatch();
    let passed = 0;
    try {
      fc.assert(
        fc.property(mutatedSessions, breaks, (session: MutatedSession, at) => {
          const frames = mutatedFrames(session);
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

  it('reads frames byte by byte as it reads them whole', () => {
    const bytes = Buffer.concat([open(), frame('begin', []), Buffer.alloc(8)]);
    assert.deepEqual(read(Array.from(bytes, (byte) => Buffer.from([byte]))), read([bytes]));
  });
});
