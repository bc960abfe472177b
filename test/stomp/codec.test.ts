import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { QuaysideError } from '../../src/model/errors.ts';
import {
  CONNECT_RULES,
  type FrameLimits,
  FrameParser,
  frameText,
  type HeadRules,
  RULES,
  type StompFrame,
  VERSIONS,
} from '../../src/stomp/codec.ts';
import { sampleBodies } from '../support/bodies.ts';

const LIMITS: FrameLimits = { headBytes: 1000, headers: 10, bodyBytes: 2_000_000 };

function parse(rules: HeadRules, ...chunks: readonly (string | Buffer)[]): StompFrame[] {
  const parser = new FrameParser(LIMITS);
  parser.rules = rules;
  const frames: StompFrame[] = [];
  for (const chunk of chunks) {
    parser.push(typeof chunk === 'string' ? Buffer.from(chunk) : chunk);
    for (let frame = parser.next(); frame !== null; frame = parser.next()) frames.push(frame);
  }
  return frames;
}

function parseOne(rules: HeadRules, ...chunks: readonly (string | Buffer)[]): StompFrame {
  const [frame, ...more] = parse(rules, ...chunks);
  assert.ok(frame !== undefined && more.length === 0);
  return frame;
}

function assertRejected(code: string, rules: HeadRules, ...chunks: readonly (string | Buffer)[]): void {
  assert.throws(
    () => parse(rules, ...chunks),
    (error) => error instanceof QuaysideError && error.code === code,
    JSON.stringify(chunks.map(String)),
  );
}

