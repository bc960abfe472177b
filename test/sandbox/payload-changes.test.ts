import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { json, patientSandbox, textOf, verdictsOf } from './elements.ts';

describe('Whether a selector changes the payload', () => {
  const sandbox = patientSandbox();
  after(() => sandbox.stop());

  /** Where one selector stores a reference to the payload, and how the next one changes the payload through it. */
  const WAYS: readonly (readonly [where: string, leave: string, change: string])[] = [
    ['the state', 'env.state.p = p', 'env.state.p.a = 2'],
    [
      'the state, until it is used',
      'env.state.p = p',
      'const { p } = env.state; delete env.state.p; p.a = 2',
    ],
    ['a symbol of the state', 'env.state[Symbol.iterator] = p', 'env.state[Symbol.iterator].a = 2'],
    ['the prototype of the state', 'Object.setPrototypeOf(env.state, { p })', 'env.state.p.a = 2'],
    ['another state', 'env.state = new Map([[1, p]])', 'env.state.get(1).a = 2'],
    ['env', 'env.p = p', 'env.p.a = 2'],
    ['the prototype of env', 'Object.setPrototypeOf(env, { p })', 'env.p.a = 2'],
    ['another message', 'env.other = { __proto__: env.msg, p }', 'env.other.p.a = 2'],
    ['the message', 'env.msg.p = p', 'env.msg.p.a = 2'],
    ['the prototype of the message', 'Object.setPrototypeOf(env.msg, { p })', 'env.msg.p.a = 2'],
    [
      'a getter of a header',
      'Object.defineProperty(env.msg.hdrs, "x", { get: () => { p.a += 0.5; return "v" }, enumerable: true, configurable: true }); p.a = 1',
      'env.msg.hdrs.x; env.msg.hdrs.x',
    ],
    [
      'the prototype of the headers',
      'Object.setPrototypeOf(env.msg.hdrs, { get x() { p.a = 2 } })',
      'env.msg.hdrs.x',
    ],
  ];

  /** Ways to make a part of `env` a part of the payload, and changes of that part. */
  const PARTS: readonly (readonly [what: string, leave: string, change: string, stored: object])[] = [
    ['the headers', 'env.msg.payload.h = env.msg.hdrs', 'env.msg.hdrs.b = "2"', { a: 1, h: { b: '2' } }],
    ['the state', 'env.msg.payload = env.state', 'env.state.x = 1', { x: 1 }],
    [
      'another message',
      'env.msg.payload.e = { ...env }; env.msg.payload.e.msg = 0',
      'env.state.x = 1',
      { a: 1, e: { msg: 0, state: { x: 1 } } },
    ],
    [
      'a toJSON',
      'env.msg.payload = { toJSON() { env.state.p = this; return { n: this.n } } }',
      'env.state.p.n = 3',
      { n: 3 },
    ],
  ];

  describe('a payload that contains a part of something else', () => {
    for (const [what, leave, change, stored] of PARTS) {
      it(`is stored changed when that part changes: ${what}`, async () => {
        const program = sandbox.open([
          `env => { ${leave}; return true }`,
          `env => { ${change}; return true }`,
        ]);
        const verdicts = await verdictsOf(program, json({ a: 1 }));
        assert.equal(verdicts[1]?.error, null);
        assert.deepEqual(JSON.parse(textOf(verdicts[1]?.body) ?? '{}'), stored);
        program.close();
      });
    }

    it('is stored changed if a getter of a header changes it while headers are stored', async () => {
      const program = sandbox.open([
        'env => { Object.defineProperty(env.msg.hdrs, "x", { get: () => { env.msg.payload.a = 2; return "v" }, enumerable: true }); return true }',
        'env => true',
      ]);
      const verdicts = await verdictsOf(program, json({ a: 1 }));
      assert.deepEqual(JSON.parse(textOf(verdicts[1]?.body) ?? '{}'), { a: 2 });
      program.close();
    });

    it('is stored as serialized each time if its toJSON returns a different value', async () => {
      const program = sandbox.open([
        'env => { let n = 0; env.msg.payload = { toJSON() { n += 1; return { n } } }; return true }',
        'env => true',
        'env => env.msg.tries >= 0',
      ]);
      const bodies = (await verdictsOf(program, json({ a: 1 }))).map((verdict) => textOf(verdict.body));
      assert.deepEqual(bodies, ['{"n":1}', '{"n":2}', '{"n":3}']);
      program.close();
    });

    for (const [when, leave] of [
      ['its toJSON', '{ toJSON() { env.msg.payload = { a: 1 }; return { a: 2 } } }'],
      [
        'a getter of a header',
        '{ a: 2 }; Object.defineProperty(env.msg.hdrs, "x", { get: () => { env.msg.payload = { a: 1 }; return "v" }, enumerable: true })',
      ],
    ]) {
      it(`is stored as the original again if ${when} restores that while it is stored`, async () => {
        const program = sandbox.open([
          `env => { const p = env.msg.payload; env.msg.payload = ${leave}; return true }`,
          'env => true',
        ]);
        const bodies = (await verdictsOf(program, json({ a: 1 }))).map((verdict) => textOf(verdict.body));
        assert.deepEqual(bodies, ['{"a":2}', '{"a":1}']);
        program.close();
      });
    }
  });

  describe('a payload that a selector changes by a reference left by another one', () => {
    for (const [where, leave, change] of WAYS) {
      it(`is stored changed if the reference was left in ${where}`, async () => {
        const program = sandbox.open([
          `env => { const p = env.msg.payload; ${leave}; return true }`,
          `env => { ${change}; return true }`,
          'env => true',
        ]);
        const verdicts = await verdictsOf(program, json({ a: 1 }));
        assert.equal(verdicts[1]?.error, null);
        const stored = JSON.parse(textOf(verdicts[1]?.body) ?? '{}');
        assert.ok(stored.a >= 2, JSON.stringify(stored));
        program.close();
      });
    }

    it('is stored unchanged if the selector that left the reference failed', async () => {
      const program = sandbox.open([
        'env => { env.state.p = env.msg.payload; throw new Error("failed") }',
        'env => { env.state.p.a = 2; return true }',
      ]);
      const [failed, next] = await verdictsOf(program, json({ a: 1 }));
      assert.match(failed?.error ?? '', /failed/);
      assert.equal(next?.body, null);
    });

    it('is stored changed if a pure selector reads it and a getter in it changes it', async () => {
      const program = sandbox.open([
        'env => { const p = env.msg.payload; let n = 0; Object.defineProperty(p, "b", { get: () => { n += 1; return n }, enumerable: true }); return true }',
        'env => env.msg.payload.b > 0',
      ]);
      const [first, second] = await verdictsOf(program, json({ a: 1 }));
      const [one, two] = [first, second].map((verdict) => JSON.parse(textOf(verdict?.body) ?? '{}').b);
      assert.ok(two > one, `${one}, ${two}`);
    });
  });
});
