import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { crc32 } from 'node:zlib';
import fc from 'fast-check';
import { elementChecksum } from '../../src/engines/sqlite/worker/checksums.ts';

describe('checksums of the SQLite engine', () => {
  it('are the CRC-32 of content type, further fields and body, as in files of other versions', () => {
    const text = fc.oneof(fc.constant(null), fc.string(), fc.string({ unit: 'grapheme', maxLength: 40 }));
    const bodies = fc.uint8Array({ maxLength: 300 });
    fc.assert(
      fc.property(fc.maxSafeNat(), text, text, bodies, (seq, type, more, body) => {
        let expected = seq >>> 0;
        for (const part of [type, more, body]) if (part !== null) expected = crc32(part, expected);
        assert.equal(elementChecksum(seq, type, more, body), expected);
      }),
    );
  });
});
