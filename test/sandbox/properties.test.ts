import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import fc from 'fast-check';
import { checkHeaders } from '../../src/model/headers.ts';
import { readSelector } from '../../src/sandbox/thread/source.ts';
import { anyCharacter } from '../support/any-character.ts';
import { element, json, patientSandbox, textOf, verdictsOf } from './elements.ts';

/** Runs per property; `npm run test:long` uses 3,000, and `SANDBOX_RUNS=20000` is a long search. */
const numRuns = Number(process.env.SANDBOX_RUNS ?? 100);

describe('Properties of the sandbox', () => {
  const sandbox = patientSandbox();
  after(() => sandbox.stop());

  const codes = (from: number, to: number): fc.Arbitrary<string> =>
    fc.integer({ min: from, max: to }).map((code) => String.fromCharCode(code));
  const name = fc.oneof(
    fc.string({ unit: fc.constantFrom(..."abcxyz019!#$%&'*+-.^_`|~"), minLength: 1, maxLength: 12 }),
    fc.constantFrom('__proto__', 'constructor', 'prototype', 'hasownproperty', '0', '1', 'length'),
  );
  const value = fc.string({ unit: fc.oneof(codes(0x21, 0x7e), codes(0x80, 0xff)), maxLength: 20 });
  const headers = fc
    .uniqueArray(fc.tuple(name, value), { selector: ([key]) => key, maxLength: 12 })
    .map((pairs) => checkHeaders(pairs.flat()));
  const payload = fc.oneof(
    fc.jsonValue({ maxDepth: 4, stringUnit: anyCharacter }),
    fc.dictionary(fc.string(), fc.oneof(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.string()), {
      noNullPrototype: true,
    }),
    fc.array(fc.oneof(fc.double({ noNaN: true, noDefaultInfinity: true }), fc.maxSafeInteger())),
  );

  /** As a map, because an object that was serialized as JSON may list its names in another order. */
  function asMap(flat: readonly string[]): Map<string, string> {
    const map = new Map<string, string>();
    for (let at = 0; at < flat.length; at += 2) map.set(flat[at] as string, flat[at + 1] as string);
    return map;
  }

  describe('an element that passes a selector', () => {
    it('stays unchanged if it is only read, even completely', async () => {
      const looks = sandbox.open([
        'env => { for (const k in env.msg.hdrs) env.msg.hdrs[k]; JSON.stringify(env.msg.payload); return true }',
      ]);
      await fc.assert(
        fc.asyncProperty(headers, payload, async (flat, given) => {
          const [verdict] = await verdictsOf(looks, json(given, flat));
          assert.deepEqual([verdict?.error, verdict?.headers, verdict?.body], [null, null, null]);
        }),
        { numRuns },
      );
    });

    it('is returned equal if everything in it is written again', async () => {
      const rewrites = sandbox.open([
        'env => { env.msg.hdrs = { ...env.msg.hdrs }; env.msg.payload = [env.msg.payload]; return true }',
      ]);
      await fc.assert(
        fc.asyncProperty(headers, payload, async (flat, given) => {
          const [verdict] = await verdictsOf(rewrites, json(given, flat));
          assert.equal(verdict?.error, null);
          assert.deepEqual(asMap(verdict?.headers ?? []), asMap(flat));
          assert.equal(textOf(verdict?.body), JSON.stringify([given]));
        }),
        { numRuns },
      );
    });

    it('is returned equal as a string and as bytes', async () => {
      const program = sandbox.open([
        'env => { const p = env.msg.payload; env.msg.payload = typeof p === "string" ? p + "!" : Uint8Array.of(...p, 33); return true }',
      ]);
      await fc.assert(
        fc.asyncProperty(
          fc.string({ unit: anyCharacter }),
          fc.uint8Array({ maxLength: 500 }),
          async (text, bytes) => {
            const wellFormed = text.toWellFormed();
            const [asText] = await verdictsOf(
              program,
              element({ body: wellFormed, contentType: 'text/plain' }),
            );
            assert.equal(textOf(asText?.body), `${wellFormed}!`);
            const [asBytes] = await verdictsOf(program, element({ body: bytes }));
            assert.deepEqual(Buffer.from(asBytes?.body ?? []), Buffer.concat([bytes, Buffer.from('!')]));
          },
        ),
        { numRuns },
      );
    });
  });

  /** Expressions over the headers `a`, `b` and `c`, with values from a few words. */
  const word = fc.constantFrom('', '0', '1', 'x', 'xy', 'a b');
  const expression = fc.letrec<{ test: string; text: string }>((tie) => ({
    text: fc.oneof(
      { maxDepth: 2 },
      fc.constantFrom('env.msg.hdrs.a', 'env.msg.hdrs.b', 'env.msg.hdrs["c"]', 'env.msg.id'),
      word.map((each) => JSON.stringify(each)),
      fc.tuple(tie('text'), tie('text')).map(([a, b]) => `(${a} + ${b})`),
      tie('text').map((a) => `String(${a}).toUpperCase()`),
      fc.tuple(tie('test'), tie('text'), tie('text')).map(([t, a, b]) => `(${t} ? ${a} : ${b})`),
    ),
    test: fc.oneof(
      { maxDepth: 3 },
      tie('text'),
      fc
        .tuple(tie('text'), fc.constantFrom('===', '!==', '<', '>='), tie('text'))
        .map((parts) => `(${parts.join(' ')})`),
      fc
        .tuple(tie('test'), fc.constantFrom('&&', '||', '??'), tie('test'))
        .map(([a, op, b]) => `((${a}) ${op} (${b}))`),
      tie('test').map((a) => `!(${a})`),
      tie('text').map((a) => `/^x|1$/.test(${a})`),
      fc.constantFrom('"a" in env.msg.hdrs', 'env.msg.tries > 1', 'Object.keys(env.msg.hdrs).length > 1'),
      tie('text').map((a) => `((env.msg.hdrs.b = ${a} + "w"), true)`),
      fc.constant('delete env.msg.hdrs.a'),
      fc.constant('env.msg.hdrs.a.length.toFixed(1)'),
    ),
  }));
  const someHeaders = fc.record({ a: word, b: word, c: word }, { requiredKeys: [] });

  describe('a selector over headers', () => {
    it('has the same result and effects as the same code in plain JavaScript', async () => {
      const sample = fc.tuple(
        fc.array(expression.test, { minLength: 1, maxLength: 3 }),
        fc.array(someHeaders, { minLength: 1, maxLength: 4 }),
      );
      await fc.assert(
        fc.asyncProperty(sample, async ([tests, maps]) => {
          const program = sandbox.open(tests);
          const inputs = maps.map((map, n) =>
            element({ id: `e${n}`, tries: n, headers: Object.entries(map).flat() }),
          );
          const answers = await program.select(inputs);
          program.close();
          for (const [n, map] of maps.entries()) {
            const answer = answers[n];
            if (answer?.outcome !== 'evaluated') assert.fail(`not evaluated: ${JSON.stringify(answer)}`);
            const got = answer.verdicts.map(({ accepted, error, headers: written }) => [
              accepted,
              error === null,
              written === null ? { ...map } : Object.fromEntries(asMap(written)),
            ]);
            assert.deepEqual(got, plainly(tests, map, n));
          }
        }),
        { numRuns },
      );
    });
  });

  /** The expected results in this engine, per destination: accepted, no error, the headers at that point. */
  function plainly(tests: readonly string[], map: object, n: number): [boolean, boolean, object][] {
    let hdrs: Record<string, string> = Object.assign(Object.create(null), map);
    return tests.map((test) => {
      const before = { ...hdrs };
      const env = { msg: { id: `e${n}`, tries: n, hdrs }, state: {} };
      try {
        const accepted = Boolean(new Function('env', `"use strict"; return (${test})`)(env));
        for (const value of Object.values(hdrs)) checkHeaders(['any', value]);
        return [accepted, true, { ...hdrs }];
      } catch {
        hdrs = Object.assign(Object.create(null), before);
        return [false, false, { ...hdrs }];
      }
    });
  }

  /** Statements over a payload `p`: some change it, some only look as if, some only read. */
  const STATEMENTS = [
    'p.a = 1',
    'p.n++',
    'p.n += p.list.length',
    'delete p.a',
    'p.list.push(2)',
    'p.list.sort()',
    'p.list.length = 1',
    'p.list.forEach((x, at, all) => { all[at] = x + "!" })',
    'p.list.reduce((sum, x) => sum + x, 0)',
    'p.list.toSorted().map(String).join()',
    'p.list.includes(p.n) && p.list.some((x) => x > 1)',
    'Object.assign(p, { z: p.n })',
    'Object.keys(p).filter((key) => key in p)',
    'Reflect.set(p, "r", 1)',
    'for (p.k of [1, 2]);',
    'for (const key in p) key.length',
    '[p.q] = [5]',
    '({ a: p.b } = { a: 7 })',
    'const { list: [first = 0] } = p; first + 1',
    'const f = (o) => { o.deep = { n: 1 } }; f(p)',
    'let n = p.n; n = 9; n++',
    'JSON.parse(JSON.stringify(p)).a = 2',
    'env.state.kept = p',
    'if (env.state.kept) env.state.kept.late = 1',
    'env.msg.payload = { was: p }',
    'env.msg.payload = p',
    'new Set(p.list).add(4)',
    'p.list?.concat([p]).flat()',
    'if (p.n > 2) throw p.n',
    'p.list.push.call(p.list, 8)',
    'const push = p.list.push; [3].forEach(push, p.list)',
    'Object.defineProperty(p, "hidden", { value: 1 })',
  ];

  describe('a selector over a payload', () => {
    it('changes the same as the same code in plain JavaScript', async () => {
      const body = fc.array(fc.constantFrom(...STATEMENTS), { minLength: 1, maxLength: 3 });
      const given = fc.record(
        { a: fc.nat(3), n: fc.nat(3), list: fc.array(fc.nat(5), { maxLength: 4 }) },
        { noNullPrototype: true },
      );
      await fc.assert(
        fc.asyncProperty(fc.array(body, { minLength: 1, maxLength: 3 }), given, async (bodies, value) => {
          const selectors = bodies.map(
            (lines) =>
              `env => { const p = env.msg.payload; ${lines.map((line) => `{ ${line} }`).join(' ')} }`,
          );
          const program = sandbox.open(selectors);
          const verdicts = await verdictsOf(program, json(value));
          program.close();
          assert.deepEqual(
            verdicts.map(({ body: written, error }) => [
              textOf(written) ?? JSON.stringify(value),
              error === null,
            ]),
            changedPlainly(selectors, value),
          );
        }),
        { numRuns },
      );
    });
  });

  it('decides by headers alone as it does in a VM', async () => {
    const names = ['a', 'b', 'a-b', '0', 'length', 'hdrs', 'tostring'];
    const inherited = ['constructor', '__proto__', 'toString'];
    /** The rare ones need a VM. */
    const usually = (usual: readonly string[], rare: readonly string[]): fc.Arbitrary<string> =>
      fc.oneof(
        { arbitrary: fc.constantFrom(...usual), weight: 30 },
        { arbitrary: fc.constantFrom(...rare), weight: 1 },
      );
    const constant = usually(
      ['"x"', "'\\u0078'", '"é"', '"1"', '""', '1', '0', '0x1', 'true', 'false', 'null', 'undefined'],
      ['-0', 'NaN', '0n', '/x/'],
    );
    const header = fc
      .tuple(
        usually(names, inherited),
        fc.boolean(),
        usually(['env.msg.hdrs', 'env["msg"].hdrs', 'env /* of a */ .msg\n.hdrs'], ['env.msg?.hdrs']),
      )
      .map(([each, isPlain, object]) =>
        isPlain && /^[a-z_]+$/i.test(each) ? `${object}.${each}` : `${object}[${JSON.stringify(each)}]`,
      );
    const { expression } = fc.letrec<{ expression: string }>((tie) => ({
      expression: fc.oneof(
        { maxDepth: 5, depthSize: 'medium' },
        header,
        constant,
        fc
          .tuple(tie('expression'), fc.constantFrom('===', '!==', '&&', '||', '??'), tie('expression'))
          .map(([left, operator, right]) => `(${left}) ${operator} (${right})`),
        tie('expression').map((inner) => `!(${inner})`),
        fc
          .tuple(tie('expression'), tie('expression'), tie('expression'))
          .map(([test, yes, no]) => `((${test}) ? ${yes} : ${no})`),
      ),
    }));
    const form = fc.constantFrom(
      (text: string) => text,
      (text: string) => `env => ${text}`,
      (text: string) => `(env) => { return ${text}; }`,
      (text: string) => `function (env) { return ${text} }`,
      (text: string) => `function (env) { "use it"; return ${text} }`,
      (text: string) => `(NaN) => ${text.replaceAll('env', 'NaN')}`,
      (text: string) => `(undefined) => ${text.replaceAll('env', 'undefined')}`,
      (text: string) => `(env, more = 1) => ${text}`,
    );
    const few = fc
      .uniqueArray(
        fc.tuple(fc.constantFrom(...names, ...inherited), fc.constantFrom('x', 'Ã©', 'é', '1', '0', '')),
        { selector: ([each]) => each },
      )
      .map((pairs) => element({ headers: pairs.flat() }));
    let decided = 0;
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(form, expression), { minLength: 10, maxLength: 20 }),
        fc.array(few, { minLength: 1, maxLength: 3 }),
        async (all, elements) => {
          const selectors = all.map(([write, text]) => write(text));
          // The others would make all of them run in the VM, as the last one of `inVm` does.
          const simple = selectors.filter((source) => readSelector(source).headerTest !== null);
          const alone = sandbox.open(simple);
          const inVm = sandbox.open([...simple, 'env => String(env)']);
          const [answers, expected] = await Promise.all([alone.select(elements), inVm.select(elements)]);
          alone.close();
          inVm.close();
          for (const [index, answer] of answers.entries()) {
            const reference = expected[index];
            assert.ok(answer.outcome === 'evaluated' && reference?.outcome === 'evaluated');
            assert.deepEqual(answer.verdicts, reference.verdicts.slice(0, -1));
          }
          decided += simple.length;
        },
      ),
      { numRuns },
    );
    assert.ok(decided > numRuns, `only ${decided} selectors ran without a VM`);
  });

  /**
   * The expected results in this engine, per destination: the payload at that point, and whether there was no error.
   */
  function changedPlainly(selectors: readonly string[], value: object): [string, boolean][] {
    const msg: { payload: unknown } = { payload: structuredClone(value) };
    const env = { msg, state: {} };
    return selectors.map((selector) => {
      const before = JSON.stringify(msg.payload);
      try {
        new Function(`"use strict"; return (${selector})`)()(env);
        return [JSON.stringify(msg.payload), true];
      } catch {
        msg.payload = JSON.parse(before);
        return [before, false];
      }
    });
  }
});
