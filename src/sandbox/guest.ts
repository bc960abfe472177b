import type { SourcePosition, VerdictExtra } from './protocol.ts';

// In the VM's own library: what it throws when its heap is full.
declare const InternalError: ErrorConstructor;

/** What the worker offers to the VM. The first character of a string says what it is. */
export interface GuestHost {
  /** The current body of element `at`: `=` and text, bytes, or `!` and why it cannot be read. */
  payload(at: number): string | Uint8Array;
  /**
   * Stores what the selector at position `at` of the codes changed: headers as a JSON array of names and values, and
   * the payload (`=` and text, or bytes); null for what it did not change. Stores both or neither. Returns an error, or
   * null.
   */
  seal(at: number, headers: string | null, payload: string | Uint8Array | null): string | null;
  /**
   * The VM starts or ends reading or writing a payload as JSON: this time does not count against the selectors. Called
   * for texts longer than `GuestLimits.quickText` only; `payload` itself marks the start of reading.
   */
  converting(isOn: boolean): void;
  /** A line that a selector wrote to its console: `=` and text. */
  log(at: number, text: string): void;
}

interface GuestLimits {
  /** JSON of at most this many characters is converted without being timed. */
  readonly quickText: number;
  /** Lines of console output in one call. */
  readonly logLines: number;
  /** Bytes that selectors may write, about, before a call ends with the element in progress. */
  readonly written: number;
  // The largest values that an object given by a selector may have.
  /** Unix seconds. */
  readonly mature: number;
  /** Seconds. */
  readonly delay: number;
  readonly tries: number;
}

/** What the guest calls: the methods of its host, by name. */
export const CALLBACKS = [
  'payload',
  'seal',
  'converting',
  'log',
] as const satisfies readonly (keyof GuestHost)[];

/** A script whose value makes the guest, once, of the host's callbacks: see {@link CALLBACKS}. */
export function guestScript(limits: GuestLimits): string {
  const callbacks = CALLBACKS.join(', ');
  return `"use strict";(${callbacks}) => {
    const sink = { write: null };
    (${harden})(sink);
    return (${makeGuest})({ ${callbacks} }, ${JSON.stringify(limits)}, sink);
  }`;
}

/** What the worker calls. */
interface Guest {
  /**
   * Adds the next destination of the program: its selector, null for "always", or why it cannot run.
   * One that `isPure` changes nothing if the message has only data.
   */
  add(step: Selector | string | null, isPure: boolean): void;
  /**
   * Runs every selector for each element of `PackedElements.input`, in order, until `softMs` have passed or they wrote
   * enough. Returns JSON: `[how many elements, codes, extras]` as in `Called`.
   * @param logs whether console output is wanted
   */
  evaluate(input: string, softMs: number, logs: boolean): string;
}

type Selector = (env: object) => unknown;

/**
 * Runs inside the VM, after {@link harden}; the VM gets this function's text. Everything that a selector
 * returns or throws is read in here, under the deadline: a getter, a `toString` or a proxy trap of a selector
 * never runs anywhere else. It returns only strings that it wrote itself.
 */
