import { isAscii, isUtf8 } from 'node:buffer';
import { setImmediate as turn } from 'node:timers/promises';
import { DELIVERY_STATES, type ElementContent, type GroupName } from '../model/element.ts';
import { bodyTooLarge, invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkHeaders, ELEMENT_HEADER_PREFIX } from '../model/headers.ts';
import { contentHeaderAt, headersAt } from '../model/json-headers.ts';
import { LIMITS } from '../model/limits.ts';
import { memberPath, parse, WellFormed, wrongMember } from '../model/members.ts';
import { checkGroups, Group } from '../model/names.ts';
import { STRICT } from '../model/records.ts';
import { SERVICE_HEADERS } from '../model/service-headers.ts';
import type { ExportedElement } from '../operations/transfer.ts';
import { BytePieces } from '../util/byte-pieces.ts';
import { quoteBytes, toByteString } from '../util/byte-string.ts';
import { toMs } from '../util/clock.ts';
import { isRecord } from '../util/is-record.ts';
import {
  endOfString,
  FEW_VALUES,
  isParsedFast,
  JsonScanner,
  SCAN_STEP,
  unescaped,
} from '../util/json-scanner.ts';
import { quote } from '../util/quote.ts';
import {
  allowing,
  inUnit,
  Moment,
  namedObject,
  optional,
  refined,
  type Schema,
  type Static,
  Type,
} from '../util/schema.ts';
import type { HttpCall } from './call.ts';
import { idempotencyKeyOf, MAX_KEY_LENGTH, type RequestHead, readHead } from './head.ts';
import { duration, UnixTime } from './parameters.ts';
import { bodyTooLong } from './request.ts';
import { MULTIPART, NDJSON } from './written-elements.ts';

// Parsers of bodies with many elements: JSON lines or `multipart/mixed` parts of an insert of many, and the lines of an
// export.

/** An element, and the number of its line or part in the body, from 1. */
interface NumberedElement {
  readonly number: number;
  readonly element: GivenElement;
  /** Length of the line or part, headers included. */
  readonly length: number;
}

/** The elements of a body. */
export interface SentElements {
  readonly place: LineOrPart;
  /**
   * Reads one element after the other. Throws the error of the next one, with its line or part number. Null: the next
   * one takes long, and other requests should be served before the iteration continues.
   */
  readonly elements: Iterable<NumberedElement | null>;
}

/**
 * The parser for the body of an insert of many, by its content type. Rejects headers of the request that describe a
 * single element: they would have no effect.
 * @param bodyLimit of one element
 * @throws QuaysideError `invalid-header`
 */
export function elementsReader(head: RequestHead, bodyLimit: number): (body: Buffer) => SentElements {
  const { contentType, contentEncoding, elementHeaders } = head;
  const type = contentType?.split(';', 1)[0]?.trim().toLowerCase() ?? null;
  if (contentType === null || (type !== NDJSON && type !== MULTIPART)) {
    throw wrongMember('content-type', contentType ?? undefined, `${NDJSON} or ${MULTIPART}`).with({
      code: 'invalid-header',
    });
  }
  if (contentEncoding !== null && contentEncoding.toLowerCase() !== 'identity') {
    const what = `Content-Encoding ${quote(contentEncoding)} is not supported here`;
    throw invalidHeader('content-encoding', `${what}; each element names its own.`);
  }
  if (elementHeaders.length > 0) {
    const where = 'Give each its own: headers in a line, x-ks-hdr-* in a part.';
    throw invalidHeader(
      'x-ks-hdr-*',
      `Header ${quote(ELEMENT_HEADER_PREFIX + elementHeaders[0])} of the request belongs to no element. ${where}`,
    );
  }
  if (type === NDJSON) return (body) => ({ place: 'line', elements: readLines(body, bodyLimit) });
  const boundary = boundaryOf(contentType);
  return (body) => ({ place: 'part', elements: readSentParts(body, boundary, bodyLimit) });
}

function* readLines(body: Buffer, bodyLimit: number): Generator<NumberedElement | null, void, undefined> {
  for (const { number, line } of bodyLines(body, bodyLimit)) {
    let element: GivenElement;
    try {
      const object = isParsedFast(line) ? parseLine(line) : yield* parseCostly(line, ElementLine);
      element = checkBodySize(readLineElement(object), bodyLimit);
    } catch (error) {
      throw errorIn('line', number, error);
    }
    yield { number, element, length: line.length };
  }
}

