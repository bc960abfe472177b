import { QuaysideError } from '../model/errors.ts';
import type { Call } from './call.ts';

/**
 * Asks for the body of a request; `take` hears once, with all of it, and not at all where the client goes
 * away before its end. A body over `limit` bytes is answered with 413: at once where the request declares it,
 * and else as soon as so much has come.
 */
export function readBody(call: Call, limit: number, take: (body: Buffer) => void): void {
  const { request, head, answer } = call;
  if (head.contentLength > limit) throw tooLarge(limit, `has ${head.contentLength} bytes`);
  if (head.expect !== null && request.httpVersionMinor > 0) answer.writeContinue();
  request.claim(limit, {
    bodyEnded(body) {
      try {
        take(body);
      } catch (error) {
        call.fail(error);
      }
    },
    bodyTooLarge: () => call.fail(tooLarge(limit, `has more than ${limit} bytes`)),
  });
}

function tooLarge(limit: number, what: string): QuaysideError {
  return new QuaysideError('body-too-large', `The body ${what}. At most ${limit} are allowed.`, {
    extra: { limit },
  });
}
