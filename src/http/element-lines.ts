import { isUtf8 } from 'node:buffer';
import {
  type Delivery,
  type ElementContent,
  type ElementHeaders,
  type GroupName,
  NO_HEADERS,
} from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkContentHeader, checkHeaders, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { LIMITS } from '../model/limits.ts';
import { type Members, memberPath, membersOf, wrongMember } from '../model/members.ts';
import { checkGroup } from '../model/names.ts';
import type { ExportedElement, ScannedDelivery } from '../operations/transfer.ts';
import { payloadName } from '../sandbox/sandbox.ts';
import { bytesOfText, textOfBytes } from '../util/byte-text.ts';
import { quote } from '../util/quote.ts';
import { MAX_KEY_LENGTH } from './head.ts';
import type { GivenElement } from './sent-elements.ts';

// Elements as lines of JSON: what an insert of many reads, what a take of many returns, and the lines of an export, which an
// import reads.

const BODIES = ['json', 'text', 'base64'] as const;
const MEMBERS = [
  ...BODIES,
  'contentType',
  'contentEncoding',
  'headers',
  'mature',
  'delay',
  'tries',
  'groups',
  'ttl',
  'key',
];

/** The type of an element whose body is given as JSON, if it names none. */
const JSON_TYPE = 'application/json';
const MAX_SECONDS = LIMITS.delayMs / 1000;

/**
 * An element as a line of NDJSON gives it: `{"json" or "text" or "base64", "contentType", "contentEncoding", "headers", "mature",
 * "delay", "tries", "groups", "ttl", "key"}`. But for `json`, null is as good as not given.
 * @throws QuaysideError `invalid-body`, `invalid-parameter`, `invalid-header`; members are named within the line
 */
export function readLineElement(line: string): GivenElement {
  return elementOfMembers(line, membersOf(objectIn(line), '', MEMBERS));
}

/** The object of a line. @throws QuaysideError `invalid-body` */
function objectIn(line: string): object {
  const value = parse(line);
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  throw new QuaysideError('invalid-body', `It is ${quote(value)}, not a JSON object.`);
}

/**
 * The element of a line whose members are known to be allowed.
 * @throws QuaysideError as `readLineElement`
 */
function elementOfMembers(line: string, members: Members): GivenElement {
  return {
    body: bodyOf(members, line),
    contentType: contentHeader(members, 'contentType') ?? (members.json === undefined ? null : JSON_TYPE),
    contentEncoding: contentHeader(members, 'contentEncoding'),
    headers: headersOf(members.headers ?? null),
    matureAt: momentOf(members.mature ?? null),
    delayMs: secondsOf('delay', members.delay ?? null, 0),
    ttlMs: secondsOf('ttl', members.ttl ?? null, 1),
    tries: triesOf(members.tries ?? null),
    groups: groupsOf(members.groups ?? null),
    key: keyOf(members.key ?? null),
  };
}

function parse(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw new QuaysideError('invalid-body', `It is not JSON: ${quote((error as SyntaxError).message)}.`);
  }
}

function bodyOf(members: Members, line: string): Buffer {
  const { json, text = null, base64 = null } = members;
  const given = (json === undefined ? 0 : 1) + (text === null ? 0 : 1) + (base64 === null ? 0 : 1);
  if (given !== 1) {
    const what = given === 0 ? 'There is no body' : 'There is more than one body';
    throw invalidParameter('json', `${what}. Give one of json, text and base64.`);
  }
  if (json !== undefined) return Buffer.from(memberSource(line, 'json'));
  if (text !== null) {
    // A lone surrogate has no UTF-8 form; storing something else in its place would change the body.
    if (typeof text !== 'string' || !text.isWellFormed()) {
      throw wrongMember('text', text, 'a string of well-formed Unicode');
    }
    return Buffer.from(text);
  }
  if (typeof base64 !== 'string' || base64.length % 4 !== 0 || !BASE64.test(base64)) {
    throw wrongMember(
      'base64',
      base64,
      'a string of base64 with its padding (A to Z, a to z, 0 to 9, +, /, =)',
    );
  }
  return Buffer.from(base64, 'base64');
}

const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;

