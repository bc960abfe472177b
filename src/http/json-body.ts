import { isUtf8 } from 'node:buffer';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { HttpCall } from './call.ts';
import { wholeBody } from './request.ts';

/**
 * Reads a JSON body of at most `maxBytes`. Resolves when `take` has dealt with it, or the client has disconnected before its end.
 * Rejects with `body-too-large`, `invalid-body` and what `take` rejects with.
 */
export async function readJson(
  call: HttpCall,
  maxBytes: number,
  take: (payload: unknown) => Promise<void>,
): Promise<void> {
  const body = await wholeBody(call, maxBytes);
  if (body !== null) await take(parseJson(body));
}

/** @throws QuaysideError `invalid-body` */
export function parseJson(body: Buffer): unknown {
  if (!isUtf8(body))
    throw new QuaysideError('invalid-body', 'The body is not UTF-8. It must be JSON in UTF-8.');
  try {
    return JSON.parse(body.toString('utf8'));
  } catch (error) {
    throw new QuaysideError(
      'invalid-body',
      `The body is not JSON: ${quote((error as SyntaxError).message)}.`,
    );
  }
}
