import assert from 'node:assert/strict';
import { describe, it } from 'node:test';
import { makeLogger, textLine } from '../../src/app/log.ts';

/** The lines that a logger of this level writes when `say` uses it. */
function linesOf(use: (logger: ReturnType<typeof makeLogger>) => void, level = 'info'): string[] {
  const lines: string[] = [];
  use(makeLogger(level, { write: (line) => void lines.push(line) }));
  return lines;
}

function lineOf(fields: object, message = 'x'): { text: string; fields: Record<string, unknown> } {
  const [text = ''] = linesOf((logger) => logger.info(fields, message));
  return { text, fields: JSON.parse(text) };
}

describe('A log line', () => {
  it('has level, UTC time, fields and message, and ends with a line end', () => {
    const { text, fields } = lineOf({ event: 'start', port: 5 }, 'listening');
    assert.ok(text.endsWith('}\n'));
    const { time, ...rest } = fields;
    assert.match(String(time), /^\d{4}-.*Z$/);
    assert.deepEqual(rest, { level: 'info', event: 'start', port: 5, msg: 'listening' });
  });

  it('is written at or above the configured level', () => {
    const lines = linesOf((logger) => {
      logger.debug({}, 'no');
      logger.info({}, 'no');
      logger.warn({}, 'yes');
      logger.error({}, 'yes');
    }, 'warn');
    assert.equal(lines.length, 2);
  });

  it('escapes characters that a terminal acts on, without losing them', () => {
    const controls = 'a\u001b[2Jb\u0007\u007f\u009b31m\u2028\u202ec\r\nd';
    const { text, fields } = lineOf({ queue: controls, [controls]: 1 }, controls);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
    assert.doesNotMatch(text.slice(0, -1), /[\u0000-\u001f\u007f-\u009f\u2028\u202e]/);
    assert.equal(fields.queue, controls);
    assert.equal(fields.msg, controls);
  });

  it('masks URLs and values under secret names at any depth', () => {
    const { text } = lineOf(
      {
        url: 'redis://:CANARY@h',
        options: { password: 'CANARY', list: [{ token: 'CANARY' }] },
        authorization: 'CANARY',
      },
      'cannot reach postgres://u:CANARY@h/db?sslpassword=CANARY',
    );
    assert.ok(!text.includes('CANARY'), text);
  });

  it('has the name, code, message, stack and causes of an error, and no property that a driver attached', () => {
    const cause = Object.assign(new Error('refused by redis://:CANARY@h'), {
      code: 'ECONNREFUSED',
      command: { args: ['CANARY'] },
    });
    const { text, fields } = lineOf({ err: new TypeError('outer', { cause }) });
    assert.ok(!text.includes('CANARY'), text);
    const err = fields.err as { type: string; message: string; stack: string; causes: { code: string }[] };
    assert.equal(err.type, 'TypeError');
    assert.equal(err.message, 'outer');
    assert.match(err.stack, /mask-log\.test\.ts/);
    assert.equal(err.causes[0]?.code, 'ECONNREFUSED');
    assert.match(text, /redis:\/\/\*\*\*@h/);
  });

  it('has the errors of an AggregateError, and terminates on an error that causes itself', () => {
    const loop = new Error('loop');
    loop.cause = loop;
    const { text } = lineOf({ err: new AggregateError([new Error('one'), loop]) });
    assert.match(text, /"one"/);
    assert.match(text, /"loop"/);
  });
});

/** Each has a character that JSON escapes right before the end of a URL, or within one. */
const HOSTILE_TEXTS = [
  'x://h?token=1"',
  'x://h?token=\\',
  'x://h?token=\n"',
  'x://u:CANARY"@h"',
  'x://u:CANARY\\@h\\',
  'x://h","level":"error","x":"',
];

describe('A log line with a malicious URL from a client', () => {
  it('stays one event in JSON, with the fields that were logged', () => {
    for (const hostile of HOSTILE_TEXTS) {
      const { text, fields } = lineOf({ origin: hostile, [hostile]: [hostile], last: 1 }, hostile);
      assert.equal(text.split('\n').length, 2);
      assert.deepEqual([fields.level, fields.last], ['info', 1]);
      assert.equal(Object.keys(fields).length, 6);
      assert.ok(!text.includes('CANARY'), text);
    }
  });

  it('stays one event in text', () => {
    for (const hostile of HOSTILE_TEXTS) {
      const lines: string[] = [];
      const logger = makeLogger('info', { write: (line) => void lines.push(line) }, textLine);
      logger.warn({ origin: hostile, err: new Error(hostile), last: 1 }, hostile);
      assert.match(lines.join(''), /^\S+ WARN {2}.* last=1\n {4}Error: /);
      assert.ok(!lines.join('').includes('CANARY'));
    }
  });

  it('is masked in names of fields, in names, codes and messages of errors, and in results of toJSON', () => {
    const url = 'redis://:CANARY@h';
    const named = Object.assign(new Error(url, { cause: Object.assign(new Error(url), { code: url }) }), {
      name: url,
    });
    const lines = linesOf((logger) => {
      logger.error(named);
      logger.error({ err: named });
      logger.error({ [url]: { [url]: 1 }, made: { toJSON: () => url } }, url);
    });
    assert.equal(lines.length, 3);
    assert.doesNotMatch(lines.join(''), /CANARY/);
  });

  it('is written unchanged if it is not an event in JSON, except for characters that a terminal acts on', () => {
    assert.equal(textLine('{"level":"warn\n'), '{"level":"warn\n');
    assert.equal(textLine('{"level":1}\n'), '{"level":1}\n');
    assert.equal(textLine('null\u001b[2J\n'), 'null\\u001b[2J\n');
  });
});

describe('A log line for people', () => {
  const textOf = (fields: object, message: string): string => {
    const lines: string[] = [];
    makeLogger('info', { write: (line) => void lines.push(line) }, textLine).warn(fields, message);
    return lines.join('');
  };

  it('has time, level, message and fields in one line', () => {
    const text = textOf(
      { user: 'ann', address: '192.0.2.1', n: 3, why: 'two words', list: ['a'] },
      'it failed',
    );
    assert.match(
      text,
      /^\d\d:\d\d:\d\d\.\d{3} WARN {2}it failed {2}user=ann {2}address=192\.0\.2\.1 {2}n=3 {2}why="two words" {2}list=\["a"\]\n$/,
    );
  });

  it('lets no value from a client start a new line or act on the terminal', () => {
    const acting = 'a\u001b[2J\u009b31m\u2028\u202e\r\n12:00:00.000 ERROR forged';
    const text = textOf({ path: acting, [acting]: 1 }, acting);
    assert.equal(text.split('\n').length, 2);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is what is tested
    assert.doesNotMatch(text.slice(0, -1), /[\u0000-\u001f\u007f-\u009f\u2028\u202e]/);
  });

  it('shows the stacks of an error and its causes, with secrets masked', () => {
    const err = new Error('outer', { cause: new Error('redis://:CANARY@h is away') });
    const text = textOf({ err }, 'it failed');
    assert.match(
      text,
      /err=outer\n {4}Error: outer\n {8}at .*\n(.*\n)* {4}caused by:\n {4}Error: redis:\/\/\*\*\*@h is away\n/,
    );
    assert.ok(!text.includes('CANARY'));
  });
});