function contentHeader(members: Members, member: 'contentType' | 'contentEncoding'): string | null {
  const value = members[member] ?? null;
  if (value === null) return null;
  if (typeof value !== 'string') throw wrongMember(member, value, 'a string');
  return checkContentHeader(
    member === 'contentType' ? 'content-type' : 'content-encoding',
    bytesOf(member, value),
  );
}

function headersOf(value: unknown): ElementHeaders {
  if (value === null) return NO_HEADERS;
  const members = Object.entries(membersOf(value, 'headers', null));
  if (members.length > LIMITS.headerCount) {
    throw wrongMember('headers', value, `an object of at most ${LIMITS.headerCount} members`);
  }
  const flat: string[] = [];
  for (const [name, text] of members) {
    const path = memberPath('headers', name);
    if (typeof text !== 'string') throw wrongMember(path, text, 'a string');
    const lower = name.toLowerCase();
    if (lower.startsWith(ELEMENT_HEADER_PREFIX)) {
      throw invalidParameter(
        path,
        `${path} has the prefix ${ELEMENT_HEADER_PREFIX}, which headers have on HTTP alone. Leave it out.`,
      );
    }
    for (let at = 0; at < flat.length; at += 2) {
      if (flat[at] === lower)
        throw invalidParameter(path, `${path} is given twice; letter case does not count.`);
    }
    flat.push(lower, bytesOf(path, text));
  }
  return checkHeaders(flat);
}

/** Text as the bytes of its UTF-8 form, one character for each. */
function bytesOf(path: string, text: string): string {
  if (!text.isWellFormed()) throw wrongMember(path, text, 'well-formed Unicode');
  return bytesOfText(text);
}

function momentOf(value: unknown): number | null {
  if (value === null) return null;
  const ms = typeof value === 'number' ? Math.round(value * 1000) : Number.NaN;
  if (ms >= 0 && ms <= LIMITS.matureAt) return ms;
  if (!(ms > LIMITS.matureAt)) throw wrongMember('mature', value, 'unix time in seconds, a number from 0');
  throw invalidParameter(
    'mature',
    `mature must be unix time in seconds; ${quote(value)} is past the year 5000, so it may be milliseconds.`,
  );
}

/** Seconds as ms. @param fromMs the shortest */
function secondsOf(member: string, value: unknown, fromMs: number): number | null {
  if (value === null) return null;
  const ms = typeof value === 'number' ? Math.round(value * 1000) : Number.NaN;
  if (ms >= fromMs && ms <= LIMITS.delayMs && (value as number) >= 0) return ms;
  throw wrongMember(member, value, `seconds, a number from ${fromMs / 1000} to ${MAX_SECONDS}`);
}

function triesOf(value: unknown): number | null {
  if (
    value === null ||
    (Number.isInteger(value) && (value as number) >= 0 && (value as number) <= LIMITS.tries)
  ) {
    return value as number | null;
  }
  throw wrongMember('tries', value, `a count, a whole number from 0 to ${LIMITS.tries}`);
}

function groupsOf(value: unknown): readonly GroupName[] | null {
  if (value === null) return null;
  if (!Array.isArray(value) || value.length === 0 || value.length > LIMITS.groups) {
    throw wrongMember('groups', value, `an array of 1 to ${LIMITS.groups} names`);
  }
  const groups = new Set<GroupName>();
  for (const [index, name] of value.entries()) {
    const path = `groups[${index}]`;
    if (typeof name !== 'string') throw wrongMember(path, name, 'a string');
    groups.add(checkGroup(path, name.trim()));
  }
  return [...groups];
}

function keyOf(value: unknown): string | null {
  if (value === null) return null;
  if (typeof value === 'string') {
    // As the header of a single insert has it, so that both name the same key.
    const key = bytesOf('key', value);
    if (KEY.test(key)) return key;
  }
  throw wrongMember(
    'key',
    value,
    `a string of 1 to ${MAX_KEY_LENGTH} bytes of UTF-8 without control characters`,
  );
}

const KEY = new RegExp(`^[\\x20-\\x7e\\x80-\\xff]{1,${MAX_KEY_LENGTH}}$`);

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const OPENING = new Set([0x7b, 0x5b]);
const CLOSING = new Set([0x7d, 0x5d]);

/**
 * The text of a member's value as it stands in the text of an object, which is known to be JSON and to have the member: the
 * last one if it has several, as `JSON.parse` has it. So what is stored keeps the digits of its numbers and the order of its members.
 */