function* readSentParts(
  body: Buffer,
  boundary: string,
  bodyLimit: number,
): Generator<NumberedElement, void, undefined> {
  const parts = readParts(body, boundary);
  for (let number = 1; ; number += 1) {
    const next = readAt('part', number, () => parts.next());
    if (next.done === true) return;
    const part = next.value;
    const element = readAt('part', number, () => checkBodySize(elementOfPart(part), bodyLimit));
    yield { number, element, length: part.length };
  }
}

/** Encodings that leave the bytes unchanged (RFC 2045). */
const NO_CODING: ReadonlySet<string> = new Set(['7bit', '8bit', 'binary']);

/** Reads a part like the request of a single insert: its headers are those of the element. */
function elementOfPart({ headers, content }: BodyPart): GivenElement {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const value = headers[at + 1] as string;
    switch (headers[at]?.toLowerCase()) {
      case 'content-transfer-encoding':
        if (NO_CODING.has(value.toLowerCase())) continue;
        throw invalidHeader(
          'content-transfer-encoding',
          `Content-Transfer-Encoding ${quote(value)} is not supported: a part is the body byte for byte. Give binary, or leave it out.`,
        );
      case 'content-length':
        if (value === String(content.length)) continue;
        throw invalidHeader(
          'content-length',
          `Content-Length is ${quote(value)}, and the part has ${content.length} bytes. Give that number, or leave it out.`,
        );
    }
  }
  return elementOf(readHead(headers, true), content);
}

/** The element that the headers of a request or a part describe. @throws QuaysideError `invalid-header` */
export function elementOf(head: RequestHead, body: Buffer): GivenElement {
  return {
    body,
    contentType: head.contentType,
    contentEncoding: head.contentEncoding,
    headers: checkHeaders(head.elementHeaders, { spell: (name) => ELEMENT_HEADER_PREFIX + name }),
    matureAt: null,
    delayMs: null,
    ttlMs: null,
    tries: null,
    groups: null,
    key: idempotencyKeyOf(head),
  };
}

/** @throws QuaysideError `body-too-large` */
function checkBodySize<E extends ElementContent>(element: E, limit: number): E {
  const { byteLength } = element.body;
  if (byteLength <= limit) return element;
  throw bodyTooLong(byteLength, limit);
}

function invalidHeader(parameter: string, message: string): QuaysideError {
  return new QuaysideError('invalid-header', message, { parameter });
}

/** A line of a body, without its line end. The first one has number 1. */
interface BodyLine {
  readonly number: number;
  readonly line: string;
}

const LINE_FEED = 0x0a;

function isWhiteSpace(byte: number | undefined): boolean {
  return byte === LINE_FEED || byte === SPACE || byte === CR || byte === TAB;
}

/** Bytes of a line in addition to twice the largest body: base64 takes four characters for three bytes. */
const LINE_OVERHEAD_BYTES = 65_536;

const LINE_END = Buffer.from('\n');

/**
 * The lines of a whole body. Blank lines are skipped, but counted.
 * @throws QuaysideError `invalid-body` for a line that is not UTF-8, `body-too-large` for one that is longer than any
 * element of at most `bodyLimit` bytes needs
 */
function* bodyLines(body: Buffer, bodyLimit: number): Generator<BodyLine, void, undefined> {
  const splitter = new LineSplitter(bodyLimit);
  yield* splitter.push(body);
  yield* splitter.push(LINE_END);
}

/**
 * The lines of a body of any length, as they arrive; the client is paused while one is processed. Ends early if the
 * client disconnects (then `complete` of the request is false). Otherwise like {@link bodyLines}.
 * @throws QuaysideError `request-timeout` if nothing arrives for `requestTimeoutMs`
 */
export async function* incomingLines({
  front,
  request,
  response,
  head,
}: HttpCall): AsyncGenerator<BodyLine, void, undefined> {
  const { clock, options } = front.parts;
  if (head.expect !== null && request.httpVersionMinor > 0) response.writeContinue();
  const splitter = new LineSplitter(options.bodyLimit);
  for await (const chunk of request.chunks(clock, options.requestTimeoutMs)) yield* splitter.push(chunk);
  if (request.complete) yield* splitter.push(LINE_END);
}

