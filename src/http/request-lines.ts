import { isUtf8 } from 'node:buffer';
import { QuaysideError } from '../model/errors.ts';
import type { HttpCall } from './call.ts';

/** A line of a body, without its end; lines count from 1. */
export interface BodyLine {
  readonly number: number;
  readonly line: string;
}

const LINE_FEED = 0x0a;
const BLANK = /^[\t\r ]*$/;

/**
 * The lines of a body of any length, as they arrive: the client waits while one is dealt with. Lines of white space alone are left
 * out, and counted. Ends early if the client disconnects; then the request is not `complete`.
 * @throws QuaysideError `invalid-body` for a line that is not UTF-8, `body-too-large` for one of more than `maxBytes`
 */
export async function* bodyLines(
  { request, response, head }: HttpCall,
  maxBytes: number,
): AsyncGenerator<BodyLine, void, undefined> {
  if (head.expect !== null && request.httpVersionMinor > 0) response.writeContinue();
  let number = 0;
  let rest: Buffer[] = [];
  let restBytes = 0;
  for await (const chunk of request.chunks()) {
    let from = 0;
    for (let end = chunk.indexOf(LINE_FEED); end !== -1; end = chunk.indexOf(LINE_FEED, from)) {
      number += 1;
      const line = textOf([...rest, chunk.subarray(from, end)], number, maxBytes);
      if (!BLANK.test(line)) yield { number, line };
      rest = [];
      restBytes = 0;
      from = end + 1;
    }
    if (from === chunk.length) continue;
    rest.push(chunk.subarray(from));
    restBytes += chunk.length - from;
    if (restBytes > maxBytes) throw tooLong(number + 1, restBytes, maxBytes);
  }
  if (!request.complete || rest.length === 0) return;
  const line = textOf(rest, number + 1, maxBytes);
  if (!BLANK.test(line)) yield { number: number + 1, line };
}

function textOf(parts: readonly Buffer[], number: number, maxBytes: number): string {
  const [first] = parts;
  const bytes = parts.length === 1 && first !== undefined ? first : Buffer.concat(parts);
  if (bytes.length > maxBytes) throw tooLong(number, bytes.length, maxBytes);
  if (!isUtf8(bytes)) throw new QuaysideError('invalid-body', `Line ${number}: It is not UTF-8.`);
  return bytes.toString('utf8');
}

function tooLong(number: number, bytes: number, limit: number): QuaysideError {
  return new QuaysideError(
    'body-too-large',
    `Line ${number}: It has ${bytes} bytes or more. At most ${limit} are allowed.`,
    { extra: { limit, line: number } },
  );
}
