import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { elementLine } from '../../src/http/written-elements.ts';
import { type Delivery, PLAIN_GROUP } from '../../src/model/element.ts';
import { anyCharacter } from '../support/any-character.ts';

const MATURE_AT = Date.UTC(2026, 10, 22, 20);

function delivery(fields: Partial<Omit<Delivery, 'body'>> & { body?: string | Uint8Array } = {}): Delivery {
  const { body = 'body', ...rest } = fields;
  return {
    id: 'e1',
    group: PLAIN_GROUP,
    tries: 0,
    matureAt: MATURE_AT,
    contentType: null,
    contentEncoding: null,
    headers: [],
    lease: null,
    body: typeof body === 'string' ? Buffer.from(body) : body,
    ...rest,
  };
}

/** Checks that it is exactly one line, and parses it. */
function read(line: string): Record<string, unknown> {
  assert.equal(line.indexOf('\n'), line.length - 1, 'a line ends with the only line feed');
  assert.ok(!line.includes('\r'));
  return JSON.parse(line) as Record<string, unknown>;
}

describe('An element as a line of NDJSON', () => {
  it('has every member, with null for missing values', () => {
    assert.deepEqual(read(elementLine(delivery(), false)), {
      id: 'e1',
      tries: 0,
      mature: '2026-11-22T20:00:00.000Z',
      contentType: null,
      contentEncoding: null,
      headers: {},
      text: 'body',
      lease: null,
      leaseUntil: null,
    });
  });

  it('has the lease of a reserve, and the queue if the caller names it', () => {
    const reserved = delivery({ tries: 3, lease: { token: 't-1', until: MATURE_AT + 1500 } });
    const line = read(elementLine(reserved, false, { ns: 'N', queue: 'a "b"' }));
    assert.deepEqual(
      [line.ns, line.queue, line.tries, line.lease, line.leaseUntil],
      ['N', 'a "b"', 3, 't-1', '2026-11-22T20:00:01.500Z'],
    );
  });

  it('has bytes that are not UTF-8 as base64, whatever the content type', () => {
    const body = Buffer.from([0x7b, 0xff, 0x7d]);
    const line = read(elementLine(delivery({ body, contentType: 'application/json' }), true));
    assert.deepEqual([line.base64, line.text, line.json], [body.toString('base64'), undefined, undefined]);
  });

  it('has a body of a JSON type as a JSON value if the caller asks for it', () => {
    const typed = (contentType: string | null, contentEncoding: string | null = null) =>
      read(elementLine(delivery({ body: '{"a":[1]}', contentType, contentEncoding }), true));
    for (const type of ['application/json', 'Application/JSON; charset=utf-8', 'application/ld+json']) {
      assert.deepEqual(typed(type).json, { a: [1] }, type);
    }
    assert.equal(typed('text/plain').text, '{"a":[1]}');
    assert.equal(typed(null).text, '{"a":[1]}');
    assert.equal(typed('application/json', 'gzip').text, '{"a":[1]}');
    const unwanted = delivery({ body: '{"a":[1]}', contentType: 'application/json' });
    assert.equal(read(elementLine(unwanted, false)).text, '{"a":[1]}');
  });

  it('keeps the digits of numbers, and joins JSON of several lines', () => {
    const body = '{\r\n  "n": 12345678901234567890.50,\n  "s": "a\\nb"\n}\n';
    const line = elementLine(delivery({ body, contentType: 'application/json' }), true);
    assert.ok(line.includes('"n": 12345678901234567890.50,'), line);
    assert.deepEqual(read(line).json, { n: 12345678901234567000, s: 'a\nb' });
  });

  it('has a body of a JSON type as text if it is not valid JSON', () => {
    const line = elementLine(delivery({ body: '{"a":', contentType: 'application/json' }), true);
    assert.deepEqual([read(line).text, read(line).json], ['{"a":', undefined]);
    const empty = elementLine(delivery({ body: '', contentType: 'application/json' }), true);
    assert.equal(read(empty).text, '');
  });

  it('decodes headers and types as UTF-8, or else as ISO 8859-1', () => {
    const utf8 = Buffer.from('☃').toString('latin1');
    const line = read(
      elementLine(
        delivery({ contentType: `text/${utf8}`, headers: ['snow', utf8, 'old', 'é', '__proto__', 'x'] }),
        false,
      ),
    );
    assert.equal(line.contentType, 'text/☃');
    assert.deepEqual(Object.entries(line.headers as object), [
      ['snow', '☃'],
      ['old', 'é'],
      ['__proto__', 'x'],
    ]);
  });

  it('returns any body byte for byte', () => {
    fc.assert(
      fc.property(
        fc.oneof(
          fc.uint8Array(),
          fc.string({ unit: anyCharacter }).map((text) => Buffer.from(text)),
        ),
        (body) => {
          const { text, base64 } = read(elementLine(delivery({ body }), false));
          const back = typeof text === 'string' ? Buffer.from(text) : Buffer.from(String(base64), 'base64');
          assert.deepEqual(back, Buffer.from(body));
        },
      ),
    );
  });

  it('returns any JSON value unchanged', () => {
    fc.assert(
      fc.property(fc.json(), (body) => {
        const line = elementLine(delivery({ body, contentType: 'application/json' }), true);
        assert.deepEqual(read(line).json, JSON.parse(body));
      }),
    );
  });
});
