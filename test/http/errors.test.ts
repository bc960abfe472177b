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

  it('exchange-not-found is sent as HTML with the escaped id', () => {
    const of = (id: string) =>
      errorResponse(new QuaysideError('exchange-not-found', '', { extra: { id } }), null);
    assert.deepEqual(of('x1'), {
      status: 404,
      reason: 'Not Found',
      contentType: 'text/html; charset=utf-8',
      body: 'no such exchange [x1]',
    });
    assert.equal(
      of(`<script>alert("1'&")</script>`).body,
      'no such exchange [&lt;script&gt;alert(&quot;1&#39;&amp;&quot;)&lt;/script&gt;]',
    );
  });
});
