import { isUtf8 } from 'node:buffer';
import type { Delivery } from '../../model/element.ts';
import { sentValue } from '../../session/values.ts';
import type { SimpleType } from '../core/reader.ts';
import { isSimpleType, Writer } from '../core/writer.ts';
import { listsIn, valueEnd } from './encoded.ts';
import {
  ANNOTATION_PREFIX,
  BODY_HEADER,
  GROUP_ANNOTATION,
  HEADER_FIELDS,
  ID_ANNOTATION,
  MATURE_ANNOTATION,
  PROPERTY_PREFIX,
  TYPES_HEADER,
} from './names.ts';
import { MAX_SECTIONS, PROPERTY_FIELDS } from './sections.ts';

/** A header as it leaves: its name as AMQP has it, its bytes, and the type that it had when it came. */
interface Sent {
  readonly name: string;
  readonly text: string;
  readonly type: SimpleType;
}

/** Headers, sorted by the section that they go to. */
interface Sorted {
  readonly annotations: Sent[];
  readonly fields: (Sent | undefined)[];
  readonly properties: Sent[];
  form: string | null;
}

const CONTENT_TYPE_AT = PROPERTY_FIELDS.indexOf('content-type');
const CONTENT_ENCODING_AT = PROPERTY_FIELDS.indexOf('content-encoding');
// biome-ignore lint/suspicious/noControlCharactersInRegex: all of ASCII is meant
const ASCII = /^[\x00-\x7f]*$/;

/** One for all: nothing is written between two turns. */
const writer = new Writer();

/**
 * A delivery as an encoded message of format 0 (docs/protocols/amqp.md, "Messages").
 * @param group on a stream: the group that reads, as bytes; else null
 * @param headroom so many bytes are left free in front of it
 */
export function messageOf(delivery: Delivery, group: string | null, headroom = 0): Buffer {
  const { body } = delivery;
  writer.reset();
  const sorted = sort(delivery);
  writeHeader(delivery.tries);
  writeAnnotations(delivery, group, sorted.annotations);
  writeProperties(sorted);
  writer.compound(0x74, 'map', () => writeMap(sorted.properties, (name) => writer.string(name)));
  return writer.finish(headroom, writeBody(sorted.form, body));
}

function writeHeader(tries: number): void {
  writer.compound(0x70, 'list', () => {
    // Everything is kept until it is consumed: durable.
    writer.raw(0x41);
    if (tries === 0) return 1;
    writer.raw(0x40, 0x40, 0x40);
    writer.uint(tries);
    return 5;
  });
}

function writeAnnotations({ id, matureAt }: Delivery, group: string | null, more: readonly Sent[]): void {
  writer.compound(0x72, 'map', () => {
    writer.symbol(ID_ANNOTATION);
    writer.string(id);
    writer.symbol(MATURE_ANNOTATION);
    writer.timestamp(BigInt(Math.trunc(matureAt)));
    if (group !== null) {
      writer.symbol(GROUP_ANNOTATION);
      writer.string(group);
    }
    return (group === null ? 4 : 6) + writeMap(more, (name) => writer.symbol(name));
  });
}

/** A value that does not fit its field becomes an application property of the same name. */
function writeProperties({ fields, properties }: Sorted): void {
  writer.compound(0x73, 'list', () => {
    for (const [at, sent] of fields.entries()) {
      if (sent !== undefined && writeField(at, sent)) continue;
      writer.raw(0x40);
      if (sent !== undefined && properties.every(({ name }) => name !== sent.name)) {
        properties.push({ ...sent, type: 'string' });
      }
    }
    return fields.length;
  });
}

const ID_TYPES: ReadonlySet<SimpleType> = new Set(['ulong', 'uuid', 'binary']);