function memberSource(object: string, member: string): string {
  let source = '';
  let at = object.indexOf('{') + 1;
  for (;;) {
    const nameAt = object.indexOf('"', at);
    if (nameAt === -1) return source;
    const nameEnd = endOfString(object, nameAt);
    const name = object.slice(nameAt + 1, nameEnd - 1);
    const valueAt = spaceEnd(object, object.indexOf(':', nameEnd) + 1);
    const valueEnd = endOfValue(object, valueAt);
    if (name === member || (name.includes('\\') && JSON.parse(`"${name}"`) === member)) {
      source = object.slice(valueAt, valueEnd);
    }
    at = spaceEnd(object, valueEnd);
    if (object.charCodeAt(at) !== COMMA) return source;
  }
}

/** Behind the white space at a place. */
function spaceEnd(text: string, from: number): number {
  let at = from;
  while (text.charCodeAt(at) <= 0x20) at += 1;
  return at;
}

/** Behind the closing quote of the string whose opening quote is at `from`. */
function endOfString(text: string, from: number): number {
  for (let at = from + 1; ; at += 1) {
    at = text.indexOf('"', at);
    let backslashes = 0;
    while (text.charCodeAt(at - 1 - backslashes) === BACKSLASH) backslashes += 1;
    if (backslashes % 2 === 0) return at + 1;
  }
}

function endOfValue(text: string, from: number): number {
  const first = text.charCodeAt(from);
  if (first === QUOTE) return endOfString(text, from);
  let depth = 0;
  for (let at = from; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at) - 1;
    else if (OPENING.has(code)) depth += 1;
    else if (CLOSING.has(code)) {
      // A number or a word ends with the object around it.
      if (depth === 0) return at;
      depth -= 1;
      if (depth === 0) return at + 1;
    } else if (depth === 0 && (code === COMMA || code <= 0x20)) return at;
  }
  return text.length;
}

/** The media type of lines of JSON. */
export const NDJSON = 'application/x-ndjson';

/** Where an element was, for lines of several queues. */
interface LineSource {
  readonly ns: string;
  readonly queue: string;
}

/**
 * A delivery as one line of NDJSON, its line feed included: `{"ns", "queue", "id", "tries", "mature", "contentType",
 * "contentEncoding", "headers", "json" or "text" or "base64", "lease", "leaseUntil"}`. Moments are ISO 8601; what the element
 * does not have is null. The first two are there if `source` is not null.
 * @param asJson whether bodies of JSON types are values (`json`); one that does not parse is text like any other
 */
export function elementLine(delivery: Delivery, asJson: boolean, source: LineSource | null = null): string {
  const { id, tries, matureAt, contentType, contentEncoding, headers, lease } = delivery;
  const from =
    source === null ? '' : `"ns":${JSON.stringify(source.ns)},"queue":${JSON.stringify(source.queue)},`;
  const end =
    lease === null
      ? '"lease":null,"leaseUntil":null'
      : `"lease":${JSON.stringify(lease.token)},"leaseUntil":"${isoTime(lease.until)}"`;
  return (
    `{${from}"id":${JSON.stringify(id)},"tries":${tries},"mature":"${isoTime(matureAt)}",` +
    `"contentType":${jsonOfBytes(contentType)},"contentEncoding":${jsonOfBytes(contentEncoding)},` +
    `"headers":${jsonOfHeaders(headers)},${bodyMember(delivery, asJson)},${end}}\n`
  );
}

/**
 * A body as the member of a JSON object: `"json":…` if that is wanted and the content type says so, `"text":"…"` if its bytes
 * are UTF-8, else `"base64":"…"`. Never has a line feed.
 */
export function bodyMember(content: ElementContent, asJson: boolean): string {
  const { body, contentType, contentEncoding } = content;
  const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  if (!isUtf8(bytes)) return `"base64":"${bytes.toString('base64')}"`;
  const text = bytes.toString('utf8');
  if (asJson && payloadName(contentType, contentEncoding) === 'json' && isJson(text)) {
    // The text itself, not what it was parsed to: numbers keep their digits, objects their repeated names. In JSON text
    // the ends of lines can only stand between tokens.
    return `"json":${text.replace(LINE_ENDS, ' ')}`;
  }
  return `"text":${JSON.stringify(text)}`;
}

