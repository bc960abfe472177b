import { isUtf8 } from 'node:buffer';
import type { Delivery, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders, headerParameter } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { neverExpires } from '../model/service-headers.ts';
import { NameSpelling } from '../session/spelling.ts';
import {
  decodeText,
  encodeValue,
  parseGroups,
  parseInteger,
  parseMilliseconds,
  parseMoment,
} from '../session/values.ts';
import { quoteBytes, textOfByteString } from '../util/byte-string.ts';
import { CODE } from './core/codes.ts';
import { NOTHING } from './core/fields.ts';
import { TRANSFER_HEAD_BYTES, writer } from './core/frames.ts';
import {
  isList,
  isSimpleType,
  malformedMessage,
  type SimpleType,
  type SimpleValue,
  splitLists,
  ValueReader,
  valueEnd,
  writeSimple,
} from './values.ts';

// A message is one element, and an element one message (docs/protocols/amqp.md, "Messages"). First the names of the
// parts of messages and of the element headers that store them, then how messages are read, then how they are written.

/** The fields of the properties section, in the order of the standard (messaging, 3.2.4). */
export const PROPERTY_FIELDS = [
  'message-id',
  'user-id',
  'to',
  'subject',
  'reply-to',
  'correlation-id',
  'content-type',
  'content-encoding',
  'absolute-expiry-time',
  'creation-time',
  'group-id',
  'group-sequence',
  'reply-to-group-id',
] as const;

/**
 * How the body was encoded in the message. An element has only bytes, so a form other than `data` is stored in a
 * header. For `value` (an `amqp-value` of any other type) and `sequence` (the lists of `amqp-sequence` sections), the
 * element's bytes are the AMQP encoding.
 */
type BodyForm = 'data' | 'string' | 'binary' | 'null' | 'value' | 'sequence';

/** Numeric descriptors of the sections of a message (messaging, 3.2). */
const SECTION = {
  header: 0x70,
  deliveryAnnotations: 0x71,
  messageAnnotations: 0x72,
  properties: 0x73,
  applicationProperties: 0x74,
  data: 0x75,
  sequence: 0x76,
  value: 0x77,
  footer: 0x78,
} as const;

/** More sections than any client writes. */
const MAX_SECTIONS = 4096;

// Names of the element headers that store the parts of a message. Fields of its properties and application properties
// keep their names, so that every protocol can read them; names of parts specific to AMQP start with `x-amqp-`.

/** The original spelling of names that are not lower case, and the types of values that do not have the usual type. */
export const TYPES_HEADER = 'x-amqp-types';
/** The {@link BodyForm} of a body that was not encoded as data. */
export const BODY_HEADER = 'x-amqp-body';
/** Message annotations. */
export const ANNOTATION_PREFIX = 'x-amqp-annotation-';
/** Application properties whose names are taken already. */
export const PROPERTY_PREFIX = 'x-amqp-property-';
/** The prefix of all of these names. */
export const AMQP_PREFIX = 'x-amqp-';

/** Annotations of sent messages that do not come from the element's headers. */
export const ID_ANNOTATION = 'x-opt-ks-id';
export const MATURE_ANNOTATION = 'x-opt-ks-mature';
export const GROUP_ANNOTATION = 'x-opt-ks-group';
const SENT_ANNOTATIONS: ReadonlySet<string> = new Set([ID_ANNOTATION, MATURE_ANNOTATION, GROUP_ANNOTATION]);

/** Annotations that have a meaning in a client's message. */
export const DELIVERY_TIME_ANNOTATION = 'x-opt-delivery-time';
export const DELIVERY_DELAY_ANNOTATION = 'x-opt-delivery-delay';

/** Application properties that have a meaning in a client's message, as the headers of these names have in STOMP. */
export const GROUPS_PROPERTY = 'x-ks-groups';
export const NEXT_T_PROPERTY = 'x-next-t';
export const DELTA_T_PROPERTY = 'x-delta-t';

