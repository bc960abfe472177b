// In the VM's own library, not yet in the compiler's.
declare const Iterator: { from(source: object): { map(change: unknown): object } };

/** Where the console of selectors writes to. Null: nobody reads it. */
export interface ConsoleSink {
  write: ((text: string) => void) | null;
}

/**
 * Runs inside the VM, once, before any selector exists. The VM gets this function's text, so it uses nothing
 * from outside of itself.
 *
 * Afterwards nothing is left that a selector could change and a later element could see: every intrinsic is
 * frozen, the global object included, and what keeps state of its own is gone. Also gone are the ways to new
 * code (`eval`, the function constructors) and to code that runs later (promises, weak references), so that
 * a selector is over when it returns. Globals that a later QuickJS brings are removed until they are listed.
 */
export function harden(sink: ConsoleSink): void {
  const kept = new Set([
    ...[
      'Object',
      'Array',
      'Number',
      'Boolean',
      'String',
      'Symbol',
      'BigInt',
      'Math',
      'Reflect',
      'Date',
      'RegExp',
    ],
    ...['JSON', 'Proxy', 'Map', 'Set', 'WeakMap', 'WeakSet', 'Iterator', 'globalThis', 'Function', 'Promise'],
    ...['Error', 'EvalError', 'RangeError', 'ReferenceError', 'SyntaxError', 'TypeError', 'URIError'],
    ...['InternalError', 'AggregateError', 'SuppressedError', 'DOMException', 'ArrayBuffer', 'DataView'],
    ...[
      'Int8Array',
      'Uint8Array',
      'Uint8ClampedArray',
      'Int16Array',
      'Uint16Array',
      'Int32Array',
      'Uint32Array',
    ],
    ...['BigInt64Array', 'BigUint64Array', 'Float16Array', 'Float32Array', 'Float64Array'],
    ...[
      'undefined',
      'NaN',
      'Infinity',
      'parseInt',
      'parseFloat',
      'isNaN',
      'isFinite',
      'eval',
      'atob',
      'btoa',
    ],
    ...['decodeURI', 'decodeURIComponent', 'encodeURI', 'encodeURIComponent', 'escape', 'unescape'],
  ]);
  const { getPrototypeOf, getOwnPropertyDescriptor, getOwnPropertyNames, defineProperty, freeze } = Object;
  const { deleteProperty, ownKeys } = Reflect;

  for (const name of getOwnPropertyNames(globalThis)) {
    if (!kept.has(name)) deleteProperty(globalThis, name);
  }
  deleteProperty(Array, 'fromAsync');
  // Setters that change the engine rather than an object: they would still work on a frozen one.
  for (const name of ['prepareStackTrace', 'stackTraceLimit', 'captureStackTrace'])
    deleteProperty(Error, name);

  const unavailable = (name: string, prototype: object): object => {
    const refuse = (): never => {
      throw new TypeError(`${name} is not available to selectors`);
    };
    return defineProperty(refuse, 'prototype', { value: prototype });
  };
  const replace = (owner: object, name: string, value: object): void => {
    defineProperty(owner, name, { value, writable: false, enumerable: false });
  };
  const functions = [() => {}, function* () {}, async () => {}, async function* () {}];
  const construct = unavailable(
    'Function',
    getPrototypeOf(() => {}),
  );
  for (const kind of functions) replace(getPrototypeOf(kind), 'constructor', construct);
  replace(globalThis, 'Function', construct);
  replace(globalThis, 'eval', unavailable('eval', {}));
  const promise = unavailable('Promise', Promise.prototype);
  for (const name of ['resolve', 'reject', 'all', 'allSettled', 'any', 'race', 'try', 'withResolvers']) {
    replace(promise, name, promise);
  }
  replace(Promise.prototype, 'constructor', promise);
  replace(globalThis, 'Promise', promise);

  // Output that nobody reads costs a call and nothing else.
  const { stringify } = JSON;
  const shown = (value: unknown): string => {
    try {
      if (typeof value === 'string') return value;
      return (typeof value === 'object' ? stringify(value) : undefined) ?? String(value);
    } catch {
      return '[not printable]';
    }
  };
  const print = (...values: unknown[]): void => {
    if (sink.write === null) return;
    let text = '';
    for (const value of values) {
      text += (text === '' ? '' : ' ') + shown(value);
      if (text.length > 1000) break;
    }
    sink.write(text.slice(0, 1000));
  };
  const output: Record<string, object> = {};
  for (const name of ['debug', 'error', 'info', 'log', 'warn']) {
    output[name] = (...values: unknown[]) => print(...values);
  }
  defineProperty(globalThis, 'console', { value: output });

  // A frozen prototype would also forbid `thing.constructor = …` or `error.name = …` on what inherits from
  // it. As accessors these properties read the same, and writing one makes a property of the object itself.
  const writable = [Object, Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError];
  for (const { prototype } of writable) {
    for (const key of ownKeys(prototype)) {
      const data = getOwnPropertyDescriptor(prototype, key);
      if (data?.configurable !== true || !('value' in data)) continue;
      const { value } = data;
      defineProperty(prototype, key, {
        get: () => value,
        set(this: object, written: unknown) {
          defineProperty(this, key, { value: written, writable: true, enumerable: true, configurable: true });
        },
      });
    }
  }

  // No global leads to these prototypes: they are reached from a value of their kind.
  const hidden: unknown[] = [
    ...[[].values(), new Map().values(), new Set().values(), ''[Symbol.iterator](), ''.matchAll(/x/g)],
    ...[
      Iterator.from([]).map(String),
      Iterator.from({ next: () => ({ done: true, value: 0 }) }),
      ...functions,
    ],
  ];
  const seen = new Set<unknown>();
  const open: unknown[] = [globalThis, ...hidden];
  while (open.length > 0) {
    const next = open.pop();
    if ((typeof next !== 'object' && typeof next !== 'function') || next === null || seen.has(next)) continue;
    seen.add(next);
    freeze(next);
    open.push(getPrototypeOf(next));
    for (const key of ownKeys(next)) {
      const { value, get, set } = getOwnPropertyDescriptor(next, key) ?? {};
      open.push(value, get, set);
    }
  }
}
