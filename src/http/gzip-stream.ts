import { constants, crc32, deflateRawSync } from 'node:zlib';

/** The header of a gzip stream without name, time and system (RFC 1952, 2.3). */
const HEADER = Buffer.from([0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff]);
/** An empty last block (RFC 1951, 3.2.6). */
const LAST_BLOCK = Buffer.from([3, 0]);

/** The compressed blocks of pieces that other streams may send, too. */
const compressedPieces = new WeakMap<Buffer, Buffer>();

/**
 * A gzip stream in which each piece is compressed independently of the others. So streams that send the same piece
 * share its compressed blocks, and a stream needs no compressor of its own, which has 256 KiB of memory.
 */
export class GzipStream {
  #checksum = 0;
  #length = 0;

  /** Returns the bytes to be sent for a piece, which must not change afterwards. The receiver can decode it at once. */
  push(piece: Buffer): Buffer {
    const isFirst = this.#length === 0;
    this.#checksum = crc32(piece, this.#checksum);
    this.#length += piece.length;
    const blocks = compressed(piece);
    return isFirst ? Buffer.concat([HEADER, blocks]) : blocks;
  }

  /** Returns the bytes that end the stream after a last piece. */
  end(piece: Buffer): Buffer {
    const last = this.push(piece);
    const trailer = Buffer.alloc(8);
    trailer.writeUInt32LE(this.#checksum, 0);
    // Modulo 2 ** 32 (RFC 1952, 2.3.1).
    trailer.writeUInt32LE(this.#length % 2 ** 32, 4);
    return Buffer.concat([last, LAST_BLOCK, trailer]);
  }
}

function compressed(piece: Buffer): Buffer {
  let blocks = compressedPieces.get(piece);
  if (blocks === undefined) {
    // Of 24 KiB of queues, level 1 leaves a twentieth; higher levels take three times as long to save a tenth of that.
    blocks = deflateRawSync(piece, { level: 1, finishFlush: constants.Z_SYNC_FLUSH });
    compressedPieces.set(piece, blocks);
  }
  return blocks;
}