function writeField(at: number, { type, text }: Sent): boolean {
  switch (PROPERTY_FIELDS[at]) {
    case 'message-id':
    case 'correlation-id':
      return (ID_TYPES.has(type) && writer.simple(type, text)) || writer.simple('string', sentValue(text));
    case 'user-id':
      if (type === 'binary' && writer.simple('binary', text)) return true;
      writer.binary(text, 'latin1');
      return true;
    case 'content-type':
    case 'content-encoding':
      return ASCII.test(text) && writer.simple('symbol', text);
    case 'absolute-expiry-time':
    case 'creation-time':
      return writer.simple('timestamp', text);
    case 'group-sequence':
      return writer.simple('uint', text);
    default:
      return writer.simple('string', sentValue(text));
  }
}

function writeMap(values: readonly Sent[], writeName: (name: string) => void): number {
  for (const { name, text, type } of values) {
    writeName(name);
    if (type === 'string' || !writer.simple(type, text)) writer.string(sentValue(text));
  }
  return values.length * 2;
}

/** Writes the body as it came, if it still can be that. Returns the bytes that follow what is written. */
function writeBody(form: string | null, body: Uint8Array): Uint8Array | null {
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  if (form === 'null' && bytes.length === 0) {
    writer.section(0x77);
    writer.null();
    return null;
  }
  if (form === 'value' && valueEnd(bytes, 0) === bytes.length) {
    writer.section(0x77);
    return bytes;
  }
  const lists = form === 'sequence' ? listsIn(bytes, MAX_SECTIONS) : null;
  if (lists !== null) {
    const last = lists.pop() ?? null;
    for (const list of lists) {
      writer.section(0x76);
      writer.encoded(list);
    }
    writer.section(0x76);
    return last;
  }
  const isString = form === 'string' && isUtf8(bytes);
  writer.section(isString || form === 'binary' ? 0x77 : 0x75);
  const isShort = bytes.length < 256;
  const code = isString ? 0xa1 : 0xa0;
  writer.raw(isShort ? code : code + 0x10);
  writer.unsigned(bytes.length, isShort ? 1 : 4);
  return bytes;
}

function sort({ headers, contentType, contentEncoding }: Delivery): Sorted {
  const sorted: Sorted = { annotations: [], fields: [], properties: [], form: null };
  if (contentType !== null) setField(sorted, CONTENT_TYPE_AT, 'content-type', contentType);
  if (contentEncoding !== null) setField(sorted, CONTENT_ENCODING_AT, 'content-encoding', contentEncoding);
  const spelt = spellings(headers);
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] as string;
    const text = headers[at + 1] as string;
    if (name === BODY_HEADER) sorted.form = text;
    else if (name !== TYPES_HEADER) sortOne(sorted, spelt?.get(name) ?? { name, type: 'string' }, text);
  }
  return sorted;
}

function setField(sorted: Sorted, at: number, name: string, text: string): void {
  while (sorted.fields.length < at) sorted.fields.push(undefined);
  sorted.fields[at] = { name, text, type: 'string' };
}

function sortOne(sorted: Sorted, { name, type }: Spelling, text: string): void {
  const at = HEADER_FIELDS.get(name);
  if (at !== undefined) {
    while (sorted.fields.length < at) sorted.fields.push(undefined);
    sorted.fields[at] = { name, text, type };
  } else if (name.startsWith(ANNOTATION_PREFIX)) {
    sorted.annotations.push({ name: name.slice(ANNOTATION_PREFIX.length), text, type });
  } else {
    const bare = name.startsWith(PROPERTY_PREFIX) ? name.slice(PROPERTY_PREFIX.length) : name;
    sorted.properties.push({ name: bare, text, type });
  }
}

/** How a name was written, and its value's type. */
interface Spelling {
  readonly name: string;
  readonly type: SimpleType;
}

/** Reads {@link TYPES_HEADER}; what in it makes no sense is ignored, since any client may have written it. */
function spellings(headers: readonly string[]): ReadonlyMap<string, Spelling> | null {
  let spelt: Map<string, Spelling> | null = null;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] !== TYPES_HEADER) continue;
    spelt ??= new Map();
    for (const entry of (headers[at + 1] as string).split(', ')) {
      const [name = '', type = 'string'] = entry.split('=');
      if (isSimpleType(type)) spelt.set(name.toLowerCase(), { name, type });
    }
  }
  return spelt;
}