/** Splits the chunks of a body into lines. */
class LineSplitter {
  readonly #bodyLimit: number;
  readonly #maxBytes: number;
  /** Number of lines that have ended. */
  #count = 0;
  /** The bytes of the line that has not ended yet. */
  readonly #partialLine = new BytePieces();

  /** @param bodyLimit of an element */
  constructor(bodyLimit: number) {
    this.#bodyLimit = bodyLimit;
    this.#maxBytes = 2 * bodyLimit + LINE_OVERHEAD_BYTES;
  }

  /** The lines that end in this chunk. */
  *push(chunk: Buffer): Generator<BodyLine, void, undefined> {
    // Checking a whole chunk costs a fraction of checking each line.
    const encoding = isAscii(chunk) ? 'latin1' : 'utf8';
    const isValidUtf8 = encoding === 'latin1' || isUtf8(chunk);
    let from = this.#partialLine.length > 0 ? 0 : this.#skipBlank(chunk, 0);
    for (let end = chunk.indexOf(LINE_FEED, from); end !== -1; end = chunk.indexOf(LINE_FEED, from)) {
      const line =
        this.#partialLine.length > 0
          ? this.#decode(this.#wholeLine(chunk.subarray(from, end)), 'utf8', false)
          : this.#decode(chunk, encoding, isValidUtf8, from, end);
      this.#count += 1;
      yield { number: this.#count, line };
      from = this.#skipBlank(chunk, end + 1);
    }
    if (from < chunk.length) this.#keepPartial(chunk.subarray(from));
  }

  /**
   * Index behind the blank lines and the white space at `from`. A body may have millions of empty lines: making a
   * string of each would block other requests for seconds.
   */
  #skipBlank(chunk: Buffer, from: number): number {
    let at = from;
    for (; at < chunk.length && isWhiteSpace(chunk[at]); at += 1) {
      if (chunk[at] === LINE_FEED) this.#count += 1;
    }
    return at;
  }

  #keepPartial(bytes: Buffer): void {
    this.#partialLine.append(bytes);
    if (this.#partialLine.length > this.#maxBytes) throw this.#tooLong(this.#partialLine.length);
  }

  /** @param lastBytes the bytes of the line in the current chunk */
  #wholeLine(lastBytes: Buffer): Buffer {
    this.#partialLine.append(lastBytes);
    return this.#partialLine.take();
  }

  /** Decodes one line. @param isValidUtf8 whether the bytes are known to be UTF-8 */
  #decode(
    bytes: Buffer,
    encoding: 'latin1' | 'utf8',
    isValidUtf8: boolean,
    from = 0,
    end = bytes.length,
  ): string {
    if (end - from > this.#maxBytes) throw this.#tooLong(end - from);
    if (!isValidUtf8 && !isUtf8(bytes.subarray(from, end)))
      throw this.#error(new QuaysideError('invalid-body', 'It is not UTF-8.'));
    return bytes.toString(encoding, from, end);
  }

  #tooLong(bytes: number): unknown {
    const limit = this.#maxBytes;
    const allowed = `At most ${limit} are allowed, for a body of up to ${this.#bodyLimit}.`;
    return this.#error(bodyTooLarge(`The line of the element has ${bytes} bytes or more. ${allowed}`, limit));
  }

  #error(error: QuaysideError): unknown {
    return errorIn('line', this.#count + 1, error);
  }
}

/** The fields of one element that a line or part of an insert of many gives. Null: not given. */
export interface GivenElement extends ElementContent {
  /** A moment, in ms since 1970. */
  readonly matureAt: number | null;
  readonly delayMs: number | null;
  readonly ttlMs: number | null;
  readonly tries: number | null;
  readonly groups: readonly GroupName[] | null;
  /** The idempotency key, as the user gave it. */
  readonly key: string | null;
}

/** What holds one element in a body: a line of JSON, or a part of `multipart/mixed`. */
type LineOrPart = 'line' | 'part';

/** The same error, with the number of the line or part in its message. */
export function errorIn(place: LineOrPart, number: number, thrown: unknown): unknown {
  if (!(thrown instanceof QuaysideError)) return thrown;
  const where = place === 'line' ? 'Line' : 'Part';
  const extra = { ...thrown.details.extra, [place]: number };
  return thrown.with({ message: `${where} ${number}: ${thrown.message}`, extra });
}