/** A misspelt time or group would be stored, and the element delivered at once, or to other groups. */
const ANNOTATION_SPELLING = new NameSpelling({
  kind: 'message annotation',
  known: [DELIVERY_TIME_ANNOTATION, DELIVERY_DELAY_ANNOTATION],
});
const PROPERTY_SPELLING = new NameSpelling({
  kind: 'application property',
  known: [GROUPS_PROPERTY, NEXT_T_PROPERTY, DELTA_T_PROPERTY],
});

/**
 * Fields that are stored as element headers of the same names, with their indexes. The other two, content type and
 * encoding, are fields of an element.
 */
export const HEADER_FIELDS: ReadonlyMap<string, number> = new Map(
  PROPERTY_FIELDS.map((field, at): [string, number] => [field, at]).filter(
    ([field]) => field !== 'content-type' && field !== 'content-encoding',
  ),
);

/** Whether the name of an application property is that of another part of a message, so that it needs a prefix. */
function isReserved(name: string): boolean {
  const lower = name.toLowerCase();
  return HEADER_FIELDS.has(lower) || lower.startsWith(AMQP_PREFIX);
}

// Reading messages of clients.

/** The element that a message describes. Groups are null if the message names none. */
type ReceivedElement = Omit<NewElement, 'groups' | 'dedupKey' | 'expiresAt'> & {
  readonly groups: readonly string[] | null;
  /** Time to live from its arrival, ms; null: not given. */
  readonly ttlMs: number | null;
  /** When it expires, by its sender's clock; null: not given. */
  readonly expiresAt: number | null;
  /** The property `to`; null: not given. */
  readonly to: string | null;
};

/**
 * Converts an encoded message of format 0 to an element.
 * @throws QuaysideError `malformed-request`, `not-supported` (for compound values outside of the body),
 * `invalid-header`, `invalid-parameter`
 */
export function elementOf(bytes: Buffer): ReceivedElement {
  if (bytes.length === 0) throw malformedMessage('it is empty');
  const reader = new ValueReader(bytes);
  const message = new ReceivedMessage();
  for (let sections = 0; !reader.isAtEnd; sections++) {
    if (sections >= MAX_SECTIONS) throw malformedMessage('it has too many sections');
    message.readSection(reader);
  }
  return message.element();
}

/** Numeric descriptors of the sections, by their symbols. */
const SECTION_BY_SYMBOL: Readonly<Record<string, number>> = {
  'amqp:header:list': SECTION.header,
  'amqp:delivery-annotations:map': SECTION.deliveryAnnotations,
  'amqp:message-annotations:map': SECTION.messageAnnotations,
  'amqp:properties:list': SECTION.properties,
  'amqp:application-properties:map': SECTION.applicationProperties,
  'amqp:data:binary': SECTION.data,
  'amqp:amqp-sequence:list': SECTION.sequence,
  'amqp:amqp-value:*': SECTION.value,
  'amqp:footer:map': SECTION.footer,
};

/** Sections with a lower descriptor occur at most once. */
const FIRST_BODY_SECTION = SECTION.data;
/** Number and indexes of the fields of the header section (messaging, 3.2.1). */
const HEADER_FIELD_COUNT = 5;
const TTL_INDEX = 2;
const DELIVERY_COUNT_INDEX = 4;
/** Maximum entries of a map: those that can be element headers, and a few that are not stored. */
const MAX_MAP_ENTRIES = LIMITS.headerCount + 16;

/** The usual types of fields that are not strings. */
const FIELD_TYPES: Readonly<Record<string, SimpleType>> = {
  'absolute-expiry-time': 'timestamp',
  'creation-time': 'timestamp',
  'group-sequence': 'uint',
};

