import { QuaysideError } from '../../model/errors.ts';
import { LIMITS } from '../../model/limits.ts';
import { CODE } from '../core/codes.ts';
import { broken, type SimpleValue, ValueReader } from '../core/reader.ts';
import { listsIn, valueEnd } from './encoded.ts';

/** The fields of the properties section, in their order (messaging, 3.2.4). */
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

/** The places of some of them. */
export const FIELD_AT = {
  to: placeOf('to'),
  contentType: placeOf('content-type'),
  contentEncoding: placeOf('content-encoding'),
  absoluteExpiryTime: placeOf('absolute-expiry-time'),
} as const;

function placeOf(field: PropertyField): number {
  return PROPERTY_FIELDS.indexOf(field);
}

/**
 * What the body was written as. An element has bytes only, so what is not `data` is kept in a header. Of `value` (an
 * `amqp-value` of any other type) and `sequence` (the lists of `amqp-sequence` sections) the bytes are the encoding.
 */
type BodyForm = 'data' | 'string' | 'binary' | 'null' | 'value' | 'sequence';

/** A named value of a map, in the order of the message; names are bytes. */
export interface NamedValue {
  readonly name: string;
  readonly value: SimpleValue;
}

/** A message, taken apart as far as an element has room for it. */
export interface Message {
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

/** Null, or not there: the field was not given. */
type PropertyFields = readonly (SimpleValue | null)[];

/** Sections by their descriptors' symbols. */
const BY_SYMBOL: Readonly<Record<string, number>> = {
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

/** Fields of the header section (messaging, 3.2.1). */
const TTL_AT = 2;
const DELIVERY_COUNT_AT = 4;
/** More sections than any client writes. */
export const MAX_SECTIONS = 4096;
/** Values of a map that are read: those that can be element headers, and a few that are not kept. */
const MAX_NAMES = LIMITS.headerCount + 16;

/**
 * Reads a message of format 0 (messaging, 3.2). Data sections are joined, and so are the lists of sequences.
 * @throws QuaysideError `malformed-request`; `not-supported` for compound values outside of the body
 */
export function readMessage(bytes: Buffer): Message {
  const reader = new ValueReader(bytes);
  const draft: Draft = {
    form: 'data',
    body: EMPTY,
    hasBody: false,
    parts: null,
    ttlMs: null,
    deliveryCount: 0,
    annotations: NONE,
    properties: NONE,
    applicationProperties: NONE,
  };
  for (let sections = 0; !reader.isAtEnd; sections++) {
    if (sections >= MAX_SECTIONS) throw broken('it has too many sections');
    readSection(reader, draft);
  }
  if (draft.parts !== null) draft.body = Buffer.concat(draft.parts);
  return draft;
}

/** A message of which some sections were read. */
type Draft = { -readonly [K in keyof Message]: Message[K] } & {
  hasBody: boolean;
  /** Of the body, if it has several: data, or the encoded lists of sequences. */
  parts: Buffer[] | null;
};

const NONE: readonly never[] = [];
const EMPTY = Buffer.alloc(0);

function readSection(reader: ValueReader, draft: Draft): void {
  const descriptor = reader.descriptor();
  const code = typeof descriptor === 'number' ? descriptor : BY_SYMBOL[descriptor];
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
      if (data?.form !== 'binary') throw broken('a data section is not binary');
      addBody(draft, 'data', data.body);
      return;
    }
    case 0x76: {
      const list = reader.encoded(valueEnd);
      if (listsIn(list, 1) === null) throw broken('a sequence is not a list');
      addBody(draft, 'sequence', list);
      return;
    }
    case 0x77:
      readValue(reader, draft);
      return;
    case 0x71:
    case 0x78:
      // Meant for this hop, and about the bytes of this encoding: neither is the element's.
      reader.simpleOrNull();
      return;
    default:
      throw broken('a section is unknown');
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
  } else throw broken('it has two bodies');
}

function readHeader(reader: ValueReader, draft: Draft): void {
  const count = reader.open('list');
  if (count === null) return;
  for (let at = 0; at < count; at++) {
    const value = reader.simple();
    if (value.type !== 'uint') continue;
    if (at === TTL_AT) draft.ttlMs = Number(value.text);
    else if (at === DELIVERY_COUNT_AT) draft.deliveryCount = Number(value.text);
  }
  reader.close();
}

function readProperties(reader: ValueReader): PropertyFields {
  const count = reader.open('list');
  if (count === null) return NONE;
  if (count > PROPERTY_FIELDS.length) throw broken('its properties have too many fields');
  const properties: (SimpleValue | null)[] = [];
  for (let at = 0; at < count; at++) {
    const value = reader.simple();
    properties.push(value.type === 'null' ? null : value);
  }
  reader.close();
  return properties;
}

/** Pairs of a map; names of application properties are strings, those of annotations symbols. */
function readMap(reader: ValueReader, names: 'string' | 'symbol'): NamedValue[] {
  const count = reader.open('map');
  if (count === null) return [];
  if (count % 2 !== 0) throw broken('a map has a name without a value');
  if (count > 2 * MAX_NAMES) throw tooManyNames(count / 2);
  const values: NamedValue[] = [];
  for (let at = 0; at < count; at += 2) {
    const name = reader.simple();
    if (name.type !== names) throw broken(`a name is no ${names}`);
    values.push({ name: name.text, value: reader.simple() });
  }
  reader.close();
  return values;
}

function tooManyNames(count: number): QuaysideError {
  const message = `A map of the message has ${count} values. Allowed: ${LIMITS.headerCount} element headers, and at most ${MAX_NAMES} values.`;
  return new QuaysideError('invalid-header', message);
}

function readValue(reader: ValueReader, draft: Draft): void {
  const simple = reader.bytesOrNull();
  if (simple !== null) {
    addBody(draft, simple.form, simple.body);
    return;
  }
  const value = reader.encoded(valueEnd);
  if (value[0] === CODE.null) addBody(draft, 'null', EMPTY);
  else addBody(draft, 'value', value);
}
