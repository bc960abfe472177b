import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { FrameCutter } from '../../src/amqp/guard/cutter.ts';
import { Breach } from '../../src/amqp/guard/refusal.ts';
import { rawFrame } from './guard-wire.ts';

const MOST = 4096;

function cut(cutter: FrameCutter, chunks: readonly Buffer[]): Buffer[] {
  const found: Buffer[] = [];
  for (const chunk of chunks) {
    cutter.push(chunk);
    while (cutter.next()) found.push(Buffer.from(cutter.bytes.subarray(cutter.start, cutter.end)));
  }
  return found;
}

/** Bytes in pieces of these lengths, again and again. */
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

describe('The cutter', () => {
  it('finds the same frames however the stream comes in parts', () => {
    fc.assert(
      fc.property(frames, lengths, (said, parts) => {
        assert.deepEqual(cut(new FrameCutter(MOST), pieces(Buffer.concat(said), parts)), said);
      }),
    );
  });

  it('finds them when they are taken late', () => {
    const said = [1, 2, 3, 4].map((size) => rawFrame(0, 0, Buffer.alloc(size * 100, size)));
    const cutter = new FrameCutter(MOST);
    for (const chunk of pieces(Buffer.concat(said), [130])) cutter.push(chunk);
    assert.deepEqual(cut(cutter, [Buffer.alloc(0)]), said);
  });

  it('leaves a frame that comes whole where it came', () => {
    const chunk = Buffer.concat([rawFrame(0, 0, Buffer.alloc(9)), rawFrame(0, 0, Buffer.alloc(5))]);
    const cutter = new FrameCutter(MOST);
    cutter.push(chunk);
    const places: [number, number][] = [];
    while (cutter.next()) {
      assert.equal(cutter.bytes, chunk);
      places.push([cutter.start, cutter.end]);
    }
    assert.deepEqual(places, [
      [0, 17],
      [17, 30],
    ]);
  });

  it('does not touch a frame any more that it put together', () => {
    const said = [1, 2].map((fill) => rawFrame(0, 0, Buffer.alloc(50, fill)));
    const cutter = new FrameCutter(MOST);
    const found = pieces(Buffer.concat(said), [40]).flatMap((chunk) => {
      cutter.push(chunk);
      return cutter.next() ? [cutter.bytes.subarray(cutter.start, cutter.end)] : [];
    });
    assert.deepEqual(found, said);
  });

  it('takes frames from 8 bytes to the most', () => {
    const said = [Buffer.alloc(0), Buffer.alloc(MOST - 8)].map((body) => rawFrame(0, 0, body));
    assert.deepEqual(cut(new FrameCutter(MOST), said), said);
  });

  for (const size of [0, 1, 7, MOST + 1, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 1]) {
    it(`refuses a size of ${size} as soon as it is seen, however it comes`, () => {
      const head = Buffer.alloc(4);
      head.writeUInt32BE(size);
      for (const length of [1, 2, 3, 4]) {
        const before = rawFrame(0, 0, Buffer.alloc(3));
        const chunks = [before, ...pieces(head, [length])];
        assert.throws(() => cut(new FrameCutter(MOST), chunks), Breach);
      }
    });
  }

  it('puts a frame of many parts together in no more room than a frame may have', () => {
    const cutter = new FrameCutter(1024 * 1024);
    const whole = rawFrame(0, 0, Buffer.alloc(1_000_000));
    for (const [i, chunk] of pieces(whole, [10_000]).entries()) {
      cutter.push(chunk);
      const isWhole = cutter.next();
      assert.equal(isWhole, i === 100);
      if (isWhole) assert.ok(cutter.bytes.length <= 1024 * 1024);
    }
  });

  it('gives bytes that are no frame only when all have come', () => {
    const cutter = new FrameCutter(MOST);
    cutter.push(Buffer.from('AMQP'));
    assert.equal(cutter.raw(8), null);
    cutter.push(Buffer.from('\0\x01\0\0more', 'latin1'));
    assert.deepEqual(cutter.raw(8), Buffer.from('AMQP\0\x01\0\0', 'latin1'));
    assert.deepEqual(cutter.raw(4), Buffer.from('more'));
  });
});