/** Reads the sections of a message, and collects what an element stores of them. */
class ReceivedMessage {
  /** The sections before the body that were read, one bit each. */
  #seen = 0;
  /** Null if no part of the body was read. */
  #form: BodyForm | null = null;
  #body: Buffer = NOTHING;
  /** The parts of a body with several sections: data, or the encoded lists of sequences. */
  #parts: Buffer[] | null = null;
  #ttlMs: number | null = null;
  #deliveryCount = 0;
  #to: string | null = null;
  #contentType: string | null = null;
  #contentEncoding: string | null = null;
  #expiresAt: number | null = null;
  // Values of annotations and application properties that have a meaning; null: not given.
  #deliveryTime: string | null = null;
  #deliveryDelay: string | null = null;
  #groups: string | null = null;
  #nextT: string | null = null;
  #deltaT: string | null = null;
  /** Element headers, as flat pairs. */
  readonly #headers: string[] = [];
  /** The entries of {@link TYPES_HEADER}. */
  readonly #types: string[] = [];

  readSection(reader: ValueReader): void {
    const descriptor = reader.descriptor();
    const code = typeof descriptor === 'number' ? descriptor : SECTION_BY_SYMBOL[descriptor];
    if (code !== undefined && code < FIRST_BODY_SECTION) {
      const bit = 1 << (FIRST_BODY_SECTION - code);
      if ((this.#seen & bit) !== 0) throw malformedMessage('a section comes twice');
      this.#seen |= bit;
    }
    switch (code) {
      case SECTION.header:
        this.#readHeader(reader);
        return;
      case SECTION.messageAnnotations:
        this.#readAnnotations(reader);
        return;
      case SECTION.properties:
        this.#readProperties(reader);
        return;
      case SECTION.applicationProperties:
        this.#readApplicationProperties(reader);
        return;
      case SECTION.data:
        this.#readData(reader);
        return;
      case SECTION.sequence:
        this.#readSequence(reader);
        return;
      case SECTION.value:
        this.#readValue(reader);
        return;
      case SECTION.deliveryAnnotations:
      case SECTION.footer:
        // Not stored: delivery annotations are for this hop, and a footer is about the bytes of this encoding.
        reader.encoded();
        return;
      default:
        throw malformedMessage('a section is unknown');
    }
  }

  element(): ReceivedElement {
    const form = this.#form ?? 'data';
    if (form !== 'data') this.#addHeader(BODY_HEADER, { type: 'string', text: form });
    if (this.#types.length > 0) this.#headers.push(TYPES_HEADER, this.#types.join(', '));
    return {
      body: this.#parts === null ? this.#body : Buffer.concat(this.#parts),
      contentType: checkContentHeader('content-type', this.#contentType),
      contentEncoding: checkContentHeader('content-encoding', this.#contentEncoding),
      headers: checkHeaders(this.#headers, { spell: (name) => textOfByteString(this.#spellingOf(name)) }),
      matureAt:
        this.#deliveryTime === null
          ? parseMoment(NEXT_T_PROPERTY, this.#nextT)
          : parseMoment(DELIVERY_TIME_ANNOTATION, this.#deliveryTime),
      delayMs:
        this.#deliveryDelay === null
          ? parseMilliseconds(DELTA_T_PROPERTY, this.#deltaT, 0, 0)
          : parseMilliseconds(DELIVERY_DELAY_ANNOTATION, this.#deliveryDelay, 0, 0),
      tries: this.#deliveryCount === 0 ? 0 : parseTries(this.#deliveryCount),
      // 0 means no expiry; so does an `absolute-expiry-time` beyond any maturity (see `expiryOf`).
      ttlMs: this.#ttlMs === 0 ? null : this.#ttlMs,
      expiresAt: this.#expiresAt,
      to: this.#to,
      groups: parseGroups(GROUPS_PROPERTY, this.#groups),
    };
  }

  #readHeader(reader: ValueReader): void {
    const count = reader.open('list');
    if (count === null) return;
    if (count > HEADER_FIELD_COUNT) throw malformedMessage('its header has too many fields');
    for (let at = 0; at < count; at++) {
      const value = reader.simple();
      if (value.type !== 'uint') continue;
      if (at === TTL_INDEX) this.#ttlMs = Number(value.text);
      else if (at === DELIVERY_COUNT_INDEX) this.#deliveryCount = Number(value.text);
    }
    reader.close();
  }

  #readAnnotations(reader: ValueReader): void {
    const count = openMap(reader);
    if (count === null) return;
    for (let at = 0; at < count; at += 2) {
      const name = readName(reader, 'symbol');
      const value = reader.simple(name);
      if (name === DELIVERY_TIME_ANNOTATION) this.#deliveryTime = textOrNull(value);
      else if (name === DELIVERY_DELAY_ANNOTATION) this.#deliveryDelay = textOrNull(value);
      else if (!SENT_ANNOTATIONS.has(name)) {
        ANNOTATION_SPELLING.check(name);
        this.#addHeader(ANNOTATION_PREFIX + name, value);
      }
    }
    reader.close();
  }

  #readProperties(reader: ValueReader): void {
    const count = reader.open('list');
    if (count === null) return;
    if (count > PROPERTY_FIELDS.length) throw malformedMessage('its properties have too many fields');
    for (let at = 0; at < count; at++) {
      const field = PROPERTY_FIELDS[at] ?? '';
      const value = reader.simple(field);
      if (value.type !== 'null') this.#addField(field, value);
    }
    reader.close();
  }

  #addField(field: string, value: SimpleValue): void {
    if (field === 'content-type') this.#contentType = value.text;
    else if (field === 'content-encoding') this.#contentEncoding = value.text;
    else {
      if (field === 'to') this.#to = addressIn(value);
      else if (field === 'absolute-expiry-time') this.#expiresAt = parseExpiry(value);
      this.#addHeader(field, field === 'user-id' ? readUserId(value) : value, FIELD_TYPES[field]);
    }
  }

  #readApplicationProperties(reader: ValueReader): void {
    const count = openMap(reader);
    if (count === null) return;
    for (let at = 0; at < count; at += 2) {
      const name = readName(reader, 'string');
      const value = reader.simple(name);
      if (name === GROUPS_PROPERTY) this.#groups = textOrNull(value);
      else if (name === NEXT_T_PROPERTY) this.#nextT = textOrNull(value);
      else if (name === DELTA_T_PROPERTY) this.#deltaT = textOrNull(value);
      else {
        PROPERTY_SPELLING.check(name);
        this.#addHeader(isReserved(name) ? PROPERTY_PREFIX + name : name, value);
      }
    }
    reader.close();
  }

  #readData(reader: ValueReader): void {
    const data = reader.bytesOrNull();
    if (data?.form !== 'binary') throw malformedMessage('a data section is not binary');
    this.#addBody('data', data.body);
  }

  #readSequence(reader: ValueReader): void {
    const list = reader.encoded();
    if (!isList(list[0])) throw malformedMessage('a sequence is not a list');
    this.#addBody('sequence', list);
  }

  #readValue(reader: ValueReader): void {
    const simple = reader.bytesOrNull();
    if (simple !== null) {
      this.#addBody(simple.form, simple.body);
      return;
    }
    const value = reader.encoded();
    if (value[0] === CODE.null) this.#addBody('null', NOTHING);
    else this.#addBody('value', value);
  }

  /** Data sections are joined, and so are the lists of sequences. */
  #addBody(form: BodyForm, part: Buffer): void {
    if (this.#form === null) {
      this.#form = form;
      this.#body = part;
    } else if (form === this.#form && (form === 'data' || form === 'sequence')) {
      this.#parts ??= [this.#body];
      this.#parts.push(part);
    } else throw malformedMessage('it has two bodies');
  }

  /** @throws QuaysideError `invalid-header` if the name is taken */
  #addHeader(name: string, { type, text }: SimpleValue, defaultType: SimpleType = 'string'): void {
    const lower = name.toLowerCase();
    if (this.#hasHeader(lower)) {
      const message = `The message has ${quoteBytes(name)} twice. Names of headers must differ in more than case.`;
      throw new QuaysideError('invalid-header', message, {
        parameter: headerParameter(textOfByteString(name)),
      });
    }
    this.#headers.push(lower, text);
    if (type !== defaultType) this.#types.push(`${name}=${type}`);
    else if (name !== lower) this.#types.push(name);
  }

  /** The name of a header as the client sent it: `#types` has all that are not in lower case. */
  #spellingOf(lower: string): string {
    const { length } = lower;
    const typed = this.#types.find(
      (one) => one.slice(0, length).toLowerCase() === lower && (one.length === length || one[length] === '='),
    );
    return typed?.slice(0, length) ?? lower;
  }

  /** A linear search, since most messages have few headers or none. */
  #hasHeader(lower: string): boolean {
    for (let at = 0; at < this.#headers.length; at += 2) if (this.#headers[at] === lower) return true;
    return false;
  }
}

