import { QuaysideError } from '../model/errors.ts';

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
