import { isUtf8 } from 'node:buffer';
import { QuaysideError } from '../model/errors.ts';
import { quote } from '../util/quote.ts';
import type { HttpCall } from './call.ts';
import { readBody } from './request.ts';

/**
 * Reads a JSON body of at most `maxBytes`. Resolves when `take` has dealt with it; never if the client disconnects before
 * its end. Rejects with `body-too-large`, `invalid-body` and what `take` rejects with.
 */
export function readJson(
  call: HttpCall,
  maxBytes: number,
  take: (payload: unknown) => Promise<void>,
): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<Buffer>();
  readBody(call, maxBytes, (body) => resolve(body));
  return promise.then((body) => take(parseJson(body)));
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
