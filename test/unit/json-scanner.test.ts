import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import fc from 'fast-check';
import { hasMoreValues, isJson, JsonScanner, SHORT_JSON } from '../../src/util/json-scanner.ts';

/** The message of the error that `run` throws; null: it throws none. */
function errorOf(run: () => unknown): string | null {
  try {
    run();
    return null;
  } catch (error) {
    assert.ok(error instanceof SyntaxError, `${error}`);
    return error.message;
  }
}

/** Scans a whole text, in steps of about so many characters. */
function scan(text: string, step = Number.POSITIVE_INFINITY): JsonScanner {
  const scanner = new JsonScanner(text);
  while (!scanner.value(step));
  scanner.end();
  return scanner;
}

/** Checks that the scanner and `JSON.parse` accept the same texts, and find errors at the same position. */
function compare(text: string): void {
  const parsed = errorOf(() => JSON.parse(text));
  const scanned = errorOf(() => scan(text));
  assert.equal(
    scanned === null,
    parsed === null,
    `JSON.parse: ${parsed}; the scanner: ${scanned}; ${JSON.stringify(text)}`,
  );
  assert.equal(
    errorOf(() => scan(text, 1)),
    scanned,
  );
  const position = positionIn(parsed, text);
  if (position !== null) assert.equal(positionIn(scanned, text), position, `${parsed}; ${scanned}`);
}

function positionIn(message: string | null, text: string): number | null {
  if (message?.includes('end of JSON')) return text.length;
  const [, position] = /at position (\d+)/.exec(message ?? '') ?? [];
  return position === undefined ? null : Number(position);
}

const space = fc.string({ unit: fc.constantFrom(' ', '\t', '\n', '\r'), maxLength: 2 });
/** What a JSON text consists of, and what some parsers accept. */
const piece = fc.oneof(
  fc.constantFrom(...'{}[]",:\\/bfnrtu0123456789.-+eExX \t\n\r\0\u001f\u007f\u00a0\u2028\ufeff\ud83d\ude00'),
  fc.constantFrom(
    'true',
    'false',
    'null',
    'NaN',
    '""',
    '"a":',
    '\\u00e9',
    '\\ud83d',
    '1e5',
    '-0',
    '{"":[',
    '//',
  ),
);
const anyPieces = fc.array(piece, { maxLength: 12 }).map((pieces) => pieces.join(''));
const jsonText = fc
  .tuple(fc.jsonValue({ maxDepth: 5 }), fc.nat(3), space, space)
  .map(([value, indent, before, after]) => before + JSON.stringify(value, null, indent) + after);
const changedText = fc
  .tuple(
    jsonText,
    fc.array(fc.tuple(fc.nat(), fc.nat(3), fc.oneof(piece, fc.constant(''))), { maxLength: 3 }),
  )
  .map(([text, changes]) =>
    changes.reduce((before, [place, length, more]) => {
      const at = place % (before.length + 1);
      return before.slice(0, at) + more + before.slice(at + length);
    }, text),
  );

