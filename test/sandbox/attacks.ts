/**
 * Selectors that try to block the thread, fill the memory or break the VM: the kinds of attacks on the reliability page
 * and their relatives. `ends` lists the allowed ways to end; any other is a vulnerability.
 * - `error`: the destination rejects, with the selector's error.
 * - the others: causes of an exceeded limit.
 */
export interface Attack {
  readonly name: string;
  readonly selector: string;
  readonly ends: readonly ('error' | 'deadline' | 'watchdog' | 'memory')[];
}

/** Stopped while it runs: by the VM's interrupt or, on a busy machine, by the watchdog. */
const stopped = ['deadline', 'watchdog'] as const;
/** Rejected by the VM immediately or, on a busy machine, stopped before. */
const refused = ['error', 'deadline', 'watchdog'] as const;
/** Stopped at the memory limit, or before: a full heap makes the VM slow. */
const filled = ['memory', 'deadline', 'watchdog'] as const;
const any = ['error', 'memory', 'deadline', 'watchdog'] as const;

export const ATTACKS: readonly Attack[] = [
  { name: 'endless loop', selector: 'env => { while (1); }', ends: stopped },
  {
    name: 'endless loop that catches its interrupt',
    selector: 'env => { for (;;) try { while (1); } catch {} finally { while (1); } }',
    ends: stopped,
  },
  {
    name: 'regular expression that backtracks',
    selector: 'env => /^(a+)+$/.test("a".repeat(40) + "b")',
    ends: stopped,
  },
  { name: 'endless recursion', selector: 'env => { const f = () => 1 + f(); return f(); }', ends: refused },
  {
    name: 'recursion through toString',
    selector: 'env => { const o = { toString() { return "" + o; } }; return "" + o; }',
    ends: refused,
  },
  {
    name: 'recursion that catches its overflow',
    selector: 'env => { const f = () => { try { f(); } catch { f(); } }; return f(); }',
    ends: any,
  },
  {
    name: 'deeply nested JSON',
    selector: 'env => JSON.parse("[".repeat(1e6) + "]".repeat(1e6))',
    ends: refused,
  },
  {
    name: 'deeply nested regular expression',
    selector: 'env => new RegExp("(".repeat(1e5) + ")".repeat(1e5))',
    ends: refused,
  },
  {
    name: 'regular expression with huge counts',
    selector: 'env => new RegExp("(?:(?:(?:a{9999}){9999}){9999}){9999}").test("a".repeat(1e5))',
    ends: any,
  },
  {
    name: 'arrays of arrays',
    selector: 'env => { let a = []; for (;;) { a = [a, new Array(1000).fill(a)]; } }',
    ends: filled,
  },
  {
    name: 'one array that grows',
    selector: 'env => { const a = []; for (;;) a.push([[], {}, []]); }',
    ends: filled,
  },
  {
    name: 'typed arrays',
    selector: 'env => { const a = []; for (;;) a.push(new Uint8Array(1e6)); }',
    ends: filled,
  },
  {
    name: 'typed arrays, catching every error',
    selector: 'env => { const a = []; for (;;) try { a.push(new Uint8Array(1e5)); } catch {} }',
    ends: stopped,
  },
  {
    name: 'a string that doubles',
    selector: 'env => { let s = "x"; for (;;) s += s + "y"; }',
    ends: any,
  },
  {
    name: 'a map that grows',
    selector: 'env => { const m = new Map(); for (let i = 0; ; i += 1) m.set(i, { i }); }',
    ends: filled,
  },
  {
    name: 'built-in over 2^53 indexes',
    selector: 'env => Array.prototype.indexOf.call({ length: 2 ** 53 - 1 }, 1)',
    ends: stopped,
  },
  {
    name: 'built-in over 2^53 indexes, from the end',
    selector: 'env => Array.prototype.lastIndexOf.call({ length: 2 ** 53 - 1 }, 1)',
    ends: stopped,
  },
  {
    name: 'join of a billion empty slots',
    selector: 'env => new Array(1e9) + ""',
    ends: filled,
  },
  {
    name: 'array from a billion',
    selector: 'env => Array.from({ length: 1e9 }, () => 0)',
    ends: filled,
  },
  {
    name: 'huge power',
    selector: 'env => 3n ** (10n ** 8n)',
    ends: any,
  },
  {
    name: 'huge number as a string',
    selector: 'env => (2n ** 1000000n).toString()',
    ends: any,
  },
  {
    name: 'thrown object whose message loops',
    selector: 'env => { throw { get message() { while (1); }, toString() { while (1); } }; }',
    ends: stopped,
  },
  {
    name: 'thrown proxy whose every trap loops',
    selector:
      'env => { const loop = () => { while (1); }; throw new Proxy({}, { get: loop, getPrototypeOf: loop, ownKeys: loop }); }',
    ends: stopped,
  },
  {
    name: 'result whose delay loops',
    selector: 'env => ({ get delay() { while (1); } })',
    ends: stopped,
  },
  {
    name: 'headers whose value loops',
    selector:
      'env => { Object.defineProperty(env.msg.hdrs, "a", { enumerable: true, get() { while (1); } }); return 1; }',
    ends: stopped,
  },
  {
    name: 'payload whose toJSON loops',
    selector: 'env => { env.msg.payload = { toJSON() { while (1); } }; return 1; }',
    ends: stopped,
  },
  {
    name: 'payload that contains itself',
    selector: 'env => { const a = []; a.push(a); env.msg.payload = a; return 1; }',
    ends: refused,
  },
  {
    name: 'payload that is wide at every depth',
    selector:
      'env => { let a = [1]; for (let i = 0; i < 40; i += 1) a = [a, a]; env.msg.payload = a; return 1; }',
    ends: any,
  },
  {
    name: 'sort of five million',
    selector: 'env => new Array(5e6).fill(0).map((_, i) => -i).sort((a, b) => a - b)',
    ends: filled,
  },
  {
    name: 'sort with a random comparator',
    selector: 'env => Array.from({ length: 1e5 }, (_, i) => i).sort(() => Math.random() - 0.5)',
    ends: stopped,
  },
  {
    name: 'replace to 10^10 bytes',
    selector: 'env => "a".repeat(1e5).replace(/a/g, "b".repeat(1e5))',
    ends: any,
  },
  { name: 'repeat to 512 MB', selector: 'env => "a".repeat(2 ** 29)', ends: any },
  { name: 'array buffer of 2 GB', selector: 'env => new ArrayBuffer(2 ** 31)', ends: any },
  {
    name: 'buffer that is resized up',
    selector: 'env => new ArrayBuffer(8, { maxByteLength: 2 ** 30 }).resize(2 ** 30)',
    ends: any,
  },
  {
    name: 'spread of an endless generator',
    selector: 'env => [...(function* () { for (;;) yield 1; })()]',
    ends: filled,
  },
  {
    name: 'endless iterator in a destructuring',
    selector: 'env => { const [...a] = { [Symbol.iterator]: () => ({ next: () => ({ done: false }) }) }; }',
    ends: filled,
  },
];
