import assert from 'node:assert/strict';
import { after, describe, it } from 'node:test';
import { element, json, patientSandbox, textOf, verdictsOf } from './elements.ts';

describe('Selectors that try to escape from the sandbox', () => {
  const sandbox = patientSandbox();
  after(() => sandbox.stop());

  /** The value of an expression over `env` in the sandbox, as a string; errors as `! …`. */
  async function inside(expression: string, input = element()): Promise<string> {
    const selector = `env => { let r; try { r = String(${expression}); } catch (e) { r = "! " + e; } throw r; }`;
    const [verdict] = await verdictsOf(sandbox.open([selector]), input);
    return verdict?.error ?? '';
  }

  /**
   * A selector that visits every object reachable without creating one, and throws a list of those that are not frozen.
   */
  const WALK = `env => {
  const roots = [
    globalThis, Object.getPrototypeOf(env.msg), [].values(), new Map().entries(), new Set().values(), ""[Symbol.iterator](),
    "".matchAll(/x/g), Object.getPrototypeOf(function* () {}).prototype, function* () {}, () => {}, function () {}, class {}.prototype.constructor,
    Iterator.from([]).map(String), Iterator.from({ next() {} }), (s => s)\`x\`, new Error("e"), (function () { return arguments })(),
    new Uint8Array(1), new DataView(new ArrayBuffer(1)), /x/g, new Date(0), new Proxy({}, {}), Symbol.iterator, 1n,
  ];
  const fresh = new Set(roots.slice(2));
  const seen = new Set();
  const open = [...roots];
  const loose = [];
  while (open.length > 0) {
    const next = open.pop();
    if ((typeof next !== "object" && typeof next !== "function") || next === null || seen.has(next)) continue;
    seen.add(next);
    if (!fresh.has(next) && !Object.isFrozen(next)) loose.push(Object.prototype.toString.call(next) + (next.name ?? ""));
    if (!fresh.has(next)) {
      for (const key of Reflect.ownKeys(next)) {
        const { value, get, set } = Object.getOwnPropertyDescriptor(next, key);
        open.push(value, get, set);
      }
    }
    open.push(Object.getPrototypeOf(next));
  }
  throw seen.size > 500 ? "loose: " + loose.join() : "walked only " + seen.size;
}`;

  const GLOBALS =
    'AggregateError Array ArrayBuffer BigInt BigInt64Array BigUint64Array Boolean DOMException DataView Date Error ' +
    'EvalError Float16Array Float32Array Float64Array Function Infinity Int16Array Int32Array Int8Array InternalError ' +
    'Iterator JSON Map Math NaN Number Object Promise Proxy RangeError ReferenceError Reflect RegExp Set String ' +
    'SuppressedError Symbol SyntaxError TypeError URIError Uint16Array Uint32Array Uint8Array Uint8ClampedArray ' +
    'WeakMap WeakSet atob btoa console decodeURI decodeURIComponent encodeURI encodeURIComponent escape eval globalThis ' +
    'isFinite isNaN parseFloat parseInt undefined unescape';

  describe('what they can reach', () => {
    it('includes no globals but those of the language', async () => {
      const program = sandbox.open([
        'env => { env.msg.hdrs.names = Reflect.ownKeys(globalThis).filter((k) => typeof k === "string").sort().join(" "); return 1 }',
      ]);
      const [verdict] = await verdictsOf(program, element());
      assert.equal(verdict?.headers?.[1], GLOBALS);
      for (const name of [
        'process',
        'require',
        'module',
        'exports',
        'global',
        'Buffer',
        'fetch',
        'setTimeout',
        'std',
        'os',
        'print',
        'WebAssembly',
        'SharedArrayBuffer',
        'Atomics',
        'performance',
        'queueMicrotask',
        'WeakRef',
        'host',
        '__dirname',
      ]) {
        assert.equal(await inside(`typeof ${name}`), 'undefined', name);
      }
    });

    it('does not reveal the time zone of the server', async () => {
      assert.equal(
        await inside('new Date(0).getTimezoneOffset() + new Date(0).toString()'),
        '0Thu Jan 01 1970 00:00:00 GMT+0000',
      );
    });

    it('does not allow compiling new code', async () => {
      for (const expression of [
        'eval("1")',
        '(0, eval)("this")',
        'Function("return this")()',
        '(() => {}).constructor("return this")()',
        '(function* () {}).constructor("yield this")',
        'Object.getPrototypeOf(function* () {}).constructor("yield 1")',
        'env.msg.constructor.constructor("return this")()',
        'Reflect.construct(Function, ["return this"])',
        'Reflect.construct(Object, [], Function) && Function.prototype.constructor("1")',
      ]) {
        assert.match(
          await inside(expression),
          /^! TypeError: .*(not available|constructor|undefined)/,
          expression,
        );
      }
    });

    it('excludes the global this, callers, and objects of the host', async () => {
      assert.equal(await inside('(function () { return this })()'), 'undefined');
      assert.match(await inside('(function () { return arguments.callee })()'), /^! TypeError/);
      assert.match(await inside('(function f() { return f.caller })()'), /^(undefined|! TypeError)/);
      assert.equal(
        await inside('Object.getOwnPropertyNames(env.msg).sort()'),
        'hdrs,id,mature,payload,tries',
      );
      assert.equal(
        await inside('Object.getOwnPropertyNames(Object.getPrototypeOf(env.msg)).sort()'),
        'hdrs,id,mature,payload,tries',
      );
      assert.equal(await inside('env.msg.constructor === Object'), 'true');
      assert.match(await inside('Object.getPrototypeOf(env.msg).payload'), /^! TypeError/);
      assert.equal(
        await inside('Object.prototype.toString.call(new Proxy(env.msg, {}).payload)'),
        '[object Uint8Array]',
      );
      assert.equal(await inside('Object.prototype.toString.call(env.msg.hdrs)'), '[object Object]');
    });

    it('does not include host paths or functions in error stacks', async () => {
      const bad = element({ body: '{', contentType: 'application/json' });
      for (const statement of [
        'env.msg.payload',
        'env.msg.hdrs = null',
        'null.x',
        'env.msg.id = 1',
        'eval("")',
      ]) {
        const stack = await inside(
          `(() => { try { ${statement}; return "none" } catch (e) { return e.stack + Object.keys(e) } })()`,
          bad,
        );
        assert.doesNotMatch(stack, /file:|node:|\/|\\|worker|\.ts|\.js/, stack);
        assert.notEqual(stack, 'none');
      }
    });

    it('includes no shared object that can be changed', async () => {
      const [verdict] = await verdictsOf(sandbox.open([WALK]), element());
      assert.equal(verdict?.error, 'loose: ');
    });
  });

  describe('what one element leaves behind', () => {
    const ROOTS = [
    'globalThis', 'Object', 'Object.prototype', 'Array.prototype', 'Function.prototype', 'Math', 'JSON', 'Symbol',
    'Error', 'Error.prototype', 'RegExp', 'Date', 'Promise', 'eval', 'Reflect', 'Iterator.prototype',
    'Object.getPrototypeOf([].values())', 'Object.getPrototypeOf(function* () {}.prototype)',
    'Object.getPrototypeOf(env.msg)', 'Object.getOwnPropertyDescriptor(Object.getPrototypeOf(env.msg), "payload").get',
    'Object.getOwnPropertyDescriptor(Object.prototype, "__proto__").set', '(s => s)`x`', 'self', 'self.prototype',
    'Array.prototype.map', 'Uint8Array', 'Object.getPrototypeOf(Uint8Array)', 'Map.prototype', 'RegExp.prototype',
  ]; // biome-ignore format: a list

    it('is not found by later elements on any shared object', async () => {
      for (const root of ROOTS) {
        const leak = `const o = ${root}; const found = o.leak;
        for (const write of [() => { o.leak = 1 }, () => Object.defineProperty(o, "leak", { value: 1 }), () => Object.setPrototypeOf(o, { leak: 1 })])
          try { write() } catch {}`;
        const program = sandbox.open([
          `function self(env) { ${leak} throw String(found) }`,
          `function self(env) { ${leak} throw String(found) }`,
        ]);
        const answers = await program.select([element(), element()]);
        for (const answer of [...answers, ...(await program.select([element()]))]) {
          assert.equal(answer.outcome, 'evaluated');
          assert.deepEqual(
            answer.verdicts.map(({ error }) => error),
            ['undefined', 'undefined'],
            root,
          );
        }
      }
    });

    it('does not include its env, headers or payload', async () => {
      const program = sandbox.open([
        `env => {
        const found = [env.leak, env.state.leak, env.msg.hdrs.leak, env.msg.payload.leak].join();
        env.leak = env.state.leak = env.msg.hdrs.leak = env.msg.payload.leak = 1;
        throw found;
      }`,
      ]);
      for (const answer of await program.select([json({}), json({}), json({})])) {
        assert.equal(answer.outcome === 'evaluated' && answer.verdicts[0]?.error, ',,,');
      }
    });

    it('does not include engine state such as error formatting or the last regular expression match', async () => {
      const program = sandbox.open([
        `env => {
        const found = [typeof Error.prepareStackTrace, typeof Error.stackTraceLimit, RegExp.$1, /a/g.lastIndex].join();
        try { Error.prepareStackTrace = () => 1 } catch {}
        try { Error.stackTraceLimit = 1 } catch {}
        /(.)/g.exec("z");
        throw found;
      }`,
      ]);
      for (const answer of await program.select([element(), element()])) {
        assert.equal(answer.outcome === 'evaluated' && answer.verdicts[0]?.error, 'undefined,undefined,,0');
      }
    });

    it('is not found by another exchange', async () => {
      const write = sandbox.open(['env => { env.state.leak = 1; env.msg.hdrs.leak = "1"; return true }']);
      const read = sandbox.open(['env => env.state.leak === undefined && env.msg.hdrs.leak === undefined']);
      const inputs = Array.from({ length: 50 }, () => element());
      const [, answers] = await Promise.all([write.select(inputs), read.select(inputs)]);
      for (const answer of answers)
        assert.equal(answer.outcome === 'evaluated' && answer.verdicts[0]?.accepted, true);
    });
  });

  describe('the result of a selector', () => {
    const POLLUTING = '\'{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}\'';

    it('pollutes no prototype of the host', async () => {
      for (const selector of [
        `env => JSON.parse(${POLLUTING})`,
        `env => Object.assign(JSON.parse(${POLLUTING}), { delay: 1 })`,
        `env => { env.msg.payload = JSON.parse(${POLLUTING}); return true }`,
        'env => { env.msg.hdrs.__proto__ = "p"; env.msg.hdrs.constructor = "c"; env.msg.hdrs.prototype = "x"; return true }',
        'env => ({ __proto__: { delay: 1, polluted: 1 } })',
      ]) {
        const [verdict] = await verdictsOf(sandbox.open([selector]), json({}));
        assert.equal(verdict?.accepted, true, `${selector}: ${verdict?.error}`);
      }
      assert.equal(Reflect.get({}, 'polluted'), undefined);
      assert.equal(Reflect.get(Object, 'polluted'), undefined);
    });

    it('keeps header and payload names such as __proto__ unchanged', async () => {
      const input = json(JSON.parse('{"__proto__":{"a":1},"constructor":2}'), [
        '__proto__',
        'p',
        'constructor',
        'c',
      ]);
      const same = sandbox.open([
        'env => { env.msg.hdrs.z = env.msg.hdrs.__proto__; env.msg.payload.z = 1; return true }',
      ]);
      const [verdict] = await verdictsOf(same, input);
      assert.deepEqual(verdict?.headers, ['__proto__', 'p', 'constructor', 'c', 'z', 'p']);
      assert.equal(textOf(verdict?.body), '{"__proto__":{"a":1},"constructor":2,"z":1}');
    });

    it('may have properties with names of Object.prototype and Error.prototype', async () => {
      const selector = `env => {
      class Refused extends Error { constructor(m) { super(m); this.name = "Refused"; } }
      env.msg.payload.constructor = "Ferrari";
      env.msg.payload.toString = 1;
      env.state.valueOf = 2;
      const e = new Error("m"); e.name = "N"; e.message = "x";
      throw [new Refused("why"), e, JSON.stringify(env.msg.payload), typeof Object.prototype.toString].join();
    }`;
      const [verdict] = await verdictsOf(sandbox.open([selector]), json({}));
      assert.equal(verdict?.error, 'Refused: why,N: x,{"constructor":"Ferrari","toString":1},function');
    });
  });
});