/** Opens a map; as `ValueReader.open`. */
function openMap(reader: ValueReader): number | null {
  const count = reader.open('map');
  if (count === null) return null;
  if (count % 2 !== 0) throw malformedMessage('a map has a name without a value');
  if (count <= 2 * MAX_MAP_ENTRIES) return count;
  const message = `A map of the message has ${count / 2} entries. Allowed: at most ${MAX_MAP_ENTRIES}; an element has at most ${LIMITS.headerCount} headers.`;
  throw new QuaysideError('invalid-header', message);
}

/** Reads a name in a map. Names of application properties are strings, those of annotations are symbols. */
function readName(reader: ValueReader, wanted: 'string' | 'symbol'): string {
  const { type, text } = reader.simple();
  if (type !== wanted) throw malformedMessage(`a name is not a ${wanted}`);
  return text;
}

/** The text of a value; null for an AMQP null, which clients send for a value that is not set. */
function textOrNull({ type, text }: SimpleValue): string | null {
  return type === 'null' ? null : text;
}

function parseTries(deliveryCount: number): number {
  return parseInteger('delivery-count', String(deliveryCount), { to: LIMITS.tries, unit: 'a count' }, 0);
}

function parseExpiry({ type, text }: SimpleValue): number | null {
  const at = type === 'timestamp' ? Number(text) : 0;
  return at === 0 || at > LIMITS.matureAt ? null : Math.max(0, at);
}

