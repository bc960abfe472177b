import { isAscii, isUtf8 } from 'node:buffer';
import type { ElementContent, GroupName } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkHeaders } from '../model/headers.ts';
import { quote } from '../util/quote.ts';
import type { HttpCall } from './call.ts';
import { NDJSON, readLineElement } from './element-lines.ts';
import { idempotencyKeyOf, type RequestHead, readHead } from './head.ts';
import { type BodyPart, boundaryOf, MULTIPART, readParts } from './multipart.ts';

/** An element, and where it stood: the number of its line or part, from 1. */
interface Sent {
  readonly number: number;
  readonly element: GivenElement;
}

/** The elements of a body. */
export interface SentElements {
  readonly place: Place;
  /** Reads one after the other. Throws what is wrong with the next one, which it names. */
  readonly elements: Iterable<Sent>;
}

/**
 * What reads the body of a request as elements, by its content type. What is of one element only must not stand in the
 * head of the request: it would be lost.
 * @param bodyLimit of one element
 * @throws QuaysideError `invalid-header`
 */
export function elementsReader(head: RequestHead, bodyLimit: number): (body: Buffer) => SentElements {
  const { contentType, contentEncoding, elementHeaders } = head;
  const type = contentType?.split(';', 1)[0]?.trim().toLowerCase() ?? null;
  if (contentType === null || (type !== NDJSON && type !== MULTIPART)) {
    const given = contentType === null ? 'is missing' : `cannot be ${quote(contentType)}`;
    throw invalidHeader('content-type', `Content-Type ${given}; give ${NDJSON} or ${MULTIPART}.`);
  }
  if (contentEncoding !== null && contentEncoding.toLowerCase() !== 'identity') {
    const what = `Content-Encoding ${quote(contentEncoding)} is not supported here`;
    throw invalidHeader('content-encoding', `${what}; each element names its own.`);
  }
  if (elementHeaders.length > 0) {
    const where = 'Give each its own: headers in a line, x-ks-hdr-* in a part.';
    throw invalidHeader('x-ks-hdr-*', `Element headers of the request belong to no element. ${where}`);
  }
  if (type === NDJSON) return (body) => ({ place: 'line', elements: readLines(body, bodyLimit) });
  const boundary = boundaryOf(contentType);
  return (body) => ({ place: 'part', elements: readSentParts(body, boundary, bodyLimit) });
}

function* readLines(body: Buffer, bodyLimit: number): Generator<Sent, void, undefined> {
  for (const { number, line } of linesOf(body, maxLineBytes(bodyLimit))) {
    let element: GivenElement;
    try {
      element = limited(readLineElement(line), bodyLimit);
    } catch (error) {
      throw errorIn('line', number, error);
    }
    yield { number, element };
  }
}

function* readSentParts(body: Buffer, boundary: string, bodyLimit: number): Generator<Sent, void, undefined> {
  const parts = readParts(body, boundary);
  for (let number = 1; ; number += 1) {
    let element: GivenElement;
    try {
      const next = parts.next();
      if (next.done === true) return;
      element = limited(elementOfPart(next.value), bodyLimit);
    } catch (error) {
      throw errorIn('part', number, error);
    }
    yield { number, element };
  }
}

/** Codings that leave the bytes as they are (RFC 2045). */
const NO_CODING: ReadonlySet<string> = new Set(['7bit', '8bit', 'binary']);

/** A part as the request of a single insert: its headers are those of an element. */
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
          `Content-Length is ${quote(value)}, and the part has ${content.length} bytes.`,
        );
    }
  }
  const head = readHead(headers, true);
  return {
    body: content,
    contentType: head.contentType,
    contentEncoding: head.contentEncoding,
    headers: checkHeaders(head.elementHeaders),
    matureAt: null,
    delayMs: null,
    ttlMs: null,
    tries: null,
    groups: null,
    key: idempotencyKeyOf(head),
  };
}

/** @throws QuaysideError `body-too-large` */
export function limited<E extends ElementContent>(element: E, limit: number): E {
  const { byteLength } = element.body;
  if (byteLength <= limit) return element;
  const message = `The body has ${byteLength} bytes. At most ${limit} are allowed.`;
  throw new QuaysideError('body-too-large', message, { extra: { limit } });
}

function invalidHeader(parameter: string, message: string): QuaysideError {
  return new QuaysideError('invalid-header', message, { parameter });
}

/** A line of a body, without its end; lines count from 1. */
interface BodyLine {
  readonly number: number;
  readonly line: string;
}

const LINE_FEED = 0x0a;
const BLANK = /^[\t\r ]*$/;

/** What a line may have in addition to twice the largest body: base64 takes four characters for three bytes. */
const LINE_BYTES = 65_536;

/** The longest line for an element whose body has at most so many bytes. */
export function maxLineBytes(bodyLimit: number): number {
  return 2 * bodyLimit + LINE_BYTES;
}

