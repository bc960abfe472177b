import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrameSplitter } from '../../src/amqp/core/frames.ts';
import { ProtocolError } from '../../src/amqp/core/protocol-error.ts';
import { rawFrame } from './wire.ts';

const MAX = 4096;

function split(splitter: FrameSplitter, chunks: readonly Buffer[]): Buffer[] {
  const found: Buffer[] = [];
  for (const chunk of chunks) {
    splitter.push(chunk);
    while (splitter.next()) found.push(Buffer.from(splitter.bytes.subarray(splitter.start, splitter.end)));
  }
  return found;
}

/** Bytes in chunks of these lengths, repeated cyclically. */
function pieces(bytes: Buffer, lengths: readonly number[]): Buffer[] {
  const found: Buffer[] = [];
  for (let at = 0, i = 0; at < bytes.length; i++) {
    const length = lengths[i % lengths.length] ?? 1;
    found.push(bytes.subarray(at, at + length));
    at += length;
  }
  return found;
}

const frames = fc.array(
  fc.uint8Array({ maxLength: 3000 }).map((body) => rawFrame(0, 0, Buffer.from(body))),
  { maxLength: 8 },
);
const lengths = fc.array(fc.integer({ min: 1, max: 1500 }), { minLength: 1, maxLength: 6 });

describe('The frame splitter', () => {
  it('finds the same frames however the stream is split into chunks', () => {
    fc.assert(
      fc.property(frames, lengths, (sent, parts) => {
        assert.deepEqual(split(new FrameSplitter(MAX), pieces(Buffer.concat(sent), parts)), sent);
      }),
    );
  });

  it('finds frames that are read only after all chunks were pushed', () => {
    const sent = [1, 2, 3, 4].map((size) => rawFrame(0, 0, Buffer.alloc(size * 100, size)));
    const splitter = new FrameSplitter(MAX);
    for (const chunk of pieces(Buffer.concat(sent), [130])) splitter.push(chunk);
    assert.deepEqual(split(splitter, [Buffer.alloc(0)]), sent);
  });

  it('returns a frame within one chunk in place, without a copy', () => {
    const chunk = Buffer.concat([rawFrame(0, 0, Buffer.alloc(9)), rawFrame(0, 0, Buffer.alloc(5))]);
    const splitter = new FrameSplitter(MAX);
    splitter.push(chunk);
    const places: [number, number][] = [];
    while (splitter.next()) {
      assert.equal(splitter.bytes, chunk);
      places.push([splitter.start, splitter.end]);
    }
    assert.deepEqual(places, [
      [0, 17],
      [17, 30],
    ]);
  });

  it('does not reuse the buffer of a frame that it assembled', () => {
    const sent = [1, 2].map((fill) => rawFrame(0, 0, Buffer.alloc(50, fill)));
    const splitter = new FrameSplitter(MAX);
    const found = pieces(Buffer.concat(sent), [40]).flatMap((chunk) => {
      splitter.push(chunk);
      return splitter.next() ? [splitter.bytes.subarray(splitter.start, splitter.end)] : [];
    });
    assert.deepEqual(found, sent);
  });

  it('accepts frames from 8 bytes to the maximum', () => {
    const sent = [Buffer.alloc(0), Buffer.alloc(MAX - 8)].map((body) => rawFrame(0, 0, body));
    assert.deepEqual(split(new FrameSplitter(MAX), sent), sent);
  });

  for (const size of [0, 1, 7, MAX + 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) {
    it(`rejects a size of ${size} as soon as its four bytes are there`, () => {
      const head = Buffer.alloc(4);
      head.writeUInt32BE(size);
      for (const length of [1, 2, 3, 4]) {
        const before = rawFrame(0, 0, Buffer.alloc(3));
        const chunks = [before, ...pieces(head, [length])];
        assert.throws(() => split(new FrameSplitter(MAX), chunks), ProtocolError);
      }
    });
  }

  it('assembles a frame of many chunks in a buffer no larger than the maximum frame', () => {
    const splitter = new FrameSplitter(1024 * 1024);
    const whole = rawFrame(0, 0, Buffer.alloc(1_000_000));
    for (const [i, chunk] of pieces(whole, [10_000]).entries()) {
      splitter.push(chunk);
      const isWhole = splitter.next();
      assert.equal(isWhole, i === 100);
      if (isWhole) assert.ok(splitter.bytes.length <= 1024 * 1024);
    }
  });

  it('returns raw bytes only once all of them have arrived', () => {
    const splitter = new FrameSplitter(MAX);
    splitter.push(Buffer.from('AMQP'));
    assert.equal(splitter.raw(8), null);
    splitter.push(Buffer.from('\0\x01\0\0more', 'latin1'));
    assert.deepEqual(splitter.raw(8), Buffer.from('AMQP\0\x01\0\0', 'latin1'));
    assert.deepEqual(splitter.raw(4), Buffer.from('more'));
  });
});
