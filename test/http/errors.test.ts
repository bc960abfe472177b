import assert from 'node:assert/strict';
import { STATUS_CODES } from 'node:http';
import { describe, it } from 'node:test';
import { errorResponse, HTTP_ERRORS } from '../../src/http/errors.ts';
import { ERROR_CODES, QuaysideError } from '../../src/model/errors.ts';

const PROBLEM = 'application/problem+json';

describe('Errors on the wire', () => {
  for (const code of ERROR_CODES) {
    it(`${code} is sent as problem details to clients that accept them`, () => {
      const error = new QuaysideError(code, 'A sentence.', {
        parameter: 'p',
        extra: { tid: 't', status: 'x' },
      });
      const answer = errorResponse(error, `text/html, ${PROBLEM}`);
      assert.equal(answer.contentType, PROBLEM);
      const { status } = HTTP_ERRORS[code];
      assert.deepEqual(JSON.parse(answer.body), {
        tid: 't',
        title: STATUS_CODES[status],
        status,
        code,
        detail: 'A sentence.',
        parameter: 'p',
      });
    });
  }
});
