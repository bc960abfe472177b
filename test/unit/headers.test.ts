import assert from 'node:assert/strict';
import { IncomingMessage, ServerResponse } from 'node:http';
import { Socket } from 'node:net';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import { checkContentHeader, checkHeaders } from '../../src/model/headers.ts';

const refused = (flat: string[], message: RegExp): void => {
  assert.throws(
    () => checkHeaders(flat),
    (error) =>
      error instanceof QuaysideError && error.code === 'invalid-header' && message.test(error.message),
  );
};

describe('element headers', () => {
  it('are returned unchanged if they are valid', () => {
    const flat = ['a', '1', 'x.y_z-0', 'two words\tand a tab', '__proto__', 'ÿ\u0080', 'empty', ''];
    assert.equal(checkHeaders(flat), flat);
    assert.deepEqual(checkHeaders([]), []);
  });

  it('are rejected if a name is not a lower-case token', () => {
    for (const name of ['', 'A', 'a b', 'a:b', 'é', 'a\n', 'a\0', '"', '(x)', 'ſ']) {
      refused([name, 'v'], /^Header ".*": a header name is a lower-case HTTP token\.$/);
    }
  });

  it('are rejected if an HTTP response cannot carry a value unchanged', () => {
    for (const value of ['\n', 'a\r\nb: c', '\0', 'a\u007f', '☃', 'a\u0100', ' a', 'a ', '\ta', ' ']) {
      refused(['n', value], /^Header "n": ".+" is not allowed, a header value has no control character/);
    }
  });

  it('may start or end with a space if the service writes them, such as the name of a queue', () => {
    const own = { exempt: new Set(['own']) };
    for (const value of [' a', 'a ', ' ']) {
      const flat = ['own', value];
      assert.equal(checkHeaders(flat, own), flat);
      assert.throws(() => checkHeaders(['n', value], own), { code: 'invalid-header' });
    }
    for (const value of ['\ta', 'a\n', 'a\r\nb: c', '\0']) {
      assert.throws(() => checkHeaders(['own', value], own), { code: 'invalid-header' });
    }
  });

  it('are truncated and escaped when an error names them', () => {
    refused([`${'x'.repeat(1000)}\n`, 'v'], /^Header "x{64}"…: /);
    refused(['a\n', 'v'], /^Header "a\\n":/);
  });

  it('are limited to 64 headers and 8192 bytes', () => {
    const pairs = Array.from({ length: 64 }, (_, i) => [`h${i}`, 'v']).flat();
    assert.equal(checkHeaders(pairs), pairs);
    refused([...pairs, 'one', 'more'], /^Header "one": .*at most 64 headers/);
    const full = ['name', 'v'.repeat(8188)];
    assert.equal(checkHeaders(full), full);
    refused(['name', 'v'.repeat(8189)], /^Header "name": .* 8193 bytes, .*at most 8192/);
    refused(['a'], /pairs/);
  });

  it('are valid exactly if node:http writes them and a peer reads them back', () => {
    const response = new ServerResponse(new IncomingMessage(new Socket()));
    const writable = (value: string): boolean => {
      try {
        response.setHeader('x-ks-hdr-n', value);
        return value === value.replace(/^[ \t]+|[ \t]+$/g, '');
      } catch {
        return false;
      }
    };
    const near = fc.string({
      unit: fc.integer({ min: 0, max: 0x110 }).map((code) => String.fromCharCode(code)),
    });
    fc.assert(
      fc.property(near, (value) => {
        let good = true;
        try {
          checkHeaders(['n', value]);
        } catch {
          good = false;
        }
        assert.equal(good, writable(value));
      }),
      { numRuns: 2000 },
    );
  });
});

describe('a content type or encoding', () => {
  it('is returned unchanged, or as null if it is empty', () => {
    for (const value of [
      'text/plain; charset="utf-8"',
      'gzip, br',
      'not a type',
      'ÿ\u0080',
      'x'.repeat(255),
    ]) {
      assert.equal(checkContentHeader('content-type', value), value);
    }
    assert.equal(checkContentHeader('content-encoding', ''), null);
    assert.equal(checkContentHeader('content-encoding', null), null);
  });

  it('is rejected by name if an HTTP response cannot carry it', () => {
    for (const value of ['\n', 'a\r\nb: c', '\0', 'a\u007f', '☃', ' a', 'a ', '\ta', ' ', 'x'.repeat(256)]) {
      for (const name of ['content-type', 'content-encoding'] as const) {
        assert.throws(
          () => checkContentHeader(name, value),
          (error) =>
            error instanceof QuaysideError &&
            error.code === 'invalid-header' &&
            error.details.parameter === name,
        );
      }
    }
  });
});
