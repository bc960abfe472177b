import type { SourcePosition, VerdictExtra } from './protocol.ts';

// Defined by the VM, which throws it when its heap is full.
declare const InternalError: ErrorConstructor;

/** The worker's callbacks for the VM. The first character of a string is its type: `=` for text, `!` for an error. */
export interface GuestHost {
  /** The current body of element `at`: `=` and text, bytes, or `!` and an error message. */
  payload(at: number): string | Uint8Array;
  /**
   * Stores the changes of the selector at position `at` of the codes: headers as a JSON array of names and values, and
   * the payload (`=` and text, or bytes); null if unchanged. Stores both or neither. Returns an error message, or null.
   */
  seal(at: number, headers: string | null, payload: string | Uint8Array | null): string | null;
  /**
   * The VM starts or ends parsing or serializing a payload as JSON, whose time is not charged to the selectors. Called
   * only for texts longer than `GuestLimits.quickText`; `payload` itself marks the start of parsing.
   */
  converting(isOn: boolean): void;
  /** One line of a selector's console output: `=` and text. */
  log(at: number, text: string): void;
  /** The next random number from 0 up to 1. The VM's own ones are part of the image, so all VMs would have the same. */
  random(): number;
}

interface GuestLimits {
  /** JSON of at most this many characters is converted without being timed. */
  readonly quickText: number;
  /** Maximum lines of console output in one call. */
  readonly logLines: number;
  /** Approximate bytes written by selectors after which a call ends with the current element. */
  readonly written: number;
  // Maximum values in an object that a selector returns.
  /** Unix seconds. */
  readonly mature: number;
  /** Seconds. */
  readonly delay: number;
  readonly tries: number;
}

/** The names of the host methods that the guest calls. */
export const CALLBACKS = [
  'payload',
  'seal',
  'converting',
  'log',
  'random',
] as const satisfies readonly (keyof GuestHost)[];

/** A script whose value is a function of the host's {@link CALLBACKS} that hardens the VM and returns the guest. */
export function guestScript(limits: GuestLimits): string {
  const callbacks = CALLBACKS.join(', ');
  return `"use strict";(${callbacks}) => {
    const sink = { write: null };
    (${harden})(sink, random);
    return (${makeGuest})({ ${callbacks} }, ${JSON.stringify(limits)}, sink);
  }`;
}

/** The guest's functions that the worker calls. */
interface Guest {
  /**
   * Adds the next destination of the program: its selector, null to accept every element, or an error message. A
   * selector that `isPure` changes nothing if the message contains only data.
   * @param lateError the error of a selector that sets a maturity in the future; null: it may
   */
  add(step: Selector | string | null, isPure: boolean, lateError: string | null): void;
  /**
   * Runs all selectors for each element, in order, until `softMs` have passed or the selectors have written enough.
   * Returns JSON: `[number of elements, codes, extras]` as in `Called`.
   * @param headers as in `PackedElements`, as is `fields`
   * @param logs whether to report console output
   */
  evaluate(headers: string, fields: string, softMs: number, logs: boolean): string;
}

type Selector = (env: object) => unknown;

