import { isUtf8 } from 'node:buffer';
import type { Delivery } from '../../model/element.ts';
import { sentValue } from '../../session/values.ts';
import { CODE } from '../core/codes.ts';
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
import { FIELD_AT, MAX_SECTIONS, PROPERTY_FIELDS } from './sections.ts';

/** A header as it leaves: its name as AMQP has it, its bytes, and the type that it had when it came. */
interface Sent {
  readonly name: string;
  readonly text: string;
  readonly type: SimpleType;
}

/** Headers, sorted by the section that they go to. */
interface Sorted {
  readonly annotations: readonly Sent[];
  /** By their places; the content type and encoding are none of them. */
  readonly fields: readonly (Sent | undefined)[];
  readonly properties: readonly Sent[];
  /** Of the body; null: data. */
  readonly form: string | null;
}

const NO_HEADERS: Sorted = { annotations: [], fields: [], properties: [], form: null };

/** One for all: nothing is written between two turns. */
const writer = new Writer();

/**
 * A delivery as an encoded message of format 0 (docs/protocols/amqp.md, "Messages").
 * @param group on a stream: the group that reads, as bytes; else null
 * @param headroom so many bytes are left free in front of it
 */
export function messageOf(delivery: Delivery, group: string | null, headroom = 0): Buffer {
  const { headers, body } = delivery;
  writer.reset();
  const sorted = headers.length === 0 ? NO_HEADERS : sort(headers);
  writeHeader(delivery.tries);
  writeAnnotations(delivery, group, sorted.annotations);
  const unfit = writeProperties(delivery, sorted);
  writeApplicationProperties(sorted.properties, unfit);
  return writer.finish(headroom, writeBody(sorted.form, body));
}

function writeHeader(tries: number): void {
  const start = writer.begin(0x70, 'list');
  // Everything is kept until it is consumed: durable.
  writer.boolean(true);
  if (tries === 0) writer.end(start, 1);
  else {
    for (let field = 1; field < 4; field++) writer.null();
    writer.uint(tries);
    writer.end(start, 5);
  }
}

function writeAnnotations({ id, matureAt }: Delivery, group: string | null, more: readonly Sent[]): void {
  const start = writer.begin(0x72, 'map');
  writer.symbol(ID_ANNOTATION);
  writer.string(id);
  writer.symbol(MATURE_ANNOTATION);
  writer.timestamp(Math.trunc(matureAt));
  if (group !== null) {
    writer.symbol(GROUP_ANNOTATION);
    writer.string(group);
  }
  for (const sent of more) {
    writer.symbol(sent.name);
    writeValue(sent);
  }
  writer.end(start, 2 * ((group === null ? 2 : 3) + more.length));
}

/** Returns the values that do not fit their fields. */
function writeProperties({ contentType, contentEncoding }: Delivery, { fields }: Sorted): Sent[] | null {
  let unfit: Sent[] | null = null;
  let count = fields.length;
  if (contentType !== null) count = Math.max(count, FIELD_AT.contentType + 1);
  if (contentEncoding !== null) count = Math.max(count, FIELD_AT.contentEncoding + 1);
  const start = writer.begin(0x73, 'list');
  for (let at = 0; at < count; at++) {
    const sent = fields[at];
    let text = sent?.text ?? null;
    if (at === FIELD_AT.contentType) text = contentType;
    else if (at === FIELD_AT.contentEncoding) text = contentEncoding;
    if (text !== null && writeField(at, sent?.type ?? 'string', text)) continue;
    writer.null();
    const name = PROPERTY_FIELDS[at] ?? '';
    if (text !== null) unfit = [...(unfit ?? []), { name, text, type: 'string' }];
  }
  writer.end(start, count);
  return unfit;
}

/** A value that does not fit its field becomes an application property of the same name. */
function writeApplicationProperties(properties: readonly Sent[], unfit: readonly Sent[] | null): void {
  const start = writer.begin(0x74, 'map');
  let count = properties.length;
  for (const sent of properties) writeProperty(sent);
  for (const sent of unfit ?? []) {
    if (properties.some(({ name }) => name === sent.name)) continue;
    writeProperty(sent);
    count += 1;
  }
  writer.end(start, 2 * count);
}

const ID_TYPES: ReadonlySet<SimpleType> = new Set(['ulong', 'uuid', 'binary']);

function writeField(at: number, type: SimpleType, text: string): boolean {
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
      return writer.simple('symbol', text);
    case 'absolute-expiry-time':
    case 'creation-time':
      return writer.simple('timestamp', text);
    case 'group-sequence':
      return writer.simple('uint', text);
    default:
      return writer.simple('string', sentValue(text));
  }
}

function writeProperty(sent: Sent): void {
  writer.string(sent.name);
  writeValue(sent);
}

function writeValue({ type, text }: Sent): void {
  if (type === 'string' || !writer.simple(type, text)) writer.string(sentValue(text));
}

/** Writes the body as it came, if it still can be that. Returns the bytes that follow what is written. */
function writeBody(form: string | null, body: Uint8Array): Uint8Array | null {
  if (form !== null) {
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
  }
  const isString = form === 'string' && isUtf8(body);
  writer.section(isString || form === 'binary' ? 0x77 : 0x75);
  writer.head(isString ? CODE.string8 : CODE.binary8, body.byteLength);
  return body;
}

function sort(headers: readonly string[]): Sorted {
  const annotations: Sent[] = [];
  const fields: (Sent | undefined)[] = [];
  const properties: Sent[] = [];
  let form: string | null = null;
  const spelt = spellings(headers);
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const header = headers[i] as string;
    const text = headers[i + 1] as string;
    if (header === BODY_HEADER) form = text;
    if (header === BODY_HEADER || header === TYPES_HEADER) continue;
    const { name, type } = spelt?.get(header) ?? { name: header, type: 'string' };
    const at = HEADER_FIELDS.get(name);
    if (at !== undefined) {
      while (fields.length < at) fields.push(undefined);
      fields[at] = { name, text, type };
    } else if (name.startsWith(ANNOTATION_PREFIX)) {
      annotations.push({ name: name.slice(ANNOTATION_PREFIX.length), text, type });
    } else {
      const bare = name.startsWith(PROPERTY_PREFIX) ? name.slice(PROPERTY_PREFIX.length) : name;
      properties.push({ name: bare, text, type });
    }
  }
  return { annotations, fields, properties, form };
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