/** Calls `read`, and adds the number of the line or part to an error that it throws. */
export function readAt<T>(place: LineOrPart, number: number, read: () => T): T {
  try {
    return read();
  } catch (error) {
    throw errorIn(place, number, error);
  }
}

const EXPORTED_BODIES = ['text', 'base64'] as const;
const BODIES = ['json', ...EXPORTED_BODIES] as const;

/** Default content type of an element whose body is given as `json`. */
const JSON_TYPE = 'application/json';
const BASE64 = /^[A-Za-z0-9+/]*={0,2}$/;
const KEY = new RegExp(`^[\\x20-\\x7e\\x80-\\xff]{1,${MAX_KEY_LENGTH}}$`);
/** Groups that a line may name, repetitions included: each is checked. */
const MAX_GIVEN_GROUPS = 16 * LIMITS.groups;
const ELEMENT_ID = /^[\w-]{1,64}$/;

const Tries = inUnit('a count', Type.Integer({ minimum: 0, maximum: LIMITS.tries }));

const IsoTime = refined(Moment, {
  allowed: 'a moment such as "2026-01-31T12:00:00.000Z"',
  fits: (text) => Date.parse(text) >= 0 && Date.parse(text) <= LIMITS.matureAt,
});

/** The members of lines with elements. */
const contentMembers = {
  text: optional(
    allowing('a string of well-formed Unicode', {
      ...WellFormed,
      description: 'The body: this text in UTF-8.',
    }),
  ),
  base64: optional(
    refined(Type.String({ description: 'The body: any bytes.' }), {
      allowed: 'a string of base64 with its padding (A to Z, a to z, 0 to 9, +, /, =)',
      fits: (text) => text.length % 4 === 0 && BASE64.test(text),
    }),
  ),
  contentEncoding: optional(WellFormed),
  tries: optional(Tries),
};

/** @param max of one element */
function headersMember(max: number) {
  const description = 'Element headers, without a prefix.';
  return optional(Type.Record(WellFormed, { maxProperties: max, description }));
}

/** A line of an insert of many. Null means not given, except for `json`. */
export const ElementLine = namedObject(
  'ElementLine',
  {
    json: Type.Optional(
      Type.Unknown({ description: 'The body: this JSON text, exactly as written in the line.' }),
    ),
    ...contentMembers,
    contentType: optional({
      ...WellFormed,
      description: 'With `json`, defaults to `application/json`.',
    }),
    headers: headersMember(LIMITS.headerCount),
    mature: optional(UnixTime),
    delay: optional(duration(0)),
    groups: optional(
      allowing(
        `an array of 1 to ${LIMITS.groups} names`,
        Type.Array(Group, {
          minItems: 1,
          maxItems: MAX_GIVEN_GROUPS,
          description: `At most ${LIMITS.groups} different ones.`,
        }),
      ),
    ),
    ttl: optional(duration(1)),
    key: optional(
      refined(Type.String({ minLength: 1, maxLength: MAX_KEY_LENGTH, description: 'The idempotency key.' }), {
        allowed: `a string of 1 to ${MAX_KEY_LENGTH} bytes of UTF-8 without control characters`,
        // In the form of a single insert's header, so that both name the same key.
        fits: (text) => text.isWellFormed() && KEY.test(toByteString(text)),
      }),
    ),
  },
  { ...STRICT, description: 'One line. The body is one of `json`, `text` and `base64`.' },
);

/**
 * A line of an export, which has all members that apply. An import also accepts lines without some, and does not use
 * `state` and `reason`, which describe the past.
 */
export const ExportLine = namedObject(
  'ExportedElement',
  {
    id: refined(Type.String(), { allowed: 'the id of an element', fits: (id) => ELEMENT_ID.test(id) }),
    state: optional(Type.Enum([...DELIVERY_STATES])),
    group: optional({ ...Group, description: 'On a stream: the group of the delivery.' }),
    mature: UnixTime,
    expiresAt: optional(IsoTime),
    insertedAt: IsoTime,
    reason: optional(Type.String()),
    ...contentMembers,
    contentType: optional(WellFormed),
    headers: headersMember(LIMITS.headerCount + SERVICE_HEADERS.size),
  },
  { ...STRICT, description: 'One line.' },
);