function addressIn({ type, text }: SimpleValue): string | null {
  return type === 'string' ? decodeText('to', text) : null;
}

const PRINTABLE = /^[!-~](?:[ -~]*[!-~])?$/;

/** Stores a binary `user-id` as text if its bytes are printable ASCII. */
function readUserId(value: SimpleValue): SimpleValue {
  if (value.type !== 'binary') return value;
  const text = Buffer.from(value.text, 'base64').toString('latin1');
  return PRINTABLE.test(text) ? { type: 'string', text } : value;
}

// Writing messages to clients.

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

/**
 * Encodes a delivery as a message of format 0, after a headroom of `TRANSFER_HEAD_BYTES`.
 * @param group on a stream, the group that reads, with one character per byte; else null
 */
export function messageOf(delivery: Delivery, group: string | null): Buffer {
  const { headers, body } = delivery;
  writer.reset();
  const sorted = headers.length === 0 ? NO_HEADERS : sortHeaders(headers);
  writeHeader(delivery.tries);
  writeAnnotations(delivery, group, sorted.annotations);
  const invalidFields = writeProperties(delivery, sorted);
  writeApplicationProperties(sorted.properties, invalidFields);
  return writer.finish(TRANSFER_HEAD_BYTES, writeBody(sorted.form, body));
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