/** Element headers as a JSON object. Bytes that are not UTF-8 are taken for ISO 8859-1, as on STOMP and AMQP. */
export function jsonOfHeaders(headers: ElementHeaders): string {
  if (headers.length === 0) return '{}';
  let json = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    json += `${at === 0 ? '{' : ','}${JSON.stringify(headers[at])}:${jsonOfBytes(headers[at + 1] as string)}`;
  }
  return `${json}}`;
}

/** A stored value as JSON: a string, or null. */
export function jsonOfBytes(value: string | null): string {
  return value === null ? 'null' : JSON.stringify(textOfBytes(value) ?? value);
}

const LINE_ENDS = /[\r\n]+/g;

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

let lastAt = Number.NaN;
let lastTime = '';
let earlierAt = Number.NaN;
let earlierTime = '';

/** Elements that were inserted and reserved together have the same two moments. */
export function isoTime(at: number): string {
  if (at === earlierAt) return earlierTime;
  if (at !== lastAt) {
    [earlierAt, earlierTime] = [lastAt, lastTime];
    lastAt = at;
    lastTime = new Date(at).toISOString();
  }
  return lastTime;
}

/**
 * A delivery with its whole state as one line of an export, its line feed included: `{"id", "state", "group", "mature", "expiresAt",
 * "insertedAt", "tries", "reason", "contentType", "contentEncoding", "headers", "text" or "base64"}`. `mature` is in seconds as on an
 * insert, the other moments are ISO 8601. `group` is there on a stream only. What the element does not have is null.
 */
export function exportedLine(delivery: ScannedDelivery, isStream: boolean): string {
  const { id, state, group, matureAt, expiresAt, insertedAt, tries, reason } = delivery;
  const { contentType, contentEncoding, headers } = delivery;
  return (
    `{"id":"${id}","state":"${state}",${isStream ? `"group":${JSON.stringify(group)},` : ''}"mature":${matureAt / 1000},` +
    `"expiresAt":${expiresAt === null ? 'null' : `"${isoTime(expiresAt)}"`},"insertedAt":"${isoTime(insertedAt)}","tries":${tries},` +
    `"reason":${JSON.stringify(reason)},"contentType":${jsonOfBytes(contentType)},` +
    `"contentEncoding":${jsonOfBytes(contentEncoding)},"headers":${jsonOfHeaders(headers)},${bodyMember(delivery, false)}}\n`
  );
}

const EXPORTED_MEMBERS = [
  'id',
  'state',
  'group',
  'mature',
  'expiresAt',
  'insertedAt',
  'tries',
  'reason',
  'contentType',
  'contentEncoding',
  'headers',
  'text',
  'base64',
];

/**
 * Reads a line that {@link exportedLine} wrote. `state` and `reason` are of the past, and not read.
 * @throws QuaysideError `invalid-body`, `invalid-parameter`, `invalid-header`; members are named within the line
 */
export function readExportedLine(line: string): ExportedElement {
  const members = membersOf(objectIn(line), '', EXPORTED_MEMBERS);
  const { body, contentType, contentEncoding, headers, matureAt, tries } = elementOfMembers(line, members);
  const { id, group = null, expiresAt = null } = members;
  if (typeof id !== 'string' || !ID.test(id)) throw wrongMember('id', id, 'the id of an element');
  if (group !== null && typeof group !== 'string') throw wrongMember('group', group, 'a string');
  if (matureAt === null) throw wrongMember('mature', members.mature, 'unix time in seconds, a number');
  return {
    id,
    group: group === null ? null : checkGroup('group', group),
    body,
    contentType,
    contentEncoding,
    headers,
    matureAt,
    tries: tries ?? 0,
    insertedAt: isoMoment('insertedAt', members.insertedAt),
    expiresAt: expiresAt === null ? null : isoMoment('expiresAt', expiresAt),
  };
}

const ID = /^[\w-]{1,64}$/;

function isoMoment(member: string, value: unknown): number {
  const at = typeof value === 'string' ? Date.parse(value) : Number.NaN;
  if (at >= 0 && at <= LIMITS.matureAt) return at;
  throw wrongMember(member, value, 'a moment such as "2026-01-31T12:00:00.000Z"');
}