/**
 * The lines of a whole body. Lines of white space alone are left out, and counted.
 * @throws QuaysideError `invalid-body` for a line that is not UTF-8, `body-too-large` for one of more than `maxBytes`
 */
function* linesOf(body: Buffer, maxBytes: number): Generator<BodyLine, void, undefined> {
  const splitter = new LineSplitter(maxBytes);
  yield* splitter.push(body);
  yield* splitter.end();
}

/**
 * The lines of a body of any length, as they arrive: the client waits while one is dealt with. Ends early if the client
 * disconnects; then the request is not `complete`. For the rest as {@link linesOf}.
 * @throws QuaysideError `request-timeout` if nothing comes for as long as another request may take as a whole
 */
export async function* incomingLines(
  { front, request, response, head }: HttpCall,
  maxBytes: number,
): AsyncGenerator<BodyLine, void, undefined> {
  const { clock, options } = front.parts;
  if (head.expect !== null && request.httpVersionMinor > 0) response.writeContinue();
  const splitter = new LineSplitter(maxBytes);
  for await (const chunk of request.chunks(clock, options.requestTimeoutMs)) yield* splitter.push(chunk);
  if (request.complete) yield* splitter.end();
}

/** Splits the chunks of a body into lines. */
class LineSplitter {
  readonly #maxBytes: number;
  /** Lines that have ended. */
  #count = 0;
  /** Of the line that has not ended. */
  #rest: Buffer[] = [];
  #restBytes = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** The lines that end in this chunk. */
  *push(chunk: Buffer): Generator<BodyLine, void, undefined> {
    // To check a chunk at once costs a fraction of checking its lines.
    const encoding = isAscii(chunk) ? 'latin1' : 'utf8';
    const isText = encoding === 'latin1' || isUtf8(chunk);
    let from = 0;
    for (let end = chunk.indexOf(LINE_FEED); end !== -1; end = chunk.indexOf(LINE_FEED, from)) {
      const line =
        this.#rest.length > 0
          ? this.#endLine(chunk.subarray(from, end))
          : this.#textOf(chunk, encoding, isText, from, end);
      this.#count += 1;
      from = end + 1;
      if (!BLANK.test(line)) yield { number: this.#count, line };
    }
    if (from < chunk.length) this.#keep(chunk.subarray(from));
  }

  /** The last line, if it has no line feed. */
  *end(): Generator<BodyLine, void, undefined> {
    if (this.#rest.length === 0) return;
    const line = this.#endLine(EMPTY);
    if (!BLANK.test(line)) yield { number: this.#count + 1, line };
  }

  #keep(bytes: Buffer): void {
    this.#rest.push(bytes);
    this.#restBytes += bytes.length;
    if (this.#restBytes > this.#maxBytes) throw this.#tooLong(this.#restBytes);
  }

  /** @param last the bytes of the line that this chunk has */
  #endLine(last: Buffer): string {
    const bytes = Buffer.concat([...this.#rest, last]);
    this.#rest = [];
    this.#restBytes = 0;
    return this.#textOf(bytes, 'utf8', false);
  }

  /** A part of some bytes. @param isText whether they are known to be UTF-8 */
  #textOf(bytes: Buffer, encoding: 'latin1' | 'utf8', isText: boolean, from = 0, end = bytes.length): string {
    if (end - from > this.#maxBytes) throw this.#tooLong(end - from);
    if (!isText && !isUtf8(bytes.subarray(from, end)))
      throw this.#error('invalid-body', 'It is not UTF-8.', {});
    return bytes.toString(encoding, from, end);
  }

  #tooLong(bytes: number): unknown {
    const limit = this.#maxBytes;
    const message = `It has ${bytes} bytes or more. At most ${limit} are allowed.`;
    return this.#error('body-too-large', message, { limit });
  }

  #error(code: 'invalid-body' | 'body-too-large', message: string, extra: object): unknown {
    return errorIn('line', this.#count + 1, new QuaysideError(code, message, { extra: { ...extra } }));
  }
}

const EMPTY = Buffer.alloc(0);

/** What one line or one part of an insert of many says of its element. Null: it does not say. */
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

/** How the elements of a body stand in it. */
type Place = 'line' | 'part';

/** The same error, which says where it was. */
export function errorIn(place: Place, number: number, thrown: unknown): unknown {
  if (!(thrown instanceof QuaysideError)) return thrown;
  const where = place === 'line' ? 'Line' : 'Part';
  const extra = { ...thrown.details.extra, [place]: number };
  return thrown.with({ message: `${where} ${number}: ${thrown.message}`, extra });
}

/** The error of a request of many that has one more than it may. @param what they are, in the plural */
export function tooMany(what: string, limit: number): QuaysideError {
  return new QuaysideError(
    'body-too-large',
    `There are more than ${limit} ${what}, the limit (http.batchCount).`,
    {
      extra: { limit },
    },
  );
}