/** @throws QuaysideError `invalid-body`, `invalid-parameter`, `invalid-header`; members are named within the line */
function readLineElement(line: LineObject): GivenElement {
  const members = parse(ElementLine, line.members);
  const { json, contentType, mature, delay, ttl, groups } = members;
  checkPrefix(members.headers);
  return {
    body: bodyOf(members, line.json, BODIES),
    contentType:
      contentHeaderAt('contentType', 'content-type', contentType) ?? (json === undefined ? null : JSON_TYPE),
    contentEncoding: contentHeaderAt('contentEncoding', 'content-encoding', members.contentEncoding),
    headers: headersAt('headers', members.headers),
    matureAt: mature == null ? null : toMs(mature),
    delayMs: delay == null ? null : toMs(delay),
    ttlMs: ttl == null ? null : toMs(ttl),
    tries: members.tries ?? null,
    groups: groups == null ? null : checkGroups('groups', groups),
    key: members.key == null ? null : toByteString(members.key),
  };
}

/**
 * Reads a line that `exportedLine` wrote. While one that takes long is read, other requests are served.
 * @throws QuaysideError `invalid-body`, `invalid-parameter`, `invalid-header`, `body-too-large`; members are named
 * within the line
 */
export async function readExportedLine(line: string, bodyLimit: number): Promise<ExportedElement> {
  const object = isParsedFast(line) ? parseLine(line) : await inTurns(parseCostly(line, ExportLine));
  const members = parse(ExportLine, object.members);
  const { id, group, expiresAt, contentType, contentEncoding } = members;
  const element = {
    id,
    group: group?.trim() ?? null,
    body: bodyOf(members, '', EXPORTED_BODIES),
    contentType: contentHeaderAt('contentType', 'content-type', contentType),
    contentEncoding: contentHeaderAt('contentEncoding', 'content-encoding', contentEncoding),
    headers: headersAt('headers', members.headers, SERVICE_HEADERS),
    matureAt: toMs(members.mature),
    tries: members.tries ?? 0,
    insertedAt: Date.parse(members.insertedAt),
    expiresAt: expiresAt == null ? null : Date.parse(expiresAt),
  };
  return checkBodySize(element, bodyLimit);
}

/** Completes an iteration; other requests are served after each of its steps. */
async function inTurns<T>(steps: Iterator<null, T>): Promise<T> {
  let step = steps.next();
  for (; step.done !== true; step = steps.next()) await turn();
  return step.value;
}

/** A line that is a JSON object. */
interface LineObject {
  /** Of a line that is costly to parse: 0 in place of the value of `json` and those of unknown members. */
  readonly members: object;
  /**
   * The source text of the value of `json`, the last one if it is repeated, as with `JSON.parse`; '' if there is none.
   * Storing the source keeps the digits of numbers and the order of members.
   */
  readonly json: string;
}

/** @throws QuaysideError `invalid-body` */
function parseLine(line: string): LineObject {
  try {
    const members = objectOf(JSON.parse(line));
    return { members, json: Object.hasOwn(members, 'json') ? memberSource(line, 'json') : '' };
  } catch (error) {
    throw lineError(error);
  }
}

/**
 * Parses a line that has too many values for `JSON.parse`: only what remains of it without the value of `json`, which
 * may have any number of values, and those of members that the schema rejects anyway. Yields after each step.
 * @throws QuaysideError `invalid-body`
 */
function* parseCostly(line: string, { properties = {} }: Schema): Generator<null, LineObject, undefined> {
  const scanner = new JsonScanner(line);
  try {
    if (!scanner.isAtObject()) {
      while (!scanner.value(SCAN_STEP)) yield null;
      scanner.end();
      // Not an object: throws an error that shows an array only as such.
      objectOf(scanner.valueCount > FEW_VALUES ? [0] : JSON.parse(line));
    }
    let [rest, restFrom, valueCount, json] = ['', 0, 0, ''];
    for (let name = scanner.nextMember(); name !== null; name = scanner.nextMember()) {
      const from = scanner.at;
      const countBefore = scanner.valueCount;
      while (!scanner.value(SCAN_STEP)) yield null;
      const member = unescaped(name);
      if (member === 'json') json = line.slice(from, scanner.at);
      if (member !== 'json' && Object.hasOwn(properties, member)) {
        valueCount += scanner.valueCount - countBefore;
      } else {
        rest += `${line.slice(restFrom, from)}0`;
        restFrom = scanner.at;
        valueCount += 1;
      }
      if (valueCount > FEW_VALUES) throw tooManyValues();
    }
    scanner.end();
    return { members: objectOf(JSON.parse(rest + line.slice(restFrom))), json };
  } catch (error) {
    throw lineError(error);
  }
}

