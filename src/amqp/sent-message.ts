import { isUtf8 } from 'node:buffer';
import type { Delivery } from '../model/element.ts';
import { neverExpires } from '../model/service-headers.ts';
import { encodeValue } from '../session/values.ts';
import { CODE } from './core/codes.ts';
import { Writer } from './core/writer.ts';
import {
  AMQP_PREFIX,
  ANNOTATION_PREFIX,
  BODY_HEADER,
  GROUP_ANNOTATION,
  HEADER_FIELDS,
  ID_ANNOTATION,
  isReserved,
  MATURE_ANNOTATION,
  MAX_SECTIONS,
  PROPERTY_FIELDS,
  PROPERTY_PREFIX,
  SECTION,
  SENT_ANNOTATIONS,
  TYPES_HEADER,
} from './message-names.ts';
import { isSimpleType, type SimpleType, splitLists, valueEnd, writeSimple } from './values.ts';

/** Indexes of the fields that are not, or not always, element headers. */
const FIELD_INDEX = {
  contentType: PROPERTY_FIELDS.indexOf('content-type'),
  contentEncoding: PROPERTY_FIELDS.indexOf('content-encoding'),
  absoluteExpiryTime: PROPERTY_FIELDS.indexOf('absolute-expiry-time'),
} as const;

/** An element header to be sent: its AMQP name, its bytes, and its original AMQP type. */
interface SentHeader {
  readonly name: string;
  readonly text: string;
  readonly type: SimpleType;
}

/** Element headers, sorted by the section that they are written to. */
interface SortedHeaders {
  readonly annotations: readonly SentHeader[];
  /** By index, without content type and encoding. */
  readonly fields: readonly (SentHeader | undefined)[];
  readonly properties: readonly SentHeader[];
  /** Form of the body; null: data. */
  readonly form: string | null;
}

const NO_HEADERS: SortedHeaders = {
  annotations: [],
  fields: [],
  properties: [],
  form: null,
};

/** Shared by all connections, since each message is written synchronously. */
const writer = new Writer();

/**
 * Encodes a delivery as a message of format 0 (docs/protocols/amqp.md, "Messages").
 * @param group on a stream, the group that reads, with one character per byte; else null
 * @param headroom bytes to leave free before the message
 */
export function messageOf(delivery: Delivery, group: string | null, headroom = 0): Buffer {
  const { headers, body } = delivery;
  writer.reset();
  const sorted = headers.length === 0 ? NO_HEADERS : sortHeaders(headers);
  writeHeader(delivery.tries);
  writeAnnotations(delivery, group, sorted.annotations);
  const invalidFields = writeProperties(delivery, sorted);
  writeApplicationProperties(sorted.properties, invalidFields);
  return writer.finish(headroom, writeBody(sorted.form, body));
}

function writeHeader(tries: number): void {
  const start = writer.begin(SECTION.header, 'list');
  // `durable`, since elements are stored until they are consumed.
  writer.boolean(true);
  if (tries > 0) {
    for (let field = 1; field < 4; field++) writer.null();
    writer.uint(tries);
  }
  writer.end(start);
}

function writeAnnotations(
  { id, matureAt }: Delivery,
  group: string | null,
  more: readonly SentHeader[],
): void {
  const start = writer.begin(SECTION.messageAnnotations, 'map');
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
  writer.end(start);
}

/** Writes the properties section. Returns the values that are not valid for their fields; null if there are none. */
function writeProperties(
  { contentType, contentEncoding, headers }: Delivery,
  { fields }: SortedHeaders,
): SentHeader[] | null {
  let invalidFields: SentHeader[] | null = null;
  let count = fields.length;
  if (contentType !== null) count = Math.max(count, FIELD_INDEX.contentType + 1);
  if (contentEncoding !== null) count = Math.max(count, FIELD_INDEX.contentEncoding + 1);
  const start = writer.begin(SECTION.properties, 'list');
  for (let at = 0; at < count; at++) {
    const sent = fields[at];
    let text = sent?.text ?? null;
    if (at === FIELD_INDEX.contentType) text = contentType;
    else if (at === FIELD_INDEX.contentEncoding) text = contentEncoding;
    // An element that never expires may have the expiry of its original, and clients would discard it as expired.
    const isPast = text !== null && at === FIELD_INDEX.absoluteExpiryTime && neverExpires(headers);
    if (text !== null && !isPast && writeField(at, sent?.type ?? 'string', text)) continue;
    writer.null();
    const name = PROPERTY_FIELDS[at] ?? '';
    if (text !== null) invalidFields = [...(invalidFields ?? []), { name, text, type: 'string' }];
  }
  writer.end(start);
  return invalidFields;
}

