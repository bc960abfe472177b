import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { BodyWriter, bodyAt, type PackedBodies } from '../../src/engines/sqlite/protocol.ts';

/** Around the size from which a body is transferred in its own buffer. */
const LENGTHS = [0, 1, 46, 16_383, 16_384, 16_385, 70_000];

const bodies = fc.array(
  fc.record({ length: fc.constantFrom(...LENGTHS), fill: fc.nat(255), isWhole: fc.boolean() }),
  { maxLength: 12 },
);

/** A body that fills its memory, or a view into a larger array, as bodies from a socket are. */
function bodyOf(length: number, fill: number, isWhole = false): Uint8Array {
  if (isWhole) return new Uint8Array(length).fill(fill);
  return new Uint8Array(length + 2).fill(fill).subarray(1, length + 1);
}

/** The bodies as the other thread receives them. */
function transferred(writer: BodyWriter, isOwned: boolean): PackedBodies {
  const transfer: ArrayBuffer[] = [];
  const packed = writer.pack(isOwned, transfer);
  return structuredClone(packed, { transfer });
}

describe('bodies between the SQLite engine and its thread', () => {
  it('are found by their offset and length after they were copied to another thread', () => {
    fc.assert(
      fc.property(bodies, fc.boolean(), (written, isOwned) => {
        const writer = new BodyWriter();
        const offsets = written.map(({ length, fill, isWhole }) => writer.add(bodyOf(length, fill, isWhole)));
        const bytes = written.reduce((sum, { length }) => sum + length, 0);
        assert.equal(writer.byteLength, bytes);
        const received = transferred(writer, isOwned);
        for (const [index, { length, fill }] of written.entries()) {
          const body = bodyAt(received, offsets[index] ?? 0, length);
          assert.deepEqual(Buffer.from(body), Buffer.from(bodyOf(length, fill)));
        }
      }),
    );
  });

  it('are transferred once if they are large, however many elements share them', () => {
    const writer = new BodyWriter();
    const body = bodyOf(70_000, 7);
    const offsets = Array.from({ length: 100 }, () => writer.add(body));
    const transfer: ArrayBuffer[] = [];
    const packed = writer.pack(false, transfer);
    assert.equal(transfer.length, 1);
    const received = structuredClone(packed, { transfer });
    for (const offset of offsets) {
      assert.deepEqual(Buffer.from(bodyAt(received, offset, 70_000)), Buffer.from(body));
    }
  });

  it('count once more for each further element that has them, and are not sent again', () => {
    const writer = new BodyWriter();
    const small = bodyOf(46, 7);
    writer.add(small);
    const mark = writer.mark();
    writer.repeat(small);
    assert.equal(writer.byteLength, 92);
    assert.equal(transferred(writer, false).small.byteLength, 46);
    writer.truncate(mark);
    assert.equal(writer.byteLength, 46);
  });

  it('are not detached if the writer does not own them', () => {
    const body = new Uint8Array(20_000).fill(7);
    const writer = new BodyWriter();
    writer.add(body);
    transferred(writer, false);
    assert.equal(body.byteLength, 20_000);
  });
});
