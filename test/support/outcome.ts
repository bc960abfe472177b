import assert from 'node:assert/strict';
import { QuaysideError } from '../../src/model/errors.ts';

/**
 * Returns the code of a call's error, or `done`. Fails if the error is not a `QuaysideError`, which the ports promise.
 */
export async function codeOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return 'done';
  } catch (error) {
    assert.ok(error instanceof QuaysideError, `${error}`);
    return error.code;
  }
}