/** Values that are not valid for their fields become application properties of the same names. */
function writeApplicationProperties(
  properties: readonly SentHeader[],
  invalidFields: readonly SentHeader[] | null,
): void {
  const start = writer.begin(SECTION.applicationProperties, 'map');
  for (const sent of properties) writeProperty(sent);
  for (const sent of invalidFields ?? []) if (!hasName(properties, sent.name)) writeProperty(sent);
  writer.end(start);
}

const ID_TYPES: ReadonlySet<SimpleType> = new Set(['ulong', 'uuid', 'binary']);

function writeField(at: number, type: SimpleType, text: string): boolean {
  switch (PROPERTY_FIELDS[at]) {
    case 'message-id':
    case 'correlation-id':
      return (
        (ID_TYPES.has(type) && writeSimple(writer, type, text)) ||
        writeSimple(writer, 'string', encodeValue(text))
      );
    case 'user-id':
      if (type === 'binary' && writeSimple(writer, 'binary', text)) return true;
      writer.binary(text, 'latin1');
      return true;
    case 'content-type':
    case 'content-encoding':
      return writeSimple(writer, 'symbol', text);
    case 'absolute-expiry-time':
    case 'creation-time':
      return writeSimple(writer, 'timestamp', text);
    case 'group-sequence':
      return writeSimple(writer, 'uint', text);
    default:
      return writeSimple(writer, 'string', encodeValue(text));
  }
}

function writeProperty(sent: SentHeader): void {
  writer.string(sent.name);
  writeValue(sent);
}

function writeValue({ type, text }: SentHeader): void {
  if (type === 'string' || !writeSimple(writer, type, text)) writer.string(encodeValue(text));
}

/** Writes the body in its original form, or as data if it is not valid in that form. Returns the bytes that follow. */
function writeBody(form: string | null, body: Uint8Array): Uint8Array | null {
  if (form !== null) {
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (form === 'null' && bytes.length === 0) {
      writer.section(SECTION.value);
      writer.null();
      return null;
    }
    if (form === 'value' && valueEnd(bytes, 0) === bytes.length) {
      writer.section(SECTION.value);
      return bytes;
    }
    const lists = form === 'sequence' ? splitLists(bytes, MAX_SECTIONS) : null;
    if (lists !== null) {
      const last = lists.pop() ?? null;
      for (const list of lists) {
        writer.section(SECTION.sequence);
        writer.encoded(list);
      }
      writer.section(SECTION.sequence);
      return last;
    }
  }
  const isString = form === 'string' && isUtf8(body);
  writer.section(isString || form === 'binary' ? SECTION.value : SECTION.data);
  writer.head(isString ? CODE.string8 : CODE.binary8, body.byteLength);
  return body;
}

function sortHeaders(headers: readonly string[]): SortedHeaders {
  const annotations: SentHeader[] = [];
  const fields: (SentHeader | undefined)[] = [];
  const properties: SentHeader[] = [];
  let form: string | null = null;
  const types = parseTypes(headers);
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const header = headers[i] as string;
    const text = headers[i + 1] as string;
    if (header === BODY_HEADER) form = text;
    if (header === BODY_HEADER || header === TYPES_HEADER) continue;
    const { name, type } = types?.get(header) ?? { name: header, type: 'string' };
    const at = HEADER_FIELDS.get(name);
    if (at !== undefined) {
      while (fields.length < at) fields.push(undefined);
      fields[at] = { name, text, type };
    } else if (name.startsWith(ANNOTATION_PREFIX)) {
      const bare = name.slice(ANNOTATION_PREFIX.length);
      // Skipped: another protocol can set such a header, and most clients use the last value of a repeated key.
      if (!SENT_ANNOTATIONS.has(bare)) annotations.push({ name: bare, text, type });
    } else {
      const bare = name.startsWith(PROPERTY_PREFIX) ? name.slice(PROPERTY_PREFIX.length) : name;
      const property = { name: isReserved(bare) ? bare : name, text, type };
      if (!name.startsWith(AMQP_PREFIX) || !hasName(properties, property.name)) properties.push(property);
    }
  }
  return { annotations, fields, properties, form };
}

function hasName(properties: readonly SentHeader[], name: string): boolean {
  return properties.some((sent) => sent.name === name);
}

/** Original spelling of a name, and type of its value. */
interface Spelling {
  readonly name: string;
  readonly type: SimpleType;
}

/** Parses {@link TYPES_HEADER}. Invalid entries are ignored, since any client can set the header. */
function parseTypes(headers: readonly string[]): ReadonlyMap<string, Spelling> | null {
  let types: Map<string, Spelling> | null = null;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] !== TYPES_HEADER) continue;
    types ??= new Map();
    for (const entry of (headers[at + 1] as string).split(', ')) {
      const [name = '', type = 'string'] = entry.split('=');
      if (isSimpleType(type)) types.set(name.toLowerCase(), { name, type });
    }
  }
  return types;
}