describe('The JSON scanner', () => {
  it('accepts what JSON.parse accepts, and nothing else', () => {
    fc.assert(fc.property(fc.oneof(anyPieces, jsonText, changedText), compare), { numRuns: 3000 });
  });

  it('accepts each form of a value as JSON.parse does', () => {
    const words = ['true', 'null', 'false', 'tru', 'nulll', 'True', 'undefined', 'NaN', 'Infinity', "'a'"];
    const numbers = [
      '0',
      '-0',
      '01',
      '-01',
      '1.',
      '.5',
      '1.5',
      '-',
      '+1',
      '1e',
      '1e+',
      '1E-05',
      '0e0',
      '1.e1',
    ];
    const more = ['0x1', '1_0', '-1.0e+2', '1e400', '--1', '1.5.5', '00', '1e1.5', '١'];
    const strings = [
      '""',
      '"',
      '"\\',
      '"\\"',
      '"\\""',
      '"\\u12"',
      '"\\u123G"',
      '"\\uD83D"',
      '"\\x41"',
      '"\\U0041"',
    ];
    const characters = ['"\n"', '"\t"', '"\u001f"', '"\u007f"', '"\u2028"', '"\0"', '"\\\n"', '"\ud83d"'];
    const arrays = ['[]', '[ ]', '[,]', '[1,]', '[1 2]', '[1', '[', ']', '[1}', '[[],[]]', '[1]]', '[,1]'];
    const objects = [
      '{}',
      '{ }',
      '{,}',
      '{"a"}',
      '{"a":}',
      '{"a":1,}',
      '{"a":1 "b":2}',
      '{a:1}',
      '{"a":1]',
      '{1:1}',
    ];
    const spaces = [
      '',
      ' ',
      ' 1 ',
      '\ufeff1',
      '\u00a01',
      '1\u00a0',
      '\v1',
      '\f1',
      '1 1',
      '{}{}',
      '//1',
      '1\0',
    ];
    for (const text of [words, numbers, more, strings, characters, arrays, objects, spaces].flat()) {
      for (const [before, after] of [
        ['', ''],
        ['[', ']'],
        ['{"a":', '}'],
        [' [1, ', ', 2] '],
      ]) {
        compare(`${before}${text}${after}`);
      }
    }
  });

  it('knows at each depth whether it is in an array or in an object', () => {
    const nesting = fc.array(fc.boolean(), { minLength: 1, maxLength: 200, size: 'max' });
    fc.assert(
      fc.property(nesting, fc.nat(), (isObject, wrong) => {
        const closers = isObject.map((is) => (is ? '}' : ']')).reverse();
        const opened = `${isObject.map((is) => (is ? '{"a":' : '[')).join('')}1`;
        compare(opened + closers.join(''));
        const at = wrong % closers.length;
        compare(opened + closers.with(at, closers[at] === '}' ? ']' : '}').join(''));
      }),
    );
    const million = 1_000_000;
    assert.equal(scan('['.repeat(million) + ']'.repeat(million)).valueCount, million);
    assert.match(`${errorOf(() => scan('['.repeat(million)))}`, /end of JSON/);
  });

  it('counts the values, those within others included', () => {
    const count = (value: unknown): number =>
      typeof value === 'object' && value !== null
        ? Object.values(value).reduce((sum: number, one) => sum + count(one), 1)
        : 1;
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = JSON.stringify(value);
        assert.equal(scan(text, 3).valueCount, count(value));
        assert.equal(hasMoreValues(text, count(value) - 1), true);
        assert.equal(hasMoreValues(text, 2 * count(value)), false);
      }),
    );
  });

  it('reads the members of an object as JSON.parse does, also repeated ones and __proto__', () => {
    const name = fc.oneof(fc.string(), fc.constantFrom('__proto__', 'a', 'b', 'constructor'));
    const member = fc.tuple(name, jsonText, space, space, fc.boolean());
    fc.assert(
      fc.property(fc.array(member), space, (members, before) => {
        const written = members.map(([key, value, space1, space2, escapes]) => {
          const quoted = escapes ? `"${[...key].map(escaped).join('')}"` : JSON.stringify(key);
          return `${space1}${quoted}${space2}:${value}`;
        });
        const text = `${before}{${written.join(',')}${before}}${before}`;
        const scanner = new JsonScanner(text);
        assert.ok(scanner.isAtObject());
        const read: [string, unknown][] = [];
        for (let next = scanner.nextMember(); next !== null; next = scanner.nextMember()) {
          const from = scanner.at;
          while (!scanner.value(1));
          read.push([JSON.parse(`"${next}"`) as string, JSON.parse(text.slice(from, scanner.at))]);
        }
        scanner.end();
        assert.deepEqual(Object.fromEntries(read), JSON.parse(text));
        assert.equal(read.length, members.length);
      }),
    );
    for (const text of [
      '[]',
      '{',
      '{"a":1',
      '{"a":1,}',
      '{,}',
      '{"a" 1}',
      '{"a":1}}',
      '{"a":1]',
      '{"a":1 "b":2}',
    ]) {
      const read = (): void => {
        const scanner = new JsonScanner(text);
        while (scanner.nextMember() !== null) scanner.value();
        scanner.end();
      };
      assert.notEqual(errorOf(read), null, text);
    }
  });

  it('needs several steps for a long text', () => {
    let steps = 1;
    const scanner = new JsonScanner(JSON.stringify(Array.from({ length: 1000 }, (_, i) => [i])));
    while (!scanner.value(100)) steps += 1;
    assert.ok(steps > 50, `${steps} steps`);
  });
});

describe('isJson', () => {
  it('accepts short and long texts alike', () => {
    for (const more of ['', ' '.repeat(SHORT_JSON), '1,'.repeat(SHORT_JSON)]) {
      assert.equal(isJson(`{"a":[${more}1]}`), true);
      assert.equal(isJson(`{"a":[${more}1}`), false);
      assert.equal(isJson(`{"a":[${more}1]} 1`), false);
    }
  });
});

function escaped(character: string): string {
  return Array.from(
    character.split(''),
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`,
  ).join('');
}
