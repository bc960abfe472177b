import { readFileSync } from 'node:fs';
import { crc32, deflateSync, gzipSync } from 'node:zlib';
import { seededRandom } from './random.ts';

/** A body as a user would send it: real bytes with their content type. */
export interface SampleBody {
  readonly name: string;
  readonly contentType: string;
  readonly contentEncoding: string | null;
  readonly bytes: Buffer;
}

/** The largest body that the server accepts by default, bytes. */
export const LARGEST_BODY = 1_048_576;

const LOCK_FILE = new URL('../../package-lock.json', import.meta.url);

let samples: readonly SampleBody[] | null = null;

/**
 * Every kind of body once, from zero bytes to the limit. The same bytes in every run; callers must not
 * write into them.
 */
export function sampleBodies(): readonly SampleBody[] {
  samples ??= makeSamples();
  return samples;
}

/** Returns the sample of that name. @throws RangeError if there is none */
export function sampleBody(name: string): SampleBody {
  const found = sampleBodies().find((sample) => sample.name === name);
  if (found === undefined) throw new RangeError(`There is no sample body named ${name}.`);
  return found;
}

function makeSamples(): readonly SampleBody[] {
  const lockFile = readFileSync(LOCK_FILE);
  const random = seededRandom(20_261_121);
  return [
    sample('lock file', 'application/json', lockFile),
    sample('png', 'image/png', makePng(64, 48)),
    { ...sample('gzip', 'application/json', gzipSync(lockFile)), contentEncoding: 'gzip' },
    sample('utf-8 text', 'text/plain; charset=utf-8', Buffer.from(utf8Text(), 'utf8')),
    sample('latin-1 text', 'text/plain; charset=iso-8859-1', latin1Text()),
    sample('every byte', 'application/octet-stream', Buffer.from(Array.from({ length: 256 }, (_, at) => at))),
    sample('random bytes', 'application/octet-stream', random.bytes(70_000)),
    sample('empty', 'text/plain', Buffer.alloc(0)),
    sample('largest', 'application/octet-stream', random.bytes(LARGEST_BODY)),
  ];
}

function sample(name: string, contentType: string, bytes: Buffer): SampleBody {
  return { name, contentType, contentEncoding: null, bytes };
}

/** Text with two-, three- and four-byte sequences, a byte order mark, both kinds of line end, combining marks. */
function utf8Text(): string {
  const line = '\ufeffGrüße, naïve café, Ἑλλάς, Україна, 日本語, עברית, e\u0301, 👩‍🚀 𝄞\r\nsecond line\n';
  return line.repeat(20);
}

/** All printable characters of ISO 8859-1; not valid as UTF-8. */
function latin1Text(): Buffer {
  const printable = Array.from({ length: 256 }, (_, at) => at).filter(
    (at) => (at >= 0x20 && at < 0x7f) || at >= 0xa0,
  );
  return Buffer.from(printable);
}

/** A valid 8-bit RGB image with a gradient, made here so that no binary file is kept in the repository. */
export function makePng(width: number, height: number): Buffer {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const rows = Buffer.alloc(height * (1 + width * 3));
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = y * (1 + width * 3) + 1 + x * 3;
      rows.set([(x * 255) / width, (y * 255) / height, (x ^ y) & 255], at);
    }
  }
  const signature = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
  const parts = [
    pngChunk('IHDR', header),
    pngChunk('IDAT', deflateSync(rows)),
    pngChunk('IEND', Buffer.alloc(0)),
  ];
  return Buffer.concat([signature, ...parts]);
}

function pngChunk(type: string, data: Buffer): Buffer {
  const named = Buffer.concat([Buffer.from(type, 'latin1'), data]);
  const length = Buffer.alloc(4);
  length.writeUInt32BE(data.length);
  const sum = Buffer.alloc(4);
  sum.writeUInt32BE(crc32(named));
  return Buffer.concat([length, named, sum]);
}