describe('the frame parser', () => {
  const v12 = RULES['1.2'];

  it('reads command, headers and a body up to the first NUL', () => {
    const { command, headers, body } = parseOne(v12, 'SEND\ndestination:/q/N/a\nk:v\n\nhello\0');
    assert.equal(command, 'SEND');
    assert.deepEqual(headers, ['destination', '/q/N/a', 'k', 'v']);
    assert.equal(body.toString(), 'hello');
  });

  it('reads exactly content-length octets of a body, including NULs', () => {
    assert.deepEqual(
      [...parseOne(v12, Buffer.from('SEND\ncontent-length:5\n\na\0b\0c\0')).body],
      [97, 0, 98, 0, 99],
    );
  });

  it('reads frames without headers and frames without a body', () => {
    assert.deepEqual(parseOne(v12, 'DISCONNECT\n\n\0').headers, []);
    assert.equal(parseOne(v12, 'SEND\na:b\n\n\0').body.length, 0);
    assert.equal(parseOne(v12, 'SEND\ncontent-length:0\n\n\0').body.length, 0);
  });

  it('skips line ends between frames, which are heart-beats', () => {
    assert.equal(parse(v12, '\n\n', '\r\n', 'DISCONNECT\n\n\0\n\r\n\nDISCONNECT\n\n\0\n').length, 2);
  });

  it('accepts further colons in a value, and an empty value', () => {
    assert.deepEqual(parseOne(v12, 'SEND\na:b:c\nd:\n\n\0').headers, ['a', 'b:c', 'd', '']);
  });

  it('keeps spaces around names and values, but trims values in STOMP 1.0', () => {
    assert.deepEqual(parseOne(v12, 'SEND\n a : b \n\n\0').headers, [' a ', ' b ']);
    assert.deepEqual(parseOne(RULES['1.1'], 'SEND\n a : b \n\n\0').headers, [' a ', ' b ']);
    assert.deepEqual(parseOne(RULES['1.0'], 'SEND\na: b \n\n\0').headers, ['a', 'b']);
  });

  it('accepts CR LF as a line end in CONNECT and STOMP 1.2 only', () => {
    for (const rules of [v12, CONNECT_RULES]) {
      assert.deepEqual(parseOne(rules, 'SEND\r\na:b\r\n\r\nx\0').headers, ['a', 'b']);
      assert.deepEqual(parseOne(rules, 'SEND\r\na:b\n\nx\0').headers, ['a', 'b']);
      assertRejected('malformed-request', rules, 'SEND\na\rb:c\n\n\0');
    }
    assert.deepEqual(parseOne(RULES['1.1'], 'SEND\na:b\r\n\n\0').headers, ['a', 'b\r']);
    assertRejected('malformed-request', RULES['1.1'], 'SEND\na:b\r\n\r\n\n\0');
  });

  it('decodes the escapes of each version, and rejects undefined ones', () => {
    const text = 'SEND\na\\cb:\\\\n \\n \\\\ \n\n\0';
    assert.deepEqual(parseOne(v12, text).headers, ['a:b', '\\n \n \\ ']);
    assert.deepEqual(parseOne(RULES['1.1'], text).headers, ['a:b', '\\n \n \\ ']);
    assert.deepEqual(parseOne(RULES['1.0'], text).headers, ['a\\cb', '\\\\n \\n \\\\']);
    assert.deepEqual(parseOne(v12, 'SEND\na:\\r\n\n\0').headers, ['a', '\r']);
    assertRejected('malformed-request', RULES['1.1'], 'SEND\na:\\r\n\n\0');
    for (const bad of ['\\t', '\\', '\\0', '\\N', '\\\\\\']) {
      assertRejected('malformed-request', v12, `SEND\na:${bad}\n\n\0`);
      assertRejected('malformed-request', RULES['1.1'], `SEND\n${bad}:a\n\n\0`);
    }
    assert.deepEqual(parseOne(CONNECT_RULES, 'CONNECT\na:\\t\\c\n\n\0').headers, ['a', '\\t\\c']);
  });

  it('keeps header bytes unchanged, and rejects invalid UTF-8 from STOMP 1.1 on', () => {
    const { headers } = parseOne(v12, 'SEND\ngrüße:☃\n\n\0');
    assert.deepEqual(
      headers.map((text) => Buffer.from(text, 'latin1').toString()),
      ['grüße', '☃'],
    );
    const latin1 = Buffer.from('SEND\na:\xfc\n\n\0', 'latin1');
    assert.deepEqual(parseOne(RULES['1.0'], latin1).headers, ['a', '\xfc']);
    assertRejected('malformed-request', v12, latin1);
    assertRejected('malformed-request', RULES['1.1'], latin1);
  });

  it('rejects malformed frames', () => {
    const bad = [
      'send\n\n\0',
      '\0',
      ' SEND\n\n\0',
      'GET / HTTP/1.1\nHost\n\n\0',
      'SEND\0',
      'SEND\na:b\0\n\n\0',
      'SEND\nno colon\n\n\0',
      'SEND\n:no name\n\n\0',
      'SEND\ncontent-length:3\n\nabcd\0',
      'DISCONNECT\n\nbody\0',
      'ACK\ncontent-length:1\n\nx\0',
      '\x16\x03\x01\x02',
    ];
    for (const text of bad) assertRejected('malformed-request', v12, text);
  });

  it('rejects an invalid content-length, and one over the limit', () => {
    for (const length of ['-1', '1.5', '1e3', '0x10', '', ' 1', 'NaN', '9'.repeat(16)]) {
      assertRejected('malformed-request', v12, `SEND\ncontent-length:${length}\n\n`);
    }
    for (const length of [2 ** 31, 2 ** 32 - 1, 2_000_001]) {
      assertRejected('body-too-large', v12, `SEND\ncontent-length:${length}\n\n`);
    }
  });

  it('rejects heads, header counts and bodies as soon as they exceed their limits', () => {
    assertRejected('headers-too-large', v12, `SEND\na:${'x'.repeat(1000)}`);
    assertRejected('headers-too-large', v12, `SEND\n${'x'.repeat(500)}`, 'y'.repeat(500));
    assertRejected('headers-too-large', v12, `SEND\n${'a:b\n'.repeat(11)}\n\0`);
    assertRejected('body-too-large', v12, 'SEND\n\n', Buffer.alloc(1_500_000, 1), Buffer.alloc(500_001, 1));
  });

  it('returns the receipt header of the frame that it rejected', () => {
    const parser = new FrameParser(LIMITS);
    parser.push(Buffer.from('SEND\nreceipt:r1\ncontent-length:9999999\n\n'));
    assert.throws(() => parser.next());
    assert.equal(parser.receipt, 'r1');
  });

  it('allocates memory for the received bytes of a body, not for its content-length', () => {
    const before = process.memoryUsage().arrayBuffers;
    const parsers = Array.from({ length: 200 }, () => {
      const parser = new FrameParser(LIMITS);
      parser.push(Buffer.from('SEND\ncontent-length:1000000\n\nx'));
      assert.equal(parser.next(), null);
      return parser;
    });
    assert.ok(process.memoryUsage().arrayBuffers - before < 10 * 1024 * 1024);
    assert.equal(parsers.length, 200);
  });

  it('returns the same frames however the bytes are chunked', () => {
    const header = fc.tuple(fc.string({ minLength: 1 }), fc.string({ unit: 'grapheme' }));
    const frame = fc.record({
      version: fc.constantFrom(...VERSIONS.slice(1)),
      headers: fc.array(header, { maxLength: 5 }),
      body: fc.uint8Array({ maxLength: 300 }),
      counted: fc.boolean(),
      cuts: fc.array(fc.nat(600), { maxLength: 8 }),
    });
    fc.assert(
      fc.property(frame, ({ version, headers, body, counted, cuts }) => {
        const rules = RULES[version];
        const pairs = headers.flatMap(([name, value]) => [bytes(name), bytes(value)]);
        const kept = pairs.every(
          (text) => !text.includes('\0') && (version === '1.2' || !text.includes('\r')),
        );
        const isCounted = counted || body.includes(0);
        if (!kept || headers.some(([name]) => name === 'content-length')) return;
        const length = isCounted ? ['content-length', String(body.length)] : [];
        const text = frameText(rules, 'SEND', [...pairs, ...length], Buffer.from(body).toString('latin1'));
        const whole = Buffer.from(`\n${text}\0\n${text}\0`, 'latin1');
        const at = [0, ...cuts.filter((cut) => cut < whole.length).sort((a, b) => a - b), whole.length];
        const chunks = at.slice(1).map((end, i) => whole.subarray(at[i], end));
        const frames = parse(rules, ...chunks);
        assert.equal(frames.length, 2);
        for (const parsed of frames) {
          assert.deepEqual(parsed.headers, [...pairs, ...length]);
          assert.deepEqual([...parsed.body], [...body]);
        }
      }),
      { numRuns: 500 },
    );
  });

  it('returns the same frames for a cut at every position, and for single bytes', () => {
    const whole = Buffer.from(
      '\r\nSEND\r\ndestination:/q/N/a\r\ncontent-length:7\r\nü:\\n\r\n\r\na\r\n\0b\n\n\0\n\nACK\nid:1\n\n\0SEND\na:b\n\nx\0',
    );
    const expected = parse(v12, whole);
    assert.equal(expected.length, 3);
    for (let cut = 1; cut < whole.length; cut++) {
      assert.deepEqual(parse(v12, whole.subarray(0, cut), whole.subarray(cut)), expected, `cut at ${cut}`);
    }
    assert.deepEqual(parse(v12, ...[...whole].map((byte) => Buffer.from([byte]))), expected);
  });

  it('copies a head that arrives byte by byte only a few times', (t) => {
    const joined = t.mock.method(Buffer, 'concat');
    const copied = t.mock.method(Uint8Array.prototype, 'set');
    const bytes = Buffer.from(`SEND\ndestination:/q/N/a\nk:${'x'.repeat(900)}\n\nhello\0`);
    const { body } = parseOne(v12, ...Array.from(bytes, (byte) => Buffer.of(byte)));
    const sum =
      joined.mock.calls.reduce((all, { result }) => all + (result?.length ?? 0), 0) +
      copied.mock.calls.reduce((all, call) => all + call.arguments[0].length, 0);
    assert.equal(body.toString(), 'hello');
    assert.ok(sum < 10 * bytes.length, `${sum} bytes were copied for ${bytes.length}`);
  });

  it('returns bodies with a content-length byte for byte, in chunks of 64 KiB', () => {
    for (const { bytes: body } of sampleBodies()) {
      const whole = Buffer.concat([
        Buffer.from(`SEND\ncontent-length:${body.length}\n\n`),
        body,
        Buffer.from('\0'),
      ]);
      const chunks: Buffer[] = [];
      for (let at = 0; at < whole.length; at += 65_536) chunks.push(whole.subarray(at, at + 65_536));
      assert.ok(parseOne(v12, ...chunks).body.equals(body));
    }
  });
});

describe('the frame writer', () => {
  it('escapes the characters that each version defines, and none in 1.0', () => {
    const pairs = ['a:b', 'c\\d\ne\rf'];
    assert.equal(frameText(RULES['1.2'], 'X', pairs), 'X\na\\cb:c\\\\d\\ne\\rf\n\n');
    assert.equal(frameText(RULES['1.1'], 'X', pairs), 'X\na\\cb:c\\\\d\\ne\rf\n\n');
    assert.equal(frameText(RULES['1.0'], 'X', ['a', 'b:c\\d']), 'X\na:b:c\\d\n\n');
    assert.equal(frameText(CONNECT_RULES, 'CONNECTED', ['a', 'b:c'], 'body'), 'CONNECTED\na:b:c\n\nbody');
  });
});

function bytes(text: string): string {
  return Buffer.from(text.toWellFormed()).toString('latin1');
}