/**
 * Runs inside the VM, after {@link harden}; the VM evaluates this function's source text. All values that a selector
 * returns or throws are read in here, under the deadline: getters, `toString` and proxy traps of a selector never run
 * anywhere else. Returns only strings that it has created itself.
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
  interface Payload {
    value: unknown;
    /** The worker's version of it, if that is text. */
    text: string | null;
    /**
     * It was used after an impure selector: it may share objects with selectors, or have getters, so that it can change
     * at any time.
     */
    mayChange: boolean;
  }
  /** What impure selectors change in a message. */
  interface Changes {
    /** The headers for selectors. */
    view: Headers | null;
    /** The headers before the first write of the running selector; null before that. */
    before: Headers | null;
    /** Sizes of the written payload and headers. */
    payloadSize: number;
    headersSize: number;
  }
  interface Step {
    readonly step: Selector | string | null;
    readonly isPure: boolean;
    readonly lateError: string | null;
  }
  const program: Step[] = [];

  /** An invalid value of a result, for an error. Objects are not shown: they may have a `toString` of their own. */
  const show = (value: unknown): string =>
    typeof value === 'string'
      ? stringify(value.slice(0, 64))
      : typeof value === 'number' || typeof value === 'boolean'
        ? `${value}`
        : `a value of type ${typeof value}`;

  const asSecond = (name: string, value: unknown, max: number): number | null => {
    if (value === undefined || value === null) return null;
    if (typeof value !== 'number' || isNotNumber(value))
      throw new TypeError(`${name} must be a number of seconds, not ${show(value)}`);
    return value < 0 ? 0 : value > max ? max : value;
  };

  /** The JSON of the fields of the elements of this call; the empty string once it is parsed. */
  let fieldsJson = '';
  /** Parsed when a selector first reads one: most read only headers. */
  let fields: (string | number)[] = [];
  const fieldOf = (at: number, field: number): string | number => {
    if (fieldsJson !== '') {
      fields = parse(fieldsJson);
      fieldsJson = '';
    }
    return fields[at * 4 + field] as string | number;
  };

  /** The element whose selectors run, and whose headers are written. */
  let current: Message | null = null;
  /** Its view for selectors: `env.msg`. */
  let view: Message | null = null;
  /** The proxy handler of all views of headers, shared because creating three functions costs more than a view. */
  const headersHandler: ProxyHandler<Headers> = {
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

  /** An element as `env.msg`, including the changes of earlier destinations, and the changes to be stored. */
  class Message {
    readonly #at: number;
    /** Impure selectors get `Changes.view` instead, which detects the first write. */
    #headers: Headers;
    /** Null until a selector uses the payload; until then, only the worker has the body. */
    #payload: Payload | null = null;
    /** Null until an impure selector runs: until then, the message contains only data. */
    #changes: Changes | null = null;

    constructor(at: number, headers: Headers) {
      this.#at = at;
      // No prototype, so that a header may be named `constructor`.
      this.#headers = setPrototypeOf(headers, null);
    }

    get id(): unknown {
      return fieldOf(this.#at, 0);
    }
    get tries(): unknown {
      return fieldOf(this.#at, 1);
    }
    get mature(): unknown {
      return fieldOf(this.#at, 2);
    }

    get hdrs(): object {
      const changes = this.#changes;
      if (changes === null) return this.#headers;
      changes.view ??= new Proxy(this.#headers, headersHandler);
      return changes.view;
    }
    set hdrs(given: object) {
      if (typeof given !== 'object' || given === null) throw new TypeError('hdrs must be an object');
      const copy = setPrototypeOf({ ...given }, null);
      const changes = begin(this);
      changes.before ??= this.#headers;
      changes.view = null;
      this.#headers = copy;
    }

    get payload(): unknown {
      this.#payload ??= this.#readPayload();
      if (this.#changes !== null) this.#payload.mayChange = true;
      return this.#payload.value;
    }
    set payload(given: unknown) {
      this.#payload = { value: given, text: this.#payload?.text ?? null, mayChange: this.#changes !== null };
    }

    /** Call before the first impure selector. */
    static begin(message: Message): Changes {
      message.#changes ??= { view: null, before: null, payloadSize: 0, headersSize: 0 };
      return message.#changes;
    }

    /**
     * Stores the changes of the running selector. To detect a change, the payload is serialized, except while it cannot
     * have changed: until it is used by an impure selector or after one, it is data that is reachable only through the
     * getter.
     * @throws TypeError if it cannot be stored
     */
    static seal(message: Message, at: number): void {
      const changes = begin(message);
      const used = message.#payload;
      const payload = used?.mayChange ? message.#changedPayload(used) : null;
      const headers = changes.before === null ? null : message.#serializedHeaders();
      if (payload === null && headers === null) return;
      const error = host.seal(at, headers, payload);
      if (error !== null) throw new TypeError(error);
      changes.before = null;
      // A `toJSON` or a getter may have replaced the payload while it ran.
      const present = message.#payload;
      if (present !== null && typeof payload === 'string') present.text = payload.slice(1);
      if (payload !== null) changes.payloadSize = payload.length;
      if (headers !== null) changes.headersSize = headers.length;
    }

    /** Size of the parts of a copy that selectors have written so far, in characters or bytes. */
    static writtenSize(message: Message): number {
      const { payloadSize, headersSize } = begin(message);
      return payloadSize + headersSize;
    }

    /** Undoes the changes of a failed selector to the message, but not those to `env.state`. */
    static undo(message: Message): void {
      const changes = message.#changes;
      if (changes !== null && changes.before !== null) {
        message.#headers = changes.before;
        changes.view = null;
        changes.before = null;
      }
      message.#payload = null;
    }

    /** Call before a write to `headers`: saves them for {@link undo}. */
    static keep(message: Message | null, headers: Headers): void {
      // The selector may still have a view of headers that were replaced.
      if (message === null || message.#headers !== headers) return;
      begin(message).before ??= setPrototypeOf({ ...headers }, null);
    }

    #readPayload(): Payload {
      const body = host.payload(this.#at);
      if (typeof body !== 'string') return { value: body, text: null, mayChange: false };
      if (body[0] !== '=') throw new TypeError(body.slice(1));
      const text = body.slice(1);
      return { value: fieldOf(this.#at, 3) === JSON_KIND ? this.#parse(text) : text, text, mayChange: false };
    }

    /** If the text exceeds the heap, that is an error of the element, not an overrun of the selector. */
    #parse(text: string): unknown {
      try {
        return parse(text);
      } catch {
        throw new RangeError('the payload is too large or too deep to be parsed here');
      } finally {
        if (text.length > limits.quickText) host.converting(false);
      }
    }

    #stringify({ value, text }: Payload): string {
      const isLong = text !== null && text.length > limits.quickText;
      if (!isLong) return stringify(value);
      host.converting(true);
      try {
        return stringify(value);
      } finally {
        host.converting(false);
      }
    }

    #serializedHeaders(): string {
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

    /** The payload to store; null if unchanged. */
    #changedPayload(payload: Payload): string | Uint8Array | null {
      const { value } = payload;
      const kind = fieldOf(this.#at, 3);
      if (kind === BYTES_KIND) {
        if (!(value instanceof Uint8Array))
          throw new TypeError('the payload of this element must be a Uint8Array');
        // Copy it: the original may be a subclass, or a view of a resizable buffer.
        return new Uint8Array(value);
      }
      const text = kind === JSON_KIND ? this.#stringify(payload) : value;
      if (typeof text !== 'string') {
        throw new TypeError(
          kind === JSON_KIND ? 'the payload cannot be serialized as JSON' : 'the payload must be a string',
        );
      }
      return text === payload.text ? null : `=${text}`;
    }
  }
  const { begin, keep, seal, undo, writtenSize } = Message;
  // Selectors must neither reach the class through a message nor change its prototype.
  deleteProperty(Message.prototype, 'constructor');
  const members = ownKeys(Message.prototype).map((name) => {
    const { get, set } = getOwnPropertyDescriptor(Message.prototype, name) ?? {};
    freeze(get);
    freeze(set);
    return { name, get, set };
  });
  freeze(Message.prototype);

  /** Defines the members of a message as own properties, so that copies of it include them. */
  const defineMembers = (message: Message): Message => {
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
   * The proxy handler of `env.msg`. Defining five properties takes 4 µs, creating the view a third of a microsecond,
   * and few selectors list the properties.
   */
  const messageHandler: ProxyHandler<Message> = {
    get: (message, name) => message[name as keyof Message],
    set(message, name, value, receiver) {
      // An object that inherits from the view gets its own property.
      if (receiver !== view) return setOn(message, name, value, receiver);
      (message as unknown as Record<PropertyKey, unknown>)[name] = value;
      return true;
    },
    ownKeys: (message) => ownKeys(defineMembers(message)),
    /**
     * Returns no trap, because with one the VM would lose the accessors. But a lookup of the trap means that the
     * members are needed.
     */
    get getOwnPropertyDescriptor() {
      if (current !== null) defineMembers(current);
      return undefined as never;
    },
    preventExtensions: (message) => preventExtensions(defineMembers(message)),
  };

  /** The code for a selector's result, or an extra if it overrides something. @throws TypeError or RangeError */
  function reduce(given: unknown, at: number, lateError: string | null): string | VerdictExtra {
    if (!given) return '0';
    if (typeof given === 'function')
      throw new TypeError('the selector returned a function; did you mean to call it?');
    if (typeof given !== 'object') return '1';
    const { then, mature, delay, tries } = given as Record<string, unknown>;
    if (typeof then === 'function')
      throw new TypeError('the selector returned a promise; it must return its result directly');
    const matureS = asSecond('mature', mature, Infinity);
    if (matureS !== null && matureS > limits.mature)
      throw new RangeError(`mature is in seconds, not milliseconds; ${show(mature)} is too large`);
    const delayS = asSecond('delay', delay, limits.delay);
    const isLater = matureS === null ? delayS !== null && delayS > 0 : matureS * 1000 > now();
    if (isLater && lateError !== null) throw new TypeError(lateError);
    if (tries !== undefined && tries !== null) {
      if (!isInteger(tries) || (tries as number) < 0 || (tries as number) > limits.tries) {
        throw new RangeError(`tries must be a whole number from 0 to ${limits.tries}, not ${show(tries)}`);
      }
    }
    const triesGiven = (tries ?? null) as number | null;
    if (matureS === null && delayS === null && triesGiven === null) return '1';
    return [at, null, matureS, delayS, triesGiven, null];
  }

  /** Describes a thrown value; null if the heap was full. */
  function describe(thrown: unknown): string | null {
    try {
      if (thrown instanceof InternalError && thrown.message === 'out of memory') return null;
      return String(thrown).slice(0, 200);
    } catch {
      return 'the selector threw a value that cannot be converted to a string';
    }
  }

  /** The innermost position in the selector's script that an error's stack contains. */
  function placeOf(thrown: unknown): SourcePosition | null {
    try {
      const { stack } = thrown as { stack?: unknown };
      const found = typeof stack === 'string' ? /selector:(\d+):(\d+)/.exec(stack) : null;
      return found === null ? null : [Number(found[1]), Number(found[2])];
    } catch {
      return null;
    }
  }

  function add(step: Selector | string | null, isPure: boolean, lateError: string | null): void {
    if (typeof step === 'function') {
      freeze(step);
      if (step.prototype !== undefined) freeze(step.prototype);
    }
    program.push({ step, isPure, lateError });
  }

  function evaluate(headers: string, givenFields: string, softMs: number, logs: boolean): string {
    let position = 0;
    let lines = 0;
    sink.write = logs
      ? (text) => {
          lines += 1;
          if (lines <= limits.logLines) host.log(position, `=${text}`);
          else if (lines === limits.logLines + 1) host.log(position, '=… and more');
        }
      : null;
    const elements: Headers[] = parse(headers);
    fieldsJson = givenFields;
    const extras: VerdictExtra[] = [];
    const stopAt = now() + softMs;
    let codes = '';
    let count = 0;
    let written = 0;
    const { length: destinations } = program;
    for (const own of elements) {
      if (count > 0 && (now() > stopAt || written >= limits.written)) break;
      const message = new Message(count, own);
      current = message;
      view = new Proxy(message, messageHandler);
      const env = { msg: view, state: {} };
      let isData = true;
      // By index: an iterator would cost a quarter of a microsecond.
      for (let destination = 0; destination < destinations; destination += 1) {
        const { step, isPure, lateError } = program[destination] as Step;
        const at = codes.length;
        position = at;
        let answer: string | VerdictExtra = '1';
        if (typeof step === 'string') answer = [at, step, null, null, null, null];
        else if (step !== null) {
          try {
            if (isData && !isPure) {
              begin(message);
              // A replacement would be stored nowhere, and later selectors would see it.
              defineProperty(env, 'msg', { writable: false, configurable: false });
              isData = false;
            }
            answer = reduce(step(env), at, lateError);
            if (!isData) seal(message, at);
          } catch (thrown) {
            const error = describe(thrown);
            if (error === null) throw thrown;
            undo(message);
            answer = [at, error, null, null, null, placeOf(thrown)];
          }
        }
        if (!isData) written += writtenSize(message);
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

// Supported by the VM, but missing in the compiler's types.
declare const Iterator: { from(source: object): { map(change: unknown): object } };

/** The destination of console output; null: discard it. */
interface ConsoleSink {
  write: ((text: string) => void) | null;
}

/**
 * Runs once inside the VM, before any selector. The VM evaluates this function's source text, so it must not refer to
 * anything outside.
 *
 * Afterwards, no selector can change anything that is visible to a later element: every intrinsic, including the global
 * object, is frozen, and objects with internal state are removed. Also removed are ways to create code (`eval`,
 * function constructors) and to run code later (promises, weak references), so that a selector is finished when it
 * returns. Globals that a later QuickJS adds are removed until they are listed here.
 */
function harden(sink: ConsoleSink, random: GuestHost['random']): void {
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
  // These change the engine instead of the object, so freezing does not disable them.
  for (const name of ['prepareStackTrace', 'stackTraceLimit', 'captureStackTrace'])
    deleteProperty(Error, name);

  const unavailable = (name: string, prototype: object): object => {
    const throwUnavailable = (): never => {
      throw new TypeError(`${name} is not available to selectors`);
    };
    return defineProperty(throwUnavailable, 'prototype', { value: prototype });
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
  replace(Math, 'random', () => random());

  // Discarded console output costs only a call.
  const { stringify } = JSON;
  const printed = (value: unknown): string => {
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
      text += (text === '' ? '' : ' ') + printed(value);
      if (text.length > 1000) break;
    }
    sink.write(text.slice(0, 1000));
  };
  const output: Record<string, object> = {};
  for (const name of ['debug', 'error', 'info', 'log', 'warn']) {
    output[name] = (...values: unknown[]) => print(...values);
  }
  defineProperty(globalThis, 'console', { value: output });

  // A frozen prototype would also prevent `thing.constructor = …` or `error.name = …` on inheriting objects. As
  // accessors, these properties have the same value, and writing one defines a property of the object itself.
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

  // These prototypes are not reachable from a global, only from an instance.
  const hidden: unknown[] = [
    ...[[].values(), new Map().values(), new Set().values(), ''[Symbol.iterator](), ''.matchAll(/x/g)],
    ...[
      Iterator.from([]).map(String),
      Iterator.from({ next: () => ({ done: true, value: 0 }) }),
      ...functions,
    ],
  ];
  const seen = new Set<unknown>();
  const pending: unknown[] = [globalThis, ...hidden];
  while (pending.length > 0) {
    const next = pending.pop();
    if ((typeof next !== 'object' && typeof next !== 'function') || next === null || seen.has(next)) continue;
    seen.add(next);
    freeze(next);
    pending.push(getPrototypeOf(next));
    for (const key of ownKeys(next)) {
      const { value, get, set } = getOwnPropertyDescriptor(next, key) ?? {};
      pending.push(value, get, set);
    }
  }
}
