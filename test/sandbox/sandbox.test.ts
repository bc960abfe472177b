import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { after, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { QuaysideError } from '../../src/model/errors.ts';
import { LIMITS } from '../../src/model/limits.ts';
import { DEFAULT_LIMITS } from '../../src/sandbox/limits.ts';
import type { WorkerRequest } from '../../src/sandbox/protocol.ts';
import type { SelectorVerdict } from '../../src/sandbox/sandbox.ts';
import { element, json, patientSandbox, textOf, verdictsOf } from './elements.ts';

describe('A sandbox', () => {
  const sandbox = patientSandbox();
  after(() => sandbox.stop());

  const ask = (
    selectors: readonly (string | null)[],
    input = element(),
  ): Promise<readonly SelectorVerdict[]> => verdictsOf(sandbox.open(selectors), input);

  /** The verdict of one selector. */
  async function verdict(selector: string, input = element()): Promise<SelectorVerdict> {
    const [only] = await ask([selector], input);
    assert.ok(only !== undefined);
    return only;
  }

  const UNCHANGED = { matureAt: null, delayMs: null, tries: null, headers: null, body: null };
  const YES = { accepted: true, error: null, place: null, ...UNCHANGED };
  const NO = { ...YES, accepted: false };

  describe('the result of a selector', () => {
    it('accepts if it is truthy, otherwise rejects', async () => {
      for (const truthy of ['true', '1', '"no"', '[]', '({})', '-1', '10n', '/x/', 'Symbol()']) {
        assert.deepEqual(await verdict(`env => ${truthy}`), YES, truthy);
      }
      for (const falsy of ['false', '0', '""', 'null', 'undefined', 'NaN', '0n', '-0']) {
        assert.deepEqual(await verdict(`env => (${falsy})`), NO, falsy);
      }
    });

    it('overrides mature, delay or tries if it is an object with these names', async () => {
      assert.deepEqual(await verdict('env => ({ delay: 1.5 })'), { ...YES, delayMs: 1500 });
      assert.deepEqual(await verdict('env => ({ mature: 1700000000.25 })'), {
        ...YES,
        matureAt: 1700000000250,
      });
      assert.deepEqual(await verdict('env => ({ tries: 3 })'), { ...YES, tries: 3 });
      assert.deepEqual(await verdict('env => ({ mature: 5, delay: 9, tries: 0 })'), {
        ...YES,
        matureAt: 5000,
        tries: 0,
      });
      assert.deepEqual(await verdict('env => ({ mature: null, delay: undefined, other: 1 })'), YES);
    });

    it('is clamped to delays from 0 to ten years and maturities from 1970 on', async () => {
      assert.equal((await verdict('env => ({ delay: -3 })')).delayMs, 0);
      assert.equal((await verdict('env => ({ delay: Infinity })')).delayMs, LIMITS.delayMs);
      assert.equal((await verdict('env => ({ delay: 1e300 })')).delayMs, LIMITS.delayMs);
      assert.equal((await verdict('env => ({ mature: -1 })')).matureAt, 0);
    });

    it('is an error if an override is invalid', async () => {
      for (const [given, message] of [
        ['{ delay: "3" }', /delay must be a number of seconds, not "3"/],
        ['{ delay: "3".repeat(100) }', /delay must be a number of seconds, not "3{64}"/],
        ['{ delay: NaN }', /delay must be a number of seconds, not NaN/],
        ['{ mature: new Date() }', /mature must be a number of seconds, not a value of type object/],
        ['{ mature: 1766666666666 }', /seconds, not milliseconds; 1766666666666 is too large/],
        ['{ mature: Infinity }', /seconds, not milliseconds; Infinity is too large/],
        ['{ tries: -1 }', /whole number from 0 to 1000000, not -1/],
        ['{ tries: 1.5 }', /whole number from 0 to 1000000, not 1.5/],
        ['{ tries: "1" }', /whole number from 0 to 1000000, not "1"/],
        ['{ tries: 1e9 }', /whole number from 0 to 1000000, not 1000000000/],
        ['{ then() {} }', /promise/],
        ['() => true', /function/],
        ['Math.max', /function/],
      ] as const) {
        const { accepted, error } = await verdict(`env => (${given})`);
        assert.equal(accepted, false, given);
        assert.match(error ?? '', message);
      }
    });

    it('rejects with the error as text if it throws', async () => {
      assert.deepEqual(await verdict('env => env.msg.hdrs.a.b'), {
        ...NO,
        error: "TypeError: cannot read property 'b' of undefined (line 1, column 8)",
        place: [1, 8],
      });
      assert.equal((await verdict('env => { throw "plain" }')).error, 'plain');
      assert.equal((await verdict('env => { throw null }')).error, 'null');
      assert.equal((await verdict('env => { throw Symbol("s") }')).error, 'Symbol(s)');
      assert.equal((await verdict('env => { throw "x".repeat(1000) }')).error?.length, 200);
      assert.match(
        (await verdict('env => { throw { toString() { throw 1 } } }')).error ?? '',
        /cannot be converted to a string/,
      );
      assert.match((await verdict('env => Promise.resolve(true)')).error ?? '', /not available/);
      assert.match((await verdict('env => { kept = 1 }')).error ?? '', /kept/);
    });

    it('is the same for a bare expression, a function expression and an arrow function', async () => {
      const input = element({ headers: ['type', 'order'] });
      for (const selector of [
        'env.msg.hdrs.type === "order"',
        'function (env) { return env.msg.hdrs.type === "order" }',
        '({ msg: { hdrs: { type } } }) => type === "order";',
      ]) {
        assert.deepEqual(await verdict(selector, input), YES);
        assert.deepEqual(await verdict(selector), NO);
      }
    });
  });

  describe('the element in a selector', () => {
    it('has id, tries, mature in seconds, headers and state', async () => {
      const input = element({
        id: 'Ab-9',
        tries: 4,
        matureAt: 1_700_000_000_125,
        headers: ['a', '1', 'b-c', 'é'],
      });
      const shown = await verdict(
        'env => { throw JSON.stringify([env.msg.id, env.msg.tries, env.msg.mature, env.msg.hdrs, env.state]) }',
        input,
      );
      assert.equal(shown.error, '["Ab-9",4,1700000000.125,{"a":"1","b-c":"é"},{}]');
    });

    it('has headers of any name and no inherited ones', async () => {
      const input = element({ headers: ['__proto__', 'p', 'constructor', 'c', 'has own', 'x'] });
      const all = 'env => { throw JSON.stringify(Object.entries(env.msg.hdrs)) }';
      assert.equal(
        (await verdict(all, input)).error,
        '[["__proto__","p"],["constructor","c"],["has own","x"]]',
      );
      const none =
        'env => { throw JSON.stringify([env.msg.hdrs.__proto__, env.msg.hdrs.constructor, "toString" in env.msg.hdrs]) }';
      assert.equal((await verdict(none)).error, '[null,null,false]');
    });

    it('has a read-only id, tries and mature', async () => {
      for (const name of ['id', 'tries', 'mature']) {
        assert.match((await verdict(`env => { env.msg.${name} = 1 }`)).error ?? '', /TypeError/);
      }
    });

    it('has a message that cannot be replaced, since no copy would have the new one', async () => {
      for (const replaces of ['env.msg = { ...env.msg, payload: 2 }', 'delete env.msg']) {
        const [replaced, later] = await ask(
          [`env => { ${replaces}; return true }`, 'env => env.msg.payload.a === 1'],
          json({ a: 1 }),
        );
        assert.match(replaced?.error ?? '', /^TypeError: /, replaces);
        assert.deepEqual([later?.accepted, later?.error], [true, null], replaces);
      }
    });

    it('has a payload decoded by its content type', async () => {
      const show =
        'env => { const p = env.msg.payload; throw typeof p + " " + (p instanceof Uint8Array ? [...p] : JSON.stringify(p)) }';
      const shown = async (
        body: string | Uint8Array,
        contentType: string | null,
        contentEncoding: string | null = null,
      ) => (await verdict(show, element({ body, contentType, contentEncoding }))).error;
      assert.equal(await shown('{"a":[1,"é"]}', 'application/json'), 'object {"a":[1,"é"]}');
      assert.equal(await shown('[1]', 'Application/Problem+JSON; charset=utf-8'), 'object [1]');
      assert.equal(await shown('\ufeff3', 'text/json'), 'number 3');
      assert.equal(await shown('null', 'application/json'), 'object null');
      assert.equal(await shown('é€', 'text/plain'), 'string "é€"');
      assert.equal(await shown('\ufeffa', 'text/plain; charset="UTF-8"'), 'string "\ufeffa"');
      assert.equal(await shown(Buffer.from([0x61, 0xe9]), 'text/plain; charset=iso-8859-1'), 'string "aé"');
      assert.equal(await shown(Buffer.from([0, 255]), 'application/octet-stream'), 'object 0,255');
      assert.equal(await shown('ab', null), 'object 97,98');
      assert.equal(await shown('ab', 'text/plain; charset=utf-16le'), 'object 97,98');
      assert.equal(await shown('{}', 'application/json', 'gzip'), 'object 123,125');
      assert.equal(await shown('{}', 'application/json', 'identity'), 'object {}');
      assert.equal(await shown('', 'text/plain'), 'string ""');
      assert.equal(await shown('', null), 'object ');
    });

    it('throws when the payload is read if the body does not match its type', async () => {
      const bad = element({ body: '{"a":', contentType: 'application/json', headers: ['a', '1'] });
      assert.match((await verdict('env => env.msg.payload.a', bad)).error ?? '', /payload is not JSON/);
      const deep = element({
        body: '['.repeat(500_000) + ']'.repeat(500_000),
        contentType: 'application/json',
      });
      assert.match((await verdict('env => env.msg.payload', deep)).error ?? '', /nested too deeply/);
      assert.deepEqual(await verdict('env => env.msg.hdrs.a', bad), YES);
      assert.deepEqual(await verdict('env => { try { env.msg.payload } catch { return true } }', bad), YES);
      const broken = element({ body: Buffer.from([0xff]), contentType: 'text/plain' });
      assert.match((await verdict('env => env.msg.payload', broken)).error ?? '', /not UTF-8/);
    });

    it('has the payload as a property, so copies of the message have it as well', async () => {
      const input = json({ n: 1 }, ['a', 'x']);
      const whole = { id: 'e1', tries: 0, mature: 1_700_000_000, hdrs: { a: 'x' }, payload: { n: 1 } };
      for (const copy of [
        '{ ...env.msg }',
        'env.msg',
        'Object.assign({}, env.msg)',
        'Object.fromEntries(Object.entries(env.msg))',
        '{ ...Object.freeze(env.msg) }',
      ]) {
        const { error } = await verdict(`env => { throw JSON.stringify(${copy}) }`, input);
        assert.deepEqual(JSON.parse(error ?? ''), whole, copy);
      }
      const keys = 'env => { throw Object.keys(env.msg).join() + Object.hasOwn(env.msg, "payload") }';
      assert.equal((await verdict(keys, input)).error, 'id,tries,mature,hdrs,payloadtrue');
      const { id, ...rest } = whole;
      const rested = await verdict(
        'env => { const { id, ...rest } = env.msg; throw JSON.stringify(rest) }',
        input,
      );
      assert.deepEqual([id, JSON.parse(rested.error ?? '')], ['e1', rest]);
    });

    it('is stored changed by a selector that copies the message first', async () => {
      const [stored, later] = await ask(
        [
          'env => { const copy = { ...env.msg }; env.msg.payload = { ...copy.payload, m: 2 }; env.msg.hdrs.b = copy.id; return true }',
          'env => { env.msg.payload.n += 1; env.msg.id2 = 1; return Object.keys(env.msg).length === 6 }',
        ],
        json({ n: 1 }),
      );
      assert.deepEqual([textOf(stored?.body), stored?.headers], ['{"n":1,"m":2}', ['b', 'e1']]);
      assert.deepEqual([later?.accepted, textOf(later?.body)], [true, '{"n":2,"m":2}']);
      assert.match((await verdict('env => { ({ ...env.msg }); env.msg.id = 1 }')).error ?? '', /^TypeError/);
    });

    it('is not changed by writes to objects that inherit from the message', async () => {
      const writes = 'const own = Object.create(env.msg); own.note = own.id';
      const [stored, later] = await ask(
        [
          `env => { ${writes}; try { own.hdrs = { b: "y" } } catch {} return own.note === "e1" && Object.hasOwn(own, "note") }`,
          'env => env.msg.note === undefined && env.msg.hdrs.a === "x"',
        ],
        json({ n: 1 }, ['a', 'x']),
      );
      assert.deepEqual([stored, later], [YES, YES]);
    });

    it('has the payload in the property descriptors of the message', async () => {
      const input = json({ n: 1 }, ['a', 'x']);
      const copy = 'Object.defineProperties({}, Object.getOwnPropertyDescriptors(env.msg))';
      const { error } = await verdict(`env => { throw JSON.stringify(${copy}) }`, input);
      assert.deepEqual(JSON.parse(error ?? ''), {
        id: 'e1',
        tries: 0,
        mature: 1_700_000_000,
        hdrs: { a: 'x' },
        payload: { n: 1 },
      });
      const [stored] = await ask([`env => { ${copy}.payload = 2; return true }`], input);
      assert.equal(textOf(stored?.body), '2');
    });

    it('comes with a console, whose lines are returned on request', async () => {
      const program = sandbox.open(
        ['env => { console.log("<b>", 1); console.warn("=", {}, ""); return true }'],
        {
          logs: true,
        },
      );
      const [answer] = await program.select([element()]);
      assert.deepEqual(answer, {
        outcome: 'evaluated',
        verdicts: [YES],
        logs: [
          [0, '<b> 1'],
          [0, '= {} '],
        ],
      });
    });

    it('exposes nothing of the host', async () => {
      assert.match((await verdict('env => { throw Object.keys(env).join() }')).error ?? '', /^msg,state$/);
    });
  });

  describe('a change by a selector', () => {
    it('is stored for its destination and visible to later ones', async () => {
      const selectors = [
        'env => env.msg.hdrs.step === undefined',
        'env => { env.msg.hdrs.step = "1"; env.msg.payload.n += 1; return true }',
        null,
        'env => env.msg.hdrs.step === "1" && env.msg.payload.n === 2',
        'env => { delete env.msg.hdrs.a; env.msg.hdrs = { ...env.msg.hdrs, step: 2 }; env.msg.payload = [env.msg.payload]; }',
        null,
      ];
      const verdicts = await ask(selectors, json({ n: 1 }, ['a', 'x', 'b', 'y']));
      assert.deepEqual(
        verdicts.map(({ accepted }) => accepted),
        [true, true, true, true, false, true],
      );
      const first = ['a', 'x', 'b', 'y', 'step', '1'];
      const second = ['b', 'y', 'step', '2'];
      assert.deepEqual(
        verdicts.map(({ headers }) => headers),
        [null, first, first, first, second, second],
      );
      assert.deepEqual(
        verdicts.map(({ body }) => textOf(body)),
        [null, '{"n":2}', '{"n":2}', '{"n":2}', '[{"n":2}]', '[{"n":2}]'],
      );
    });

    it('of env.state is visible to the later destinations of the element, but not to other elements', async () => {
      const selectors = [
        'env => { env.state.n = (env.state.n ?? 0) + 1; return env.state.n === 1 }',
        'env => env.state.n === 1',
      ];
      const answers = await sandbox.open(selectors).select([element(), element(), element()]);
      for (const answer of answers)
        assert.deepEqual(answer, { outcome: 'evaluated', verdicts: [YES, YES], logs: [] });
    });

    it('is not assumed if the selector only reads', async () => {
      const looks = 'env => { JSON.stringify([env.msg.hdrs, env.msg.payload]); return "a" in env.msg.hdrs }';
      for (const input of [
        element({ headers: ['a', '1'], body: ' { "b" : 1.0, "a" : 1e2 }', contentType: 'application/json' }),
        element({ headers: ['a', '1'], body: '"\\ud800"', contentType: 'application/json' }),
        element({ headers: ['a', '1'], body: 'text', contentType: 'text/plain' }),
        element({ headers: ['a', '1'], body: Buffer.from([1, 2, 3]) }),
        element({ headers: ['a', '1'] }),
      ]) {
        assert.deepEqual(await verdict(looks, input), YES);
      }
    });

    it('is serialized by the type of the payload', async () => {
      const wrote = async (statement: string, input = element()) =>
        (await verdict(`env => { ${statement}; return true }`, input)).body;
      const text = element({ body: 'a', contentType: 'text/plain' });
      const latin = element({ body: 'a', contentType: 'text/plain;charset=latin1' });
      assert.equal(textOf(await wrote('env.msg.payload += "é€"', text)), 'aé€');
      assert.equal(textOf(await wrote('env.msg.payload = "\ufeffx"', text)), '\ufeffx');
      assert.deepEqual(Buffer.from((await wrote('env.msg.payload = "é"', latin)) ?? []), Buffer.from([0xe9]));
      assert.deepEqual(
        Buffer.from((await wrote('env.msg.payload[1] = 9', element({ body: Buffer.from([1, 2, 3]) }))) ?? []),
        Buffer.from([1, 9, 3]),
      );
      assert.deepEqual(
        Buffer.from((await wrote('env.msg.payload = new Uint8Array([1, 2, 3]).subarray(1)')) ?? []),
        Buffer.from([2, 3]),
      );
      assert.equal(textOf(await wrote('env.msg.payload = 5', json({}))), '5');
      assert.equal(await wrote('env.msg.payload = "a"', text), null);
      assert.equal(
        await wrote('env.msg.payload = JSON.parse(JSON.stringify(env.msg.payload))', json({ a: [1] })),
        null,
      );
    });

    it('is rejected with all changes of the selector if it cannot be stored', async () => {
      const text = element({ body: 'a', contentType: 'text/plain' });
      const latin = element({ body: 'a', contentType: 'text/plain;charset=latin1' });
      for (const [statement, message, input] of [
        ['env.msg.hdrs.Upper = "x"', /lower-case/, element()],
        ['env.msg.hdrs["a b"] = "x"', /lower-case HTTP token/, element()],
        ['env.msg.hdrs.a = "x\\ny"', /control character/, element()],
        ['env.msg.hdrs.a = "\\ud800"', /well-formed/, element()],
        ['env.msg.hdrs.a = {}', /must be a string/, element()],
        ['env.msg.hdrs.a = []', /must be a string/, element()],
        ['env.msg.hdrs = null', /must be an object/, element()],
        ['for (let i = 0; i < 65; i += 1) env.msg.hdrs["h" + i] = i', /at most 64/, element()],
        ['env.msg.hdrs.a = "x".repeat(8192)', /an element has at most 8192/, element()],
        ['env.msg.payload = undefined', /cannot be serialized as JSON/, json({})],
        ['env.msg.payload = 10n', /bigint|BigInt/i, json({})],
        ['env.msg.payload = {}', /must be a string/, text],
        ['env.msg.payload = "\\ud800"', /well-formed/, text],
        ['env.msg.payload = "€"', /U\+00FF/, latin],
        ['env.msg.payload = "text"', /Uint8Array/, element()],
        ['env.msg.payload = "x".repeat(2 ** 20)', /more than 1048576 bytes/, json({})],
      ] as const) {
        const [first, second] = await ask(
          [`env => { env.msg.hdrs.also = "1"; ${statement}; return true }`, null],
          input,
        );
        assert.equal(first?.accepted, false, statement);
        assert.match(first?.error ?? '', message);
        assert.deepEqual(second, YES, statement);
      }
    });

    it('is undone if the selector throws, while changes of earlier selectors stay', async () => {
      const verdicts = await ask(
        [
          'env => { env.msg.hdrs.a = "1"; env.msg.payload.a = 1; return true }',
          'env => { env.msg.hdrs.b = "2"; delete env.msg.hdrs.a; env.msg.payload.b = 2; throw "late" }',
          'env => !("b" in env.msg.hdrs) && env.msg.hdrs.a === "1" && env.msg.payload.a === 1 && !("b" in env.msg.payload)',
        ],
        json({ z: 0 }),
      );
      assert.deepEqual(
        verdicts.map(({ accepted }) => accepted),
        [true, false, true],
      );
      assert.deepEqual(
        verdicts.map(({ headers }) => headers),
        [
          ['a', '1'],
          ['a', '1'],
          ['a', '1'],
        ],
      );
      assert.deepEqual(
        verdicts.map(({ body }) => textOf(body)),
        Array(3).fill('{"z":0,"a":1}'),
      );
    });

    it('converts numbers and booleans to header values, and removes headers set to null or undefined', async () => {
      const { headers } = await verdict(
        'env => { const h = env.msg.hdrs; h.n = 1.5; h.t = true; h.a = undefined; h.b = null; h[Symbol()] = 1; return h }',
        element({ headers: ['a', '1', 'b', '2', 'c', '3'] }),
      );
      assert.deepEqual(headers, ['c', '3', 'n', '1.5', 't', 'true']);
    });

    it('is not requested after the program is closed: remaining elements are returned unevaluated', async () => {
      const program = sandbox.open(['env => true']);
      const selected = program.select(Array.from({ length: 300 }, () => element()));
      program.close();
      const outcomes = (await selected).map(({ outcome }) => outcome);
      assert.equal(outcomes.length, 300);
      assert.deepEqual(new Set(outcomes.slice(DEFAULT_LIMITS.batch)), new Set(['not-evaluated']));
    });

    it('does not leave the program in the worker if it is closed while a call is pending', async (t) => {
      const sent = t.mock.method(Worker.prototype, 'postMessage');
      const others = sandbox.open(['env => true']);
      const busy = Array.from({ length: 5 }, () => others.select([element()]));
      const program = sandbox.open(['env => false']);
      const selected = program.select([element()]);
      program.close();
      await Promise.all([...busy, selected]);
      const requests = sent.mock.calls.map(({ arguments: [request] }) => request as WorkerRequest);
      const calls = requests.filter(({ kind }) => kind === 'call');
      const own = calls.find(
        (request) => request.kind === 'call' && request.sources?.includes('env => false'),
      );
      assert.ok(own?.kind === 'call', 'the call was sent to the worker after the close');
      const last = requests.findLast(
        (request) => request.kind !== 'compile' && request.program === own.program,
      );
      assert.equal(last?.kind, 'close');
    });

    it('is assigned to the right element of a batch', async () => {
      const program = sandbox.open([
        'env => { if (env.msg.payload % 3 === 0) env.msg.payload = -env.msg.payload; return env.msg.payload % 2 === 0 }',
        'env => { if (env.msg.tries % 5 === 0) throw env.msg.id; return { tries: env.msg.tries } }',
      ]);
      const numbers = Array.from({ length: 1234 }, (_, n) => n);
      const inputs = numbers.map((n) =>
        element({ id: `e${n}`, tries: n, body: `${n}`, contentType: 'text/json' }),
      );
      const answers = await program.select(inputs);
      for (const [n, answer] of answers.entries()) {
        assert.equal(answer.outcome, 'evaluated');
        const [first, second] = answer.outcome === 'evaluated' ? answer.verdicts : [];
        assert.equal(first?.accepted, n % 2 === 0);
        assert.equal(textOf(second?.body), n % 3 === 0 && n !== 0 ? `${-n}` : null);
        assert.equal(second?.error, n % 5 === 0 ? `e${n}` : null);
        assert.equal(second?.tries, n % 5 === 0 ? null : n);
      }
      assert.equal(answers.length, 1234);
    });
  });

  describe('checking selectors', () => {
    const refusal = (selectors: { source: string; path: string }[]): Promise<QuaysideError> =>
      sandbox.check(selectors, 'user').then(
        () => assert.fail('accepted'),
        (error) => {
          assert.ok(error instanceof QuaysideError && error.code === 'invalid-body', String(error));
          return error;
        },
      );

    it('accepts valid ones', async () => {
      const selectors = [
        { source: 'env => true', path: 'dst[0].selector' },
        { source: 'env.msg.hdrs.a', path: 'dst[1].selector' },
      ];
      await sandbox.check(selectors, 'user');
      await sandbox.check([], 'user');
    });

    it('reports path, line and column of the first syntax error', async () => {
      const error = await refusal([
        { source: 'env => true', path: 'dst[0].selector' },
        { source: 'env =>\n  true true', path: 'dst[1].selector' },
      ]);
      assert.equal(error.details.parameter, 'dst[1].selector');
      assert.deepEqual(error.details.extra, { line: 2, column: 8 });
    });

    it('succeeds once file descriptors are available again', () => {
      const program = fileURLToPath(new URL('first-start-without-files.ts', import.meta.url));
      const limited = `ulimit -n 100; exec "$0" "$1"`;
      const outcomes = execFileSync('sh', ['-c', limited, process.execPath, program], { encoding: 'utf8' });
      assert.deepEqual(JSON.parse(outcomes), ['internal', 'works']);
    });

    it('compiles them in the VM as well, for errors that only it reports', async () => {
      const groups = `env => /${'()'.repeat(300)}/.test(env.msg.id)`;
      const error = await refusal([
        { source: 'env => true', path: 'dst[0].selector' },
        { source: groups, path: 'dst[1].selector' },
      ]);
      assert.equal(error.details.parameter, 'dst[1].selector');
      assert.match(error.message, /captures/);
      assert.equal(error.details.extra, undefined);
    });

    it('is not required: a stored selector that no longer parses is an error of its destination', async () => {
      const verdicts = await ask(['env => {', null, 'env => true']);
      assert.deepEqual(
        verdicts.map(({ accepted }) => accepted),
        [false, true, true],
      );
      assert.match(verdicts[0]?.error ?? '', /ends too soon/);
    });
  });
});
