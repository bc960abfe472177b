import type { ElementContent } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkHeaders } from '../model/headers.ts';
import { quote } from '../util/quote.ts';
import { errorIn, type GivenElement, type Place } from './batch.ts';
import { type RequestHead, readHead } from './head.ts';
import { idempotencyKeyOf } from './idempotency-key.ts';
import { readLineElement } from './line-element.ts';
import { linesOf, maxLineBytes } from './lines.ts';
import { type BodyPart, boundaryOf, MULTIPART, readParts } from './multipart.ts';
import { NDJSON } from './ndjson.ts';

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
