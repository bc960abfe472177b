import { isUtf8 } from 'node:buffer';
import type { Delivery, NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { EXCHANGE_NAME, HOP_COUNT, ORIGIN_ID } from '../model/service-headers.ts';
import {
  decodeText,
  encodeValue,
  parseGroups,
  parseInteger,
  parseMilliseconds,
  parseMoment,
} from '../session/values.ts';
import { quoteBytes } from '../util/quote.ts';
import { CODE } from './core/codes.ts';
import { Writer } from './core/writer.ts';
import {
  isSimpleType,
  malformedMessage,
  type SimpleType,
  type SimpleValue,
  splitLists,
  ValueReader,
  valueEnd,
  writeSimple,
} from './values.ts';

// Converts messages to elements, and elements to messages (docs/protocols/amqp.md, "Messages").

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
type PropertyField = (typeof PROPERTY_FIELDS)[number];

/** Indexes of some of these fields. */
const FIELD_INDEX = {
  to: indexOfField('to'),
  contentType: indexOfField('content-type'),
  contentEncoding: indexOfField('content-encoding'),
  absoluteExpiryTime: indexOfField('absolute-expiry-time'),
} as const;

/**
 * Headers of elements that never expire: dead letters, even if they were moved back, copies made by exchanges, and
 * elements that no destination of an exchange accepted.
 */
const WITHOUT_EXPIRY: ReadonlySet<string> = new Set([ORIGIN_ID, HOP_COUNT, EXCHANGE_NAME]);

function indexOfField(field: PropertyField): number {
  return PROPERTY_FIELDS.indexOf(field);
}

/**
 * How the body was encoded in the message. An element has only bytes, so a form other than `data` is stored in a
 * header. For `value` (an `amqp-value` of any other type) and `sequence` (the lists of `amqp-sequence` sections), the
 * element's bytes are the AMQP encoding.
 */
type BodyForm = 'data' | 'string' | 'binary' | 'null' | 'value' | 'sequence';

/** An entry of a map. The name has one character per byte. */
interface NamedValue {
  readonly name: string;
  readonly value: SimpleValue;
}

/** A decoded message, without the parts that an element does not store. */
interface Message {
  readonly body: Buffer;
  readonly form: BodyForm;
  /** `ttl` of the header section, in milliseconds; null if it has none. */
  readonly ttlMs: number | null;
  /** `delivery-count` of the header section. */
  readonly deliveryCount: number;
  readonly annotations: readonly NamedValue[];
  /** In the order of {@link PROPERTY_FIELDS}. */
  readonly properties: PropertyFields;
  readonly applicationProperties: readonly NamedValue[];
}

/** A field is null, or beyond the end, if the message does not have it. */
type PropertyFields = readonly (SimpleValue | null)[];

/** Numeric descriptors of the sections, by their symbols. */
const SECTION_BY_SYMBOL: Readonly<Record<string, number>> = {
  'amqp:header:list': 0x70,
  'amqp:delivery-annotations:map': 0x71,
  'amqp:message-annotations:map': 0x72,
  'amqp:properties:list': 0x73,
  'amqp:application-properties:map': 0x74,
  'amqp:data:binary': 0x75,
  'amqp:amqp-sequence:list': 0x76,
  'amqp:amqp-value:*': 0x77,
  'amqp:footer:map': 0x78,
};

/** Sections with a lower descriptor occur at most once. */
const FIRST_BODY_SECTION = 0x75;
/** Indexes of fields of the header section (messaging, 3.2.1). */
const TTL_INDEX = 2;
const DELIVERY_COUNT_INDEX = 4;
/** More sections than any client writes. */
const MAX_SECTIONS = 4096;
/** Maximum entries of a map: those that can be element headers, and a few that are not stored. */
const MAX_MAP_ENTRIES = LIMITS.headerCount + 16;

/**
 * Decodes a message of format 0 (messaging, 3.2). Joins its data sections, and the lists of its sequences.
 * @throws QuaysideError `malformed-request`; `not-supported` for compound values outside of the body
 */
function readMessage(bytes: Buffer): Message {
  if (bytes.length === 0) throw malformedMessage('it is empty');
  const reader = new ValueReader(bytes);
  const draft: Draft = {
    form: 'data',
    body: EMPTY,
    hasBody: false,
    parts: null,
    seen: 0,
    ttlMs: null,
    deliveryCount: 0,
    annotations: NONE,
    properties: NONE,
    applicationProperties: NONE,
  };
  for (let sections = 0; !reader.isAtEnd; sections++) {
    if (sections >= MAX_SECTIONS) throw malformedMessage('it has too many sections');
    readSection(reader, draft);
  }
  if (draft.parts !== null) draft.body = Buffer.concat(draft.parts);
  return draft;
}

/** A message that is being decoded. */
type Draft = { -readonly [K in keyof Message]: Message[K] } & {
  hasBody: boolean;
  /** The parts of a body with several sections: data, or the encoded lists of sequences. */
  parts: Buffer[] | null;
  /** The sections before the body that were read, one bit each. */
  seen: number;
};

const NONE: readonly never[] = [];
const EMPTY = Buffer.alloc(0);

function readSection(reader: ValueReader, draft: Draft): void {
  const descriptor = reader.descriptor();
  const code = typeof descriptor === 'number' ? descriptor : SECTION_BY_SYMBOL[descriptor];
  if (code !== undefined && code < FIRST_BODY_SECTION) {
    const bit = 1 << (FIRST_BODY_SECTION - code);
    if ((draft.seen & bit) !== 0) throw malformedMessage('a section comes twice');
    draft.seen |= bit;
  }
  switch (code) {
    case 0x70:
      readHeader(reader, draft);
      return;
    case 0x72:
      draft.annotations = readMap(reader, 'symbol');
      return;
    case 0x73:
      draft.properties = readProperties(reader);
      return;
    case 0x74:
      draft.applicationProperties = readMap(reader, 'string');
      return;
    case 0x75: {
      const data = reader.bytesOrNull();
      if (data?.form !== 'binary') throw malformedMessage('a data section is not binary');
      addBody(draft, 'data', data.body);
      return;
    }
    case 0x76: {
      const list = reader.encoded();
      if (splitLists(list, 1) === null) throw malformedMessage('a sequence is not a list');
      addBody(draft, 'sequence', list);
      return;
    }
    case 0x77:
      readValue(reader, draft);
      return;
    case 0x71:
    case 0x78:
      // Not stored: delivery annotations are for this hop, and a footer is about the bytes of this encoding.
      reader.encoded();
      return;
    default:
      throw malformedMessage('a section is unknown');
  }
}

function addBody(draft: Draft, form: BodyForm, part: Buffer): void {
  if (!draft.hasBody) {
    draft.form = form;
    draft.body = part;
    draft.hasBody = true;
  } else if (form === draft.form && (form === 'data' || form === 'sequence')) {
    draft.parts ??= [draft.body];
    draft.parts.push(part);
  } else throw malformedMessage('it has two bodies');
}

function readHeader(reader: ValueReader, draft: Draft): void {
  const count = reader.open('list');
  if (count === null) return;
  for (let at = 0; at < count; at++) {
    const value = reader.simple();
    if (value.type !== 'uint') continue;
    if (at === TTL_INDEX) draft.ttlMs = Number(value.text);
    else if (at === DELIVERY_COUNT_INDEX) draft.deliveryCount = Number(value.text);
  }
  reader.close();
}

function readProperties(reader: ValueReader): PropertyFields {
  const count = reader.open('list');
  if (count === null) return NONE;
  if (count > PROPERTY_FIELDS.length) throw malformedMessage('its properties have too many fields');
  const properties: (SimpleValue | null)[] = [];
  for (let at = 0; at < count; at++) {
    const value = reader.simple();
    properties.push(value.type === 'null' ? null : value);
  }
  reader.close();
  return properties;
}

/** Reads a map. Names of application properties are strings, those of annotations are symbols. */
function readMap(reader: ValueReader, names: 'string' | 'symbol'): NamedValue[] {
  const count = reader.open('map');
  if (count === null) return [];
  if (count % 2 !== 0) throw malformedMessage('a map has a name without a value');
  if (count > 2 * MAX_MAP_ENTRIES) throw tooManyEntries(count / 2);
  const values: NamedValue[] = [];
  for (let at = 0; at < count; at += 2) {
    const name = reader.simple();
    if (name.type !== names) throw malformedMessage(`a name is not a ${names}`);
    values.push({ name: name.text, value: reader.simple() });
  }
  reader.close();
  return values;
}

function tooManyEntries(count: number): QuaysideError {
  const message = `A map of the message has ${count} entries. Allowed: at most ${MAX_MAP_ENTRIES}; an element has at most ${LIMITS.headerCount} headers.`;
  return new QuaysideError('invalid-header', message);
}

function readValue(reader: ValueReader, draft: Draft): void {
  const simple = reader.bytesOrNull();
  if (simple !== null) {
    addBody(draft, simple.form, simple.body);
    return;
  }
  const value = reader.encoded();
  if (value[0] === CODE.null) addBody(draft, 'null', EMPTY);
  else addBody(draft, 'value', value);
}

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
export const SENT_ANNOTATIONS: ReadonlySet<string> = new Set([
  ID_ANNOTATION,
  MATURE_ANNOTATION,
  GROUP_ANNOTATION,
]);

/** Annotations that have a meaning in a client's message. */
export const DELIVERY_TIME_ANNOTATION = 'x-opt-delivery-time';
export const DELIVERY_DELAY_ANNOTATION = 'x-opt-delivery-delay';

/** Application properties that have a meaning in a client's message, as the headers of these names have in STOMP. */
export const GROUPS_PROPERTY = 'x-ks-groups';
export const NEXT_T_PROPERTY = 'x-next-t';
export const DELTA_T_PROPERTY = 'x-delta-t';

/**
 * Fields that are stored as element headers of the same names, with their indexes. The other two, content type and
 * encoding, are fields of an element.
 */
export const HEADER_FIELDS: ReadonlyMap<string, number> = new Map(
  PROPERTY_FIELDS.map((field, at): [string, number] => [field, at]).filter(
    ([, at]) => at !== FIELD_INDEX.contentType && at !== FIELD_INDEX.contentEncoding,
  ),
);

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
 * Converts an encoded message to an element (docs/protocols/amqp.md, "Messages").
 * @throws QuaysideError `malformed-request`, `not-supported`, `invalid-header`, `invalid-parameter`
 */
export function elementOf(bytes: Buffer): ReceivedElement {
  const message = readMessage(bytes);
  const { properties, deliveryCount, ttlMs } = message;
  const draft = new HeaderDraft();
  const directives: Directives = { time: null, delay: null, groups: null, nextT: null, deltaT: null };
  addAnnotations(message, draft, directives);
  addFields(message, draft);
  addApplicationProperties(message, draft, directives);
  if (message.form !== 'data') draft.add(BODY_HEADER, { type: 'string', text: message.form });
  const contentType = properties[FIELD_INDEX.contentType]?.text ?? null;
  const contentEncoding = properties[FIELD_INDEX.contentEncoding]?.text ?? null;
  return {
    body: message.body,
    contentType: checkContentHeader('content-type', contentType),
    contentEncoding: checkContentHeader('content-encoding', contentEncoding),
    headers: checkHeaders(draft.finish()),
    matureAt:
      directives.time === null
        ? parseMoment(NEXT_T_PROPERTY, directives.nextT)
        : parseMoment(DELIVERY_TIME_ANNOTATION, directives.time),
    delayMs:
      directives.delay === null
        ? parseMilliseconds(DELTA_T_PROPERTY, directives.deltaT, 0, 0)
        : parseMilliseconds(DELIVERY_DELAY_ANNOTATION, directives.delay, 0, 0),
    tries: deliveryCount === 0 ? 0 : parseTries(deliveryCount),
    // 0 means no expiry; so does an `absolute-expiry-time` beyond any maturity (see `expiryOf`).
    ttlMs: ttlMs === 0 ? null : ttlMs,
    expiresAt: parseExpiry(properties[FIELD_INDEX.absoluteExpiryTime]),
    to: addressIn(properties[FIELD_INDEX.to]),
    groups: parseGroups(GROUPS_PROPERTY, directives.groups),
  };
}

/** Values of annotations and application properties that have a meaning; null: not given. */
interface Directives {
  time: string | null;
  delay: string | null;
  groups: string | null;
  nextT: string | null;
  deltaT: string | null;
}

/** The usual types of fields that are not strings. */
const FIELD_TYPES: Readonly<Record<string, SimpleType>> = {
  'absolute-expiry-time': 'timestamp',
  'creation-time': 'timestamp',
  'group-sequence': 'uint',
};

/** Collects element headers, and the spelling and types for {@link TYPES_HEADER}. */
class HeaderDraft {
  readonly #flat: string[] = [];
  readonly #types: string[] = [];

  /** @throws QuaysideError `invalid-header` if the name is taken */
  add(name: string, { type, text }: SimpleValue, defaultType: SimpleType = 'string'): void {
    const lower = name.toLowerCase();
    if (this.#has(lower)) {
      const message = `The message has ${quoteBytes(lower)} twice. Names of headers must differ in more than case.`;
      throw new QuaysideError('invalid-header', message, { parameter: lower });
    }
    this.#flat.push(lower, text);
    if (type !== defaultType) this.#types.push(`${name}=${type}`);
    else if (name !== lower) this.#types.push(name);
  }

  finish(): readonly string[] {
    if (this.#types.length > 0) this.#flat.push(TYPES_HEADER, this.#types.join(', '));
    return this.#flat;
  }

  /** A linear search, since most messages have few headers or none. */
  #has(lower: string): boolean {
    for (let at = 0; at < this.#flat.length; at += 2) if (this.#flat[at] === lower) return true;
    return false;
  }
}

function addAnnotations({ annotations }: Message, draft: HeaderDraft, directives: Directives): void {
  for (const { name, value } of annotations) {
    if (name === DELIVERY_TIME_ANNOTATION) directives.time = textOrNull(value);
    else if (name === DELIVERY_DELAY_ANNOTATION) directives.delay = textOrNull(value);
    else if (!SENT_ANNOTATIONS.has(name)) draft.add(ANNOTATION_PREFIX + name, value);
  }
}

function addFields({ properties }: Message, draft: HeaderDraft): void {
  for (let at = 0; at < properties.length; at++) {
    const value = properties[at] ?? null;
    const field = PROPERTY_FIELDS[at] ?? '';
    if (value === null || !HEADER_FIELDS.has(field)) continue;
    draft.add(field, field === 'user-id' ? readUserId(value) : value, FIELD_TYPES[field]);
  }
}

function addApplicationProperties(
  { applicationProperties }: Message,
  draft: HeaderDraft,
  directives: Directives,
): void {
  for (const { name, value } of applicationProperties) {
    if (name === GROUPS_PROPERTY) directives.groups = textOrNull(value);
    else if (name === NEXT_T_PROPERTY) directives.nextT = textOrNull(value);
    else if (name === DELTA_T_PROPERTY) directives.deltaT = textOrNull(value);
    else draft.add(isReserved(name) ? PROPERTY_PREFIX + name : name, value);
  }
}

/** The text of a value; null for an AMQP null, which clients send for a value that is not set. */
function textOrNull({ type, text }: SimpleValue): string | null {
  return type === 'null' ? null : text;
}

function isReserved(name: NamedValue['name']): boolean {
  const lower = name.toLowerCase();
  return HEADER_FIELDS.has(lower) || lower.startsWith(AMQP_PREFIX);
}

function parseTries(deliveryCount: number): number {
  return parseInteger('delivery-count', String(deliveryCount), { to: LIMITS.tries, unit: 'a count' }, 0);
}

function parseExpiry(value: SimpleValue | null | undefined): number | null {
  const at = value?.type === 'timestamp' ? Number(value.text) : 0;
  return at === 0 || at > LIMITS.matureAt ? null : Math.max(0, at);
}

function addressIn(value: SimpleValue | null | undefined): string | null {
  return value?.type === 'string' ? decodeText('to', value.text) : null;
}

const PRINTABLE = /^[!-~](?:[ -~]*[!-~])?$/;

/** Stores a binary `user-id` as text if its bytes are printable ASCII. */
function readUserId(value: SimpleValue): SimpleValue {
  if (value.type !== 'binary') return value;
  const text = Buffer.from(value.text, 'base64').toString('latin1');
  return PRINTABLE.test(text) ? { type: 'string', text } : value;
}

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
  /** Whether there is a header of `WITHOUT_EXPIRY`. */
  readonly neverExpires: boolean;
}

const NO_HEADERS: SortedHeaders = {
  annotations: [],
  fields: [],
  properties: [],
  form: null,
  neverExpires: false,
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
  const start = writer.begin(0x70, 'list');
  // `durable`, since elements are stored until they are consumed.
  writer.boolean(true);
  if (tries === 0) writer.end(start, 1);
  else {
    for (let field = 1; field < 4; field++) writer.null();
    writer.uint(tries);
    writer.end(start, 5);
  }
}

function writeAnnotations(
  { id, matureAt }: Delivery,
  group: string | null,
  more: readonly SentHeader[],
): void {
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

/** Writes the properties section. Returns the values that are not valid for their fields; null if there are none. */
function writeProperties(
  { contentType, contentEncoding }: Delivery,
  { fields, neverExpires }: SortedHeaders,
): SentHeader[] | null {
  let invalidFields: SentHeader[] | null = null;
  let count = fields.length;
  if (contentType !== null) count = Math.max(count, FIELD_INDEX.contentType + 1);
  if (contentEncoding !== null) count = Math.max(count, FIELD_INDEX.contentEncoding + 1);
  const start = writer.begin(0x73, 'list');
  for (let at = 0; at < count; at++) {
    const sent = fields[at];
    let text = sent?.text ?? null;
    if (at === FIELD_INDEX.contentType) text = contentType;
    else if (at === FIELD_INDEX.contentEncoding) text = contentEncoding;
    // An element that never expires may have the expiry of its original, and clients would discard it as expired.
    const isPast = neverExpires && at === FIELD_INDEX.absoluteExpiryTime;
    if (text !== null && !isPast && writeField(at, sent?.type ?? 'string', text)) continue;
    writer.null();
    const name = PROPERTY_FIELDS[at] ?? '';
    if (text !== null) invalidFields = [...(invalidFields ?? []), { name, text, type: 'string' }];
  }
  writer.end(start, count);
  return invalidFields;
}

/** Values that are not valid for their fields become application properties of the same names. */
function writeApplicationProperties(
  properties: readonly SentHeader[],
  invalidFields: readonly SentHeader[] | null,
): void {
  const start = writer.begin(0x74, 'map');
  let count = properties.length;
  for (const sent of properties) writeProperty(sent);
  for (const sent of invalidFields ?? []) {
    if (hasName(properties, sent.name)) continue;
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
      writer.section(0x77);
      writer.null();
      return null;
    }
    if (form === 'value' && valueEnd(bytes, 0) === bytes.length) {
      writer.section(0x77);
      return bytes;
    }
    const lists = form === 'sequence' ? splitLists(bytes, MAX_SECTIONS) : null;
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

function sortHeaders(headers: readonly string[]): SortedHeaders {
  const annotations: SentHeader[] = [];
  const fields: (SentHeader | undefined)[] = [];
  const properties: SentHeader[] = [];
  let form: string | null = null;
  const types = parseTypes(headers);
  let neverExpires = false;
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const header = headers[i] as string;
    const text = headers[i + 1] as string;
    if (header === BODY_HEADER) form = text;
    if (WITHOUT_EXPIRY.has(header)) neverExpires = true;
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
  return { annotations, fields, properties, form, neverExpires };
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
