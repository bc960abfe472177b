import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { decodeText, parseGroups, parseInteger, parseMilliseconds, parseMoment } from '../session/values.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { CODE } from './core/codes.ts';
import {
  ANNOTATION_PREFIX,
  BODY_HEADER,
  type BodyForm,
  DELIVERY_DELAY_ANNOTATION,
  DELIVERY_TIME_ANNOTATION,
  DELTA_T_PROPERTY,
  GROUPS_PROPERTY,
  isReserved,
  MAX_SECTIONS,
  NEXT_T_PROPERTY,
  PROPERTY_FIELDS,
  PROPERTY_PREFIX,
  SECTION,
  SENT_ANNOTATIONS,
  TYPES_HEADER,
} from './message-names.ts';
import { isList, malformedMessage, type SimpleType, type SimpleValue, ValueReader } from './values.ts';

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
 * Converts an encoded message of format 0 to an element (docs/protocols/amqp.md, "Messages").
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
const HEADER_FIELDS = 5;
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

const EMPTY = Buffer.alloc(0);

/** Reads the sections of a message, and collects what an element stores of them. */
class ReceivedMessage {
  /** The sections before the body that were read, one bit each. */
  #seen = 0;
  /** Null if no part of the body was read. */
  #form: BodyForm | null = null;
  #body: Buffer = EMPTY;
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
      headers: checkHeaders(this.#headers),
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
    if (count > HEADER_FIELDS) throw malformedMessage('its header has too many fields');
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
      const value = reader.simple();
      if (name === DELIVERY_TIME_ANNOTATION) this.#deliveryTime = textOrNull(value);
      else if (name === DELIVERY_DELAY_ANNOTATION) this.#deliveryDelay = textOrNull(value);
      else if (!SENT_ANNOTATIONS.has(name)) this.#addHeader(ANNOTATION_PREFIX + name, value);
    }
    reader.close();
  }

  #readProperties(reader: ValueReader): void {
    const count = reader.open('list');
    if (count === null) return;
    if (count > PROPERTY_FIELDS.length) throw malformedMessage('its properties have too many fields');
    for (let at = 0; at < count; at++) {
      const value = reader.simple();
      if (value.type !== 'null') this.#addField(PROPERTY_FIELDS[at] ?? '', value);
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
      const value = reader.simple();
      if (name === GROUPS_PROPERTY) this.#groups = textOrNull(value);
      else if (name === NEXT_T_PROPERTY) this.#nextT = textOrNull(value);
      else if (name === DELTA_T_PROPERTY) this.#deltaT = textOrNull(value);
      else this.#addHeader(isReserved(name) ? PROPERTY_PREFIX + name : name, value);
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
    if (value[0] === CODE.null) this.#addBody('null', EMPTY);
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
      const message = `The message has ${quoteBytes(lower)} twice. Names of headers must differ in more than case.`;
      throw new QuaysideError('invalid-header', message, { parameter: lower });
    }
    this.#headers.push(lower, text);
    if (type !== defaultType) this.#types.push(`${name}=${type}`);
    else if (name !== lower) this.#types.push(name);
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