function tooManyValues(): QuaysideError {
  const message = `It has more than ${FEW_VALUES} JSON values outside of json. No element needs as many.`;
  return new QuaysideError('invalid-body', message);
}

/** Returns the value of a line, which must be an object. @throws QuaysideError `invalid-body` */
function objectOf(value: unknown): object {
  if (isRecord(value)) return value;
  throw new QuaysideError('invalid-body', `It is ${quote(value)}, not a JSON object.`);
}

function lineError(error: unknown): unknown {
  if (!(error instanceof SyntaxError)) return error;
  return new QuaysideError('invalid-body', `It is not JSON: ${quote(error.message)}.`);
}

/**
 * @param jsonText the source of the value of `json`
 * @param allowed the members that may be the body
 */
function bodyOf({ json, text, base64 }: LineBody, jsonText: string, allowed: readonly string[]): Buffer {
  const given = (json === undefined ? 0 : 1) + (text == null ? 0 : 1) + (base64 == null ? 0 : 1);
  if (given !== 1) {
    const what = given === 0 ? 'There is no body' : 'There is more than one body';
    const listed = `${allowed.slice(0, -1).join(', ')} and ${allowed.at(-1)}`;
    throw invalidParameter(allowed[0] ?? '', `${what}. Give one of ${listed}.`);
  }
  if (text != null) return Buffer.from(text);
  return base64 != null ? Buffer.from(base64, 'base64') : Buffer.from(jsonText);
}

type LineBody = Pick<Static<typeof ElementLine>, 'json' | 'text' | 'base64'>;

/** Rejects headers of a new element that are written as on HTTP. Stored ones may have such a name. */
function checkPrefix(headers: Readonly<Record<string, string>> | null | undefined): void {
  const prefixed = Object.keys(headers ?? {}).find((name) =>
    name.toLowerCase().startsWith(ELEMENT_HEADER_PREFIX),
  );
  if (prefixed === undefined) return;
  const path = memberPath('headers', prefixed);
  throw invalidParameter(
    path,
    `${path} has the prefix ${ELEMENT_HEADER_PREFIX}, which headers have on HTTP alone. Leave it out.`,
  );
}

const QUOTE = 0x22;
const COMMA = 0x2c;
const [OPEN_BRACE, CLOSE_BRACE] = [0x7b, 0x7d];
const [OPEN_BRACKET, CLOSE_BRACKET] = [0x5b, 0x5d];

/**
 * The source text of a member's value in an object, which is known to be JSON and to have the member; the last value if
 * it is repeated, as with `JSON.parse`. Storing the source keeps the digits of numbers and the order of members.
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
    if (unescaped(name) === member) {
      source = object.slice(valueAt, valueEnd);
    }
    at = spaceEnd(object, valueEnd);
    if (object.charCodeAt(at) !== COMMA) return source;
  }
}

/** Index behind the white space at `from`. */
function spaceEnd(text: string, from: number): number {
  let at = from;
  while (text.charCodeAt(at) <= 0x20) at += 1;
  return at;
}

function endOfValue(text: string, from: number): number {
  const first = text.charCodeAt(from);
  if (first === QUOTE) return endOfString(text, from);
  let depth = 0;
  for (let at = from; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = endOfString(text, at) - 1;
    else if (code === OPEN_BRACE || code === OPEN_BRACKET) depth += 1;
    else if (code === CLOSE_BRACE || code === CLOSE_BRACKET) {
      // A number or a literal ends with the object around it.
      if (depth === 0) return at;
      depth -= 1;
      if (depth === 0) return at + 1;
    } else if (depth === 0 && (code === COMMA || code <= 0x20)) return at;
  }
  return text.length;
}

