import { letterHeaders } from '../../model/dead-letter.ts';
import { type ElementContent, type ElementHeaders, NO_HEADERS } from '../../model/element.ts';
import { elementId } from './ids.ts';

/**
 * An element's content as one value:
 *
 *   P  length of the content type + 1, or 0 for none (2)  the content type
 *      length of the rest (4)  the rest: JSON of [encoding, header name, value, …], of no bytes if there is none
 *      the body
 *
 * A dead letter has this in front, which the server writes, and which is read as headers:
 *
 *   E  when (6)  tries (4)  length of the queue's name (2)  tag (12) and number (6) of its id  the queue's name
 *
 * Those of the version before begin with D and have no id.
 */
const PLAIN = 0x50;
const LETTER = 0x45;
const OLD_LETTER = 0x44;
const ID_BYTES = 18;
const HEAD_BYTES = 7;
const LETTER_HEAD_BYTES = 13;

const NOTHING = Buffer.alloc(0);

export function encodeContent({ body, contentType, contentEncoding, headers }: ElementContent): Buffer {
  const type = contentType === null ? NOTHING : Buffer.from(contentType);
  const bare = contentEncoding === null && headers.length === 0;
  const rest = bare ? NOTHING : Buffer.from(JSON.stringify([contentEncoding, ...headers]));
  const value = Buffer.allocUnsafe(HEAD_BYTES + type.length + rest.length + body.length);
  value.writeUInt8(PLAIN, 0);
  value.writeUInt16BE(contentType === null ? 0 : type.length + 1, 1);
  value.set(type, 3);
  value.writeUInt32BE(rest.length, 3 + type.length);
  value.set(rest, HEAD_BYTES + type.length);
  value.set(body, HEAD_BYTES + type.length + rest.length);
  return value;
}

/**
 * @param at where the content begins in `value`
 * @throws Error if it has another form, as after damage, or one of a newer version
 */
export function decodeContent(value: Buffer, at: number): ElementContent {
  if (value[at] === LETTER) return decodeLetter(value, at);
  if (value[at] === OLD_LETTER) return decodeOldLetter(value, at);
  if (value[at] !== PLAIN) throw new Error(`content begins with byte ${value[at]}, not ${PLAIN}`);
  const typeLength = value.readUInt16BE(at + 1);
  const restAt = at + 3 + Math.max(0, typeLength - 1);
  const bodyAt = restAt + 4 + value.readUInt32BE(restAt);
  if (bodyAt > value.length)
    throw new Error(`content ends at byte ${value.length}, before its body at ${bodyAt}`);
  const contentType = typeLength === 0 ? null : readType(value, at + 3, restAt);
  const { contentEncoding, headers } = decodeRest(value, restAt + 4, bodyAt);
  return { body: value.subarray(bodyAt), contentType, contentEncoding, headers };
}

/** The last content type that was read, as bytes and as text: elements of a queue mostly have the same. */
let lastType = { bytes: NOTHING, text: '' };

function readType(value: Buffer, from: number, to: number): string {
  const { bytes, text } = lastType;
  let same = bytes.length === to - from;
  for (let i = 0; same && i < bytes.length; i++) same = bytes[i] === value[from + i];
  if (same) return text;
  const read = value.toString('utf8', from, to);
  // A copy: a slice would keep the whole reply in memory.
  lastType = { bytes: Buffer.from(value.subarray(from, to)), text: read };
  return read;
}

function decodeRest(
  value: Buffer,
  from: number,
  to: number,
): { contentEncoding: string | null; headers: ElementHeaders } {
  if (from === to) return { contentEncoding: null, headers: NO_HEADERS };
  const [contentEncoding = null, ...headers] = JSON.parse(value.toString('utf8', from, to)) as [
    string | null,
    ...string[],
  ];
  return { contentEncoding, headers };
}

function decodeLetter(value: Buffer, at: number): ElementContent {
  const idAt = at + LETTER_HEAD_BYTES;
  const nameAt = idAt + ID_BYTES;
  const contentAt = nameAt + value.readUInt16BE(at + 11);
  const inner = decodeContent(value, contentAt);
  const headers = letterHeaders(inner.headers, {
    from: value.toString('latin1', nameAt, contentAt),
    at: value.readUIntBE(at + 1, 6),
    tries: value.readUInt32BE(at + 7),
    id: elementId(value.toString('latin1', idAt, idAt + 12), value.readUIntBE(idAt + 12, 6)),
  });
  return { ...inner, headers };
}

function decodeOldLetter(value: Buffer, at: number): ElementContent {
  const nameAt = at + LETTER_HEAD_BYTES;
  const contentAt = nameAt + value.readUInt16BE(at + 11);
  const inner = decodeContent(value, contentAt);
  const headers = letterHeaders(inner.headers, {
    from: value.toString('latin1', nameAt, contentAt),
    at: value.readUIntBE(at + 1, 6),
    tries: value.readUInt32BE(at + 7),
    id: '',
  });
  return { ...inner, headers: headers.slice(0, -2) };
}
