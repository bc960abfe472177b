import assert from 'node:assert/strict';
import { QuaysideError } from '../../src/model/errors.ts';

/** The code of a call's error, or `done`; fails where the error has none of the codes that the ports promise. */
export async function codeOf(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return 'done';
  } catch (error) {
    assert.ok(error instanceof QuaysideError, `${error}`);
    return error.code;
  }
}