/** The longest boundary (RFC 2046). */
const MAX_BOUNDARY = 70;
/** Maximum size of the headers of one part, in bytes: the same as of a request. */
const MAX_HEAD_BYTES = 16_384;
const CRLF = '\r\n';
const HEAD_END = Buffer.from('\r\n\r\n');
const BOUNDARY = /;\s*boundary\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";,]+))\s*(?:;|$)/i;
/** RFC 2046 `bchars`; the last one must not be a space. */
const BOUNDARY_CHARACTERS = /^[0-9A-Za-z'()+_,\-./:=? ]*[0-9A-Za-z'()+_,\-./:=?]$/;
const HEADER_LINE =
  /^([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[\t ]*((?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?)[\t ]*$/;

/** One part of a body. Headers are flat pairs; each character of a value stands for one byte. */
interface BodyPart {
  readonly headers: readonly string[];
  readonly content: Buffer;
  /** Bytes of both. */
  readonly length: number;
}

/** The boundary that a content type names. @throws QuaysideError `invalid-header` */
function boundaryOf(contentType: string): string {
  const [, quoted, token] = BOUNDARY.exec(contentType) ?? [];
  const boundary = quoted?.replace(/\\(.)/g, '$1') ?? token ?? '';
  if (boundary.length <= MAX_BOUNDARY && BOUNDARY_CHARACTERS.test(boundary)) return boundary;
  const message = `Content-Type ${quote(contentType)} has no boundary of 1 to ${MAX_BOUNDARY} characters (RFC 2046).`;
  throw new QuaysideError('invalid-header', message, { parameter: 'content-type' });
}

/**
 * The parts of a body; their contents are views of it. Skips what precedes the first boundary and what follows the last
 * one (RFC 2046). Lines end with CRLF. A line that only begins with the boundary is an error, because parsers differ
 * about it.
 * @throws QuaysideError `invalid-body` when the iteration reaches the part with the error
 */
function* readParts(body: Buffer, boundary: string): Generator<BodyPart, void, undefined> {
  const delimiter = Buffer.from(`${CRLF}--${boundary}`, 'latin1');
  const opening = delimiter.subarray(2);
  const isFirst = body.subarray(0, opening.length).equals(opening);
  let at = isFirst ? opening.length : afterDelimiter(body, delimiter, 0);
  for (;;) {
    if (at === -1) throw invalidMultipart(`The line --${boundary}-- that ends the body is missing`);
    if (body[at] === DASH && body[at + 1] === DASH) return;
    while (body[at] === SPACE || body[at] === TAB) at += 1;
    if (body[at] === LF) throw invalidMultipart('Its lines end with LF alone. Use CRLF (RFC 2046)');
    if (body[at] !== CR || body[at + 1] !== LF)
      throw invalidMultipart(`A line has further characters after --${boundary}`);
    const contentAt = headEnd(body, at);
    const next = afterDelimiter(body, delimiter, contentAt - 2);
    // In a part without headers, the CRLF of the empty line that ends them may also begin the next delimiter.
    const contentEnd = Math.max(contentAt, (next === -1 ? body.length : next) - delimiter.length);
    const headers = readHeaders(body.toString('latin1', at + 2, contentAt - 2));
    if (next === -1) throw invalidMultipart(`The line --${boundary}-- that ends the body is missing`);
    yield { headers, content: body.subarray(contentAt, contentEnd), length: contentEnd - at };
    at = next;
  }
}

const [DASH, SPACE, TAB, CR, LF] = [0x2d, 0x20, 0x09, 0x0d, 0x0a];

/** Index behind the next delimiter; -1 if there is none. */
function afterDelimiter(body: Buffer, delimiter: Buffer, from: number): number {
  const at = body.indexOf(delimiter, from);
  return at === -1 ? -1 : at + delimiter.length;
}

/** Index behind the empty line that ends the headers of a part. @param from the end of the line before them */
function headEnd(body: Buffer, from: number): number {
  const end = body.indexOf(HEAD_END, from);
  if (end === -1 || end - from > MAX_HEAD_BYTES) {
    throw invalidMultipart(`No empty line ends its headers within ${MAX_HEAD_BYTES} bytes`);
  }
  return end + HEAD_END.length;
}

/** @param head lines, each with its end */
function readHeaders(head: string): string[] {
  const headers: string[] = [];
  for (const line of head.split(CRLF)) {
    if (line === '') continue;
    const [, name, value] = HEADER_LINE.exec(line) ?? [];
    if (name === undefined || value === undefined)
      throw invalidMultipart(`${quoteBytes(line)} is not a header`);
    headers.push(name, value);
  }
  return headers;
}

function invalidMultipart(what: string): QuaysideError {
  return new QuaysideError('invalid-body', `${what}.`);
}
