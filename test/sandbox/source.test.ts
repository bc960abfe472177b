import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { QuaysideError } from '../../src/model/errors.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { readSelector } from '../../src/sandbox/thread/source.ts';
import { patientSandbox } from './elements.ts';

describe('The source of a selector', () => {
  const sandbox = patientSandbox();
  after(() => sandbox.stop());

  const check = (source: string, path = 'selector'): Promise<void> =>
    sandbox.check([{ source, path }], 'user');

  /** A selector, its error message, and the place of the error: `line:column` or null. */
  type Refusal = readonly [source: string, message: RegExp, place: string | null];

  const REFUSED: readonly Refusal[] = [
    ['', /empty/, null],
    [' \n\t', /empty/, null],
    ['env => {', /ends too soon/, '1:9'],
    ['env =>\n  env.msg.', /ends too soon/, '2:11'],
    ['env => (\r\n  1', /ends too soon/, '2:4'],
    ['env => `${', /ends too soon/, '1:11'],
    ['\n\n  env => 1 1', /Unexpected token/, '3:12'],
    ['env =>\u2028 1 +* 2', /Unexpected token/, '2:5'],
    ['env => 1 +* 2', /Unexpected token/, '1:11'],
    ['env => {\n  return 1 1;\n}', /Unexpected token/, '2:12'],
    ['a = > b', /Unexpected token/, '1:5'],
    ['return true', /Unexpected token|return/, '1:1'],
    ['if (env) true', /Unexpected token/, '1:1'],
    ['env => 1;;', /Unexpected token/, '1:9'],
    ['env => 1 /* open', /Unterminated comment/, '1:10'],
    ['env => "open', /Unterminated string/, '1:8'],
    ['env => /(/', /regular expression/, '1:9'],
    ['env => { with (env) {} }', /strict/, '1:10'],
    ['env => 017', /number|octal/i, '1:8'],
    ['env => { delete env }', /strict/i, '1:10'],
    ['async env => true', /async/, '1:1'],
    ['async function (env) {}', /async/, '1:1'],
    ['env => (async () => true)()', /async/, '1:9'],
    ['env => ({ async go() {} }).go()', /async/, '1:19'],
    ['env => { async function* f() {} }', /async/, '1:10'],
    ['function* (env) { yield 1 }', /generator/, '1:1'],
    ['env => import("node:fs")', /import/, '1:8'],
    ['env => import.meta', /import\.meta/, '1:8'],
    ['import fs from "node:fs"', /./, '1:8'],
    ['await env', /./, '1:7'],
    // More than one expression, by closing the parentheses around it.
    ['1), (2', /one expression/, null],
    ['env => 1); let kept = 0; (env => kept++', /one expression/, null],
    ['env => 1) ; ( env => 2', /one expression/, null],
  ];

  const ACCEPTED = [
    'env => true',
    'env => true;',
    'env => true ;\n',
    'env => { return true; }',
    'function (env) { return true; }',
    'function route(env) { return env.msg.hdrs.a; }',
    '(env) => true',
    '((env => true))',
    '/* why */ env => true // because',
    '({ msg: { hdrs } }) => hdrs.a',
    'env.msg.hdrs.type === "order"',
    '!env.msg.hdrs.done',
    '({ delay: 3 })',
    '`text` in {}',
    'env => { function* three() { yield 3; } return [...three()].length; }',
    'env => /(?<year>\\d{4})/v.test(env.msg.hdrs.date)',
  ];

  describe('reading a selector', () => {
    for (const [source, message, place] of REFUSED) {
      it(`rejects ${JSON.stringify(source)}`, async () => {
        await assert.rejects(check(source, 'dst[2].selector'), (error) => {
          assert.ok(error instanceof QuaysideError);
          assert.equal(error.code, 'invalid-body');
          assert.equal(error.details.parameter, 'dst[2].selector');
          assert.match(error.message, message);
          assert.ok(error.message.startsWith('dst[2].selector'));
          const { extra } = error.details;
          assert.equal(extra === undefined ? null : `${extra.line}:${extra.column}`, place);
          return true;
        });
      });
    }

    for (const source of ACCEPTED) it(`accepts ${JSON.stringify(source)}`, () => check(source));

    it('accepts at most 8 KiB, counted in bytes', async () => {
      const ofBytes = (bytes: number): string => `env => "${'é'.repeat((bytes - 10) / 2)}" `;
      assert.equal(Buffer.byteLength(ofBytes(LIMITS.selectorBytes)), LIMITS.selectorBytes);
      await check(ofBytes(LIMITS.selectorBytes));
      await assert.rejects(check(`${ofBytes(LIMITS.selectorBytes)}  `), /at most 8192 bytes/);
    });

    it('rejects source that is nested too deeply, and continues to work', async () => {
      for (const [open, close] of [
        ['(', ')'],
        ['[', ']'],
        ['!', ''],
        ['{a:', '}'],
        ['x=>', ''],
      ] as const) {
        const depth = Math.floor((LIMITS.selectorBytes - 1) / (open.length + close.length));
        const refusal = await check(`${open.repeat(depth)}1${close.repeat(depth)}`).catch((error) => error);
        if (refusal !== undefined) assert.ok(refusal instanceof QuaysideError, `${open}: ${refusal}`);
      }
      await check('env => true');
    });

    it('builds no regular expression from the source: V8 would take a second for one of 8 KiB', async () => {
      const built: unknown[] = [];
      const { RegExp: builtIn } = globalThis;
      globalThis.RegExp = new Proxy(builtIn, {
        construct(target, given) {
          built.push(given[0]);
          return Reflect.construct(target, given);
        },
      });
      try {
        readSelector('env => /[\\p{RGI_Emoji}\\p{L}]/v.test("a")');
      } finally {
        globalThis.RegExp = builtIn;
      }
      assert.ok(
        !built.some((pattern) => String(pattern).includes('RGI_Emoji')),
        'the regular expression was built',
      );
    });
  });

  describe('whether a selector is pure', () => {
    const PURE = [
      'env => env.msg.payload.type === "order"',
      'env.msg.payload.items.some((item) => item.price > 100)',
      'env => { let sum = 0; for (const { price } of env.msg.payload.items) sum += price; return sum > 5 }',
      'env => Object.keys(env.msg.payload).length > 2 && /^a/i.test(env.msg.payload.name?.trim())',
      'env => new Date(env.msg.payload.at).getTime() > Date.now()',
      'env => ({ delay: Math.max(0, Number(env.msg.payload.wait)) })',
      'env => { const [a, b = 1] = env.msg.payload; return a < b }',
    ];
    const MAY_CHANGE = [
      'env => { env.msg.payload.seen = true }',
      'env => env.msg.payload.n++',
      'env => env.msg.payload.items.sort()[0]',
      'env => env.msg.payload.items.reduce(Object.assign)',
      'env => { [env.msg.payload.a] = [1] }',
      'env => { for (env.msg.payload.a of [1]); }',
      'env => delete env.msg.payload.a',
      'env => { const f = (o) => o; return f(env.msg.payload) }',
      'env => env.msg.payload["pu" + "sh"](1)',
      'env => Reflect.set(env.msg.payload, "a", 1)',
      'env => { env.state.p = env.msg.payload }',
      'env => env.msg.payload.tag`text`',
      'env => new Proxy(env.msg.payload, {})',
      'env => { const { push } = []; push.call(env.msg.payload, 1) }',
      'env => { const Number = env.constructor.assign; return Number(env.msg.payload, { a: 1 }) }',
      'env => ((String = env.constructor.assign) => String(env.msg.payload, { a: 1 }))()',
      'env => { let Date; Date = env.constructor.assign; return Date(env.msg.payload, { a: 1 }) }',
      'env => ({ keys: env.constructor.assign }).keys(env.msg.payload, { a: 1 })',
      'env => ({ ["keys"]: env.constructor.assign }).keys(env.msg.payload, { a: 1 })',
      'env => env.msg.payload.map(env.constructor.assign)',
      'env => { const f = [].push; return [1].map(f) }',
      'env => ({ get a() { return env.msg.payload.pop() } }).a',
      'env => env.msg.payload.items?.[`push`](1)',
      'function (env) { for (const each of env.msg.payload) each.seen = 1 }',
      'env => { env.msg.payload ??= 1 }',
      'env => class { static { env.msg.payload.a = 1 } }',
    ];

    it('is true for selectors that only read', () => {
      for (const source of PURE) assert.equal(readSelector(source).isPure, true, source);
    });

    it('is false for all others', () => {
      for (const source of MAY_CHANGE) assert.equal(readSelector(source).isPure, false, source);
    });
  });
});
