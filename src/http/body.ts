import { QuaysideError } from '../model/errors.ts';
import type { Call } from './call.ts';

/**
 * Asks for the body of a request; `take` hears once, with all of it, and not at all where the client goes
 * away before its end. A body over `limit` bytes is answered with 413: at once where the request declares it,
 * and else as soon as so much has come.
 */
export function readBody(call: Call, limit: number, take: (body: Buffer) => void): void {
  const { request, head, answer } = call;
  if (head.contentLength > limit) throw tooLarge(limit);
  if (head.expect !== null && request.httpVersionMinor > 0) answer.writeContinue();
  request.claim(limit, {
    bodyEnded(body) {
      try {
        take(body);
      } catch (error) {
        call.fail(error);
      }
    },
    bodyTooLarge: () => call.fail(tooLarge(limit)),
  });
}

function tooLarge(limit: number): QuaysideError {
  return new QuaysideError('body-too-large', `The body may have at most ${limit} bytes.`, {
    extra: { limit },
  });
}
