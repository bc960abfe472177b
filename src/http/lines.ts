import { isAscii, isUtf8 } from 'node:buffer';
import { QuaysideError } from '../model/errors.ts';
import { errorIn } from './batch.ts';
import type { HttpCall } from './call.ts';

/** A line of a body, without its end; lines count from 1. */
export interface BodyLine {
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
export function* linesOf(body: Buffer, maxBytes: number): Generator<BodyLine, void, undefined> {
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