function makeGuest(host: GuestHost, limits: GuestLimits, sink: ConsoleSink): Guest {
  const { parse, stringify } = JSON;
  const { freeze, getOwnPropertyDescriptor, hasOwn, keys, setPrototypeOf } = Object;
  const { apply, defineProperty, deleteProperty, ownKeys, preventExtensions, set: setOn } = Reflect;
  const { isInteger, isNaN: isNotNumber } = Number;
  const { now } = Date;
  const JSON_KIND = 0;
  const BYTES_KIND = 3;

  type Headers = Record<string, unknown>;
  type Element = [id: string, tries: number, mature: number, kind: number, headers: Headers];
  const program: { step: Selector | string | null; isPure: boolean }[] = [];

  const asSecond = (name: string, value: unknown, max: number): number | null => {
    if (value === undefined || value === null) return null;
    if (typeof value !== 'number' || isNotNumber(value))
      throw new TypeError(`${name} must be a number of seconds`);
    return value < 0 ? 0 : value > max ? max : value;
  };

  /** The element whose selectors run: a write to headers is a write to its headers. */
  let current: Message | null = null;
  /** What selectors see of it: `env.msg`. */
  let view: Message | null = null;
  /** What every view of headers is watched with; one for all, since making three functions costs more than a view. */
  const watch: ProxyHandler<Headers> = {
    set(target, name, value) {
      keep(current, target);
      return defineProperty(target, name, { value, writable: true, enumerable: true, configurable: true });
    },
    defineProperty(target, name, property) {
      keep(current, target);
      return defineProperty(target, name, property);
    },
    deleteProperty(target, name) {
      keep(current, target);
      return deleteProperty(target, name);
    },
  };

  /** What later destinations see of an element as `env.msg`, and what each of them would store. */
  class Message {
    readonly #at: number;
    readonly #element: Element;
    /** Never shown: selectors get `#view`, which tells us of the first write. */
    #headers: Headers;
    #view: Headers | null = null;
    /** The headers before the running selector first wrote one; null while it has not. */
    #before: Headers | null = null;
    #payload: unknown;
    /** Whether `#payload` is set; until then the body stays with the worker. */
    #touched = false;
    /** A selector that is not pure ran: there may be more than data in the message. */
    #isMixed = false;
    /**
     * The payload was used since: it may refer to what selectors can change, be referred to from there, or change by
     * itself.
     */
    #isLive = false;
    /** The payload as the worker has it, if that is text. */
    #text: string | null = null;
    /** Of what selectors wrote. */
    #payloadSize = 0;
    #headersSize = 0;

    constructor(at: number, element: Element) {
      this.#at = at;
      this.#element = element;
      // No prototype: a header named `constructor` is a header like any other.
      this.#headers = setPrototypeOf(element[4], null);
    }

    get id(): string {
      return this.#element[0];
    }
    get tries(): number {
      return this.#element[1];
    }
    get mature(): number {
      return this.#element[2];
    }

    get hdrs(): object {
      this.#view ??= new Proxy(this.#headers, watch);
      return this.#view;
    }
    set hdrs(given: object) {
      if (typeof given !== 'object' || given === null) throw new TypeError('hdrs must be an object');
      const copy = setPrototypeOf({ ...given }, null);
      this.#before ??= this.#headers;
      this.#headers = copy;
      this.#view = null;
    }

    get payload(): unknown {
      if (this.#isMixed) this.#isLive = true;
      if (!this.#touched) {
        const body = host.payload(this.#at);
        if (typeof body === 'string') {
          if (body[0] !== '=') throw new TypeError(body.slice(1));
          this.#text = body.slice(1);
          this.#payload = this.#element[3] === JSON_KIND ? this.#parse(this.#text) : this.#text;
        } else {
          this.#payload = body;
        }
        this.#touched = true;
      }
      return this.#payload;
    }
    set payload(given: unknown) {
      if (this.#isMixed) this.#isLive = true;
      this.#touched = true;
      this.#payload = given;
    }

    /** To be called before each selector. */
    static begin(message: Message, isPure: boolean): void {
      if (!isPure) message.#isMixed = true;
    }

    /**
     * Stores what the running selector changed. The payload is written out, to see whether it changed, unless it cannot
     * have: until a selector uses it that is not pure, or comes after one that is not, it is data that only the getter
     * leads to.
     * @throws TypeError if it cannot be stored
     */
    static seal(message: Message, at: number): void {
      const payload = message.#touched && message.#isLive ? message.#written() : null;
      const headers = message.#before === null ? null : message.#flat();
      if (payload === null && headers === null) return;
      const refusal = host.seal(at, headers, payload);
      if (refusal !== null) throw new TypeError(refusal);
      message.#before = null;
      if (typeof payload === 'string') message.#text = payload.slice(1);
      if (payload !== null) message.#payloadSize = payload.length;
      if (headers !== null) message.#headersSize = headers.length;
    }

    /** How much of what selectors wrote so far a copy has, in characters or bytes. */
    static writtenSize(message: Message): number {
      return message.#payloadSize + message.#headersSize;
    }

    /** Takes back what a failed selector changed. What it left elsewhere in `env` stays. */
    static undo(message: Message): void {
      if (message.#before !== null) {
        message.#headers = message.#before;
        message.#view = null;
        message.#before = null;
      }
      message.#touched = false;
      message.#payload = undefined;
      message.#text = null;
    }

    /** To be called before a write to `headers`: keeps them as they are for {@link undo}. */
    static keep(message: Message | null, headers: Headers): void {
      // A selector may hold on to a view of headers that are no longer the message's.
      if (message === null || message.#headers !== headers) return;
      message.#before ??= setPrototypeOf({ ...headers }, null);
    }

    /** A text too large for the heap is an error of the element, not an overrun of the selector. */
    #parse(text: string): unknown {
      try {
        return parse(text);
      } catch {
        throw new RangeError('the payload is too large or too deep to be parsed here');
      } finally {
        if (text.length > limits.quickText) host.converting(false);
      }
    }

    #stringify(value: unknown): string {
      const isLong = this.#text !== null && this.#text.length > limits.quickText;
      if (!isLong) return stringify(value);
      host.converting(true);
      try {
        return stringify(value);
      } finally {
        host.converting(false);
      }
    }

    #flat(): string {
      const flat: string[] = [];
      for (const name of keys(this.#headers)) {
        const value = this.#headers[name];
        if (value === undefined || value === null) continue;
        if (typeof value === 'object' || typeof value === 'function' || typeof value === 'symbol') {
          throw new TypeError(`header '${name.slice(0, 40)}' must be a string`);
        }
        flat.push(name, `${value}`);
      }
      return stringify(flat);
    }

    /** The payload as it must be stored; null if it did not change. */
    #written(): string | Uint8Array | null {
      const value = this.#payload;
      const kind = this.#element[3];
      if (kind === BYTES_KIND) {
        if (!(value instanceof Uint8Array))
          throw new TypeError('the payload of this element must be a Uint8Array');
        // A plain copy: the original may be a subclass, or a view of something that changes size.
        return new Uint8Array(value);
      }
      const text = kind === JSON_KIND ? this.#stringify(value) : value;
      if (typeof text !== 'string') {
        throw new TypeError(
          kind === JSON_KIND ? 'the payload is not JSON any more' : 'the payload must be a string',
        );
      }
      return text === this.#text ? null : `=${text}`;
    }
  }
  const { begin, keep, seal, undo, writtenSize } = Message;
  // A selector that has a message must not come from it to the class, nor leave anything on its prototype.
  deleteProperty(Message.prototype, 'constructor');
  const members = ownKeys(Message.prototype).map((name) => {
    const { get, set } = getOwnPropertyDescriptor(Message.prototype, name) ?? {};
    freeze(get);
    freeze(set);
    return { name, get, set };
  });
  freeze(Message.prototype);

  /** Gives a message its members as properties of its own, of which a copy is made. */
  const expose = (message: Message): Message => {
    if (hasOwn(message, 'id')) return message;
    for (const { name, get, set } of members) {
      defineProperty(message, name, {
        get: () => apply(get as () => unknown, message, []),
        ...(set !== undefined && { set: (value: unknown) => apply(set, message, [value]) }),
        enumerable: true,
        configurable: true,
      });
    }
    return message;
  };
  /**
   * `env.msg` is a view of a message: five properties cost 4 µs to make, the view a third of a microsecond, and few
   * selectors list its properties.
   */
  const exposing: ProxyHandler<Message> = {
    get: (message, name) => message[name as keyof Message],
    set(message, name, value, receiver) {
      // What inherits from the view gets properties of its own.
      if (receiver !== view) return setOn(message, name, value, receiver);
      (message as unknown as Record<PropertyKey, unknown>)[name] = value;
      return true;
    },
    ownKeys: (message) => ownKeys(expose(message)),
    /**
     * There is no such trap, since with one the VM loses the accessors; but whatever looks for it needs the members.
     */
    get getOwnPropertyDescriptor() {
      if (current !== null) expose(current);
      return undefined as never;
    },
    preventExtensions: (message) => preventExtensions(expose(message)),
  };

  /** The code of what a selector returned, or an extra if it overrides something. @throws TypeError */
  function reduce(given: unknown, at: number): string | VerdictExtra {
    if (!given) return '0';
    if (typeof given === 'function') throw new TypeError('the selector gave a function; was a call meant?');
    if (typeof given !== 'object') return '1';
    const { then, mature, delay, tries } = given as Record<string, unknown>;
    if (typeof then === 'function')
      throw new TypeError('the selector gave a promise; it must answer at once');
    const matureS = asSecond('mature', mature, Infinity);
    if (matureS !== null && matureS > limits.mature)
      throw new RangeError('mature is in seconds, not milliseconds');
    const delayS = asSecond('delay', delay, limits.delay);
    if (tries !== undefined && tries !== null) {
      if (!isInteger(tries) || (tries as number) < 0 || (tries as number) > limits.tries) {
        throw new RangeError(`tries must be a whole number from 0 to ${limits.tries}`);
      }
    }
    const triesGiven = (tries ?? null) as number | null;
    if (matureS === null && delayS === null && triesGiven === null) return '1';
    return [at, null, matureS, delayS, triesGiven, null];
  }

  /** What was thrown, as text. Null: the heap was full. */
  function describe(thrown: unknown): string | null {
    try {
      if (thrown instanceof InternalError && thrown.message === 'out of memory') return null;
      return String(thrown).slice(0, 200);
    } catch {
      return 'the selector threw something that cannot be shown';
    }
  }

  /** The innermost place in the selector that an error's stack names, as a position in its script. */
  function placeOf(thrown: unknown): SourcePosition | null {
    try {
      const { stack } = thrown as { stack?: unknown };
      const found = typeof stack === 'string' ? /selector:(\d+):(\d+)/.exec(stack) : null;
      return found === null ? null : [Number(found[1]), Number(found[2])];
    } catch {
      return null;
    }
  }

  function add(step: Selector | string | null, isPure: boolean): void {
    if (typeof step === 'function') {
      freeze(step);
      if (step.prototype !== undefined) freeze(step.prototype);
    }
    program.push({ step, isPure });
  }

  function evaluate(input: string, softMs: number, logs: boolean): string {
    let position = 0;
    let lines = 0;
    sink.write = logs
      ? (text) => {
          lines += 1;
          if (lines <= limits.logLines) host.log(position, `=${text}`);
          else if (lines === limits.logLines + 1) host.log(position, '=… and more');
        }
      : null;
    const elements: Element[] = parse(input);
    const extras: VerdictExtra[] = [];
    const stopAt = now() + softMs;
    let codes = '';
    let count = 0;
    let written = 0;
    for (const element of elements) {
      if (count > 0 && (now() > stopAt || written >= limits.written)) break;
      const message = new Message(count, element);
      current = message;
      view = new Proxy(message, exposing);
      const env = { msg: view, state: {} };
      for (const { step, isPure } of program) {
        const at = codes.length;
        position = at;
        let answer: string | VerdictExtra = '1';
        if (typeof step === 'string') answer = [at, step, null, null, null, null];
        else if (step !== null) {
          try {
            begin(message, isPure);
            answer = reduce(step(env), at);
            seal(message, at);
          } catch (thrown) {
            const error = describe(thrown);
            if (error === null) throw thrown;
            undo(message);
            answer = [at, error, null, null, null, placeOf(thrown)];
          }
        }
        written += writtenSize(message);
        if (typeof answer === 'string') codes += answer;
        else {
          codes += answer[1] === null ? '2' : '3';
          extras.push(answer);
        }
      }
      count += 1;
    }
    return stringify([count, codes, extras]);
  }

  return { add, evaluate };
}

// In the VM's own library, not yet in the compiler's.
declare const Iterator: { from(source: object): { map(change: unknown): object } };

/** Where the console of selectors writes to. Null: nobody reads it. */
interface ConsoleSink {
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
function harden(sink: ConsoleSink): void {
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
