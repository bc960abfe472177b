import {
  type HostFunction,
  JSException,
  type JSValueHandle,
  QuickJS,
  type QuickJSOptions,
} from 'quickjs-wasi';
import { QuaysideError } from '../../model/errors.ts';
import { checkHeaders } from '../../model/headers.ts';
import { LIMITS } from '../../model/limits.ts';
import { SERVICE_HEADERS } from '../../model/service-headers.ts';
import { isAscii, toByteString } from '../../util/byte-string.ts';
import { messageOf } from '../../util/message-of.ts';
import { quote } from '../../util/quote.ts';
import { CALLBACKS, type GuestHost, guestScript } from '../guest.ts';
import { bodyAllowanceMs, QUICK_TEXT, type SandboxLimits, type SourceProblem } from '../limits.ts';
import {
  type Called,
  type LogLine,
  type Overrun,
  PAYLOAD_KINDS,
  type PackedElements,
  type PayloadKind,
  PROGRESS,
  type ProgramSources,
  type SourcePosition,
  VERDICT_CODES,
  type VerdictExtra,
  type VmImage,
  type WorkerAnswer,
  type WorkerRequest,
  type WorkerSetup,
} from '../protocol.ts';
import type { WasmModule } from '../worker-handle.ts';
import type { HeadersByName, HeaderTest } from './header-test.ts';
import { inSelector, readSelector, SelectorError, type SelectorScript } from './source.ts';

type CallRequest = Extract<WorkerRequest, { kind: 'call' }>;

interface Program {
  readonly steps: readonly ProgramStep[];
  /** Number of destinations that have a selector. */
  readonly selectors: number;
  /** By destination, null to accept every element. Null: a selector needs the VM, so all of them run in it. */
  readonly headerTests: readonly (HeaderTest | null)[] | null;
}

/**
 * Processes the requests of the selector worker. Each program, that is each exchange, has one VM, not each selector:
 * the destinations of an element share `env.state`, headers and payload as live objects, which copies between VMs could
 * not preserve, and they have one author, so they need no protection from each other. It is also cheaper: the payload
 * is parsed once for all destinations (50 µs per KiB), a VM takes 2 ms and 1.5 MiB, a call 60 µs. Exchanges never share
 * a VM; `harden` isolates elements from each other.
 */
export class SelectorThread {
  readonly #wasm: WasmModule;
  readonly #limits: SandboxLimits;
  readonly #progress: Int32Array;
  readonly #image: VmImage;
  readonly #deadline = new Deadline();
  readonly #programs = new Map<number, Program>();
  readonly #vms: VmCache;

  constructor(setup: WorkerSetup, image: VmImage) {
    this.#wasm = setup.wasm;
    this.#limits = setup.limits;
    this.#progress = new Int32Array(setup.progress);
    this.#image = image;
    this.#vms = new VmCache(setup.limits);
  }

  /** Returns null if a request has no answer. */
  async handle(request: WorkerRequest): Promise<{ answer: WorkerAnswer; ms: number } | null> {
    const startedMs = this.#step();
    if (request.kind === 'close') {
      this.#programs.delete(request.program);
      this.#vms.drop(request.program);
      return null;
    }
    const answer =
      request.kind === 'compile' ? await this.#compile(request.sources) : await this.#call(request);
    Atomics.store(this.#progress, PROGRESS.finished, request.seq);
    return { answer, ms: cpuMs() - startedMs };
  }

  /** Parses and compiles selectors. If this hangs and cannot be interrupted, the watchdog replaces the thread. */
  async #compile(sources: readonly string[]): Promise<WorkerAnswer> {
    this.#deadline.start(this.#limits.compileMs);
    const steps = sources.map((source) => this.#read(source));
    const vm = await this.#newVm();
    try {
      if (this.#deadline.passed) return this.#overrun(vm, null);
      this.#deadline.start(this.#limits.compileMs);
      const problems = steps.map((step): SourceProblem | null =>
        step instanceof SelectorError ? step.problem : vm.compile(step.script, () => {}),
      );
      if (this.#deadline.passed) return this.#overrun(vm, null);
      return { outcome: 'compiled', problems };
    } catch (error) {
      return this.#overrun(vm, error);
    } finally {
      vm.dispose();
    }
  }

  #read(source: string): SelectorScript | SelectorError {
    try {
      return readSelector(source);
    } catch (error) {
      if (error instanceof SelectorError) return error;
      throw error;
    }
  }

  #overrun(vm: SelectorVm, thrown: unknown, call: SelectorCall | null = null): Overrun {
    const overrun = vm.overrun(thrown);
    if (call === null) return overrun;
    return { ...overrun, inPayload: call.isPayloadToBlame, logs: call.logs };
  }

  async #call({ program: key, sources, elements, logs }: CallRequest): Promise<WorkerAnswer> {
    const cachedVm = this.#vms.take(key);
    if (cachedVm === null) this.#deadline.start(this.#limits.compileMs);
    const { steps, selectors, headerTests } =
      this.#programs.get(key) ?? this.#readProgram(key, sources ?? []);
    if (headerTests !== null && !this.#deadline.passed)
      return testHeaders(elements, headerTests, this.#limits.callMs / 2);
    const vm = cachedVm ?? (await this.#newVm());
    const call = new SelectorCall(
      elements,
      { destinations: steps.length, selectors },
      this.#limits,
      this.#deadline,
      (isOn) => Atomics.store(this.#progress, PROGRESS.inPayload, isOn ? 1 : 0),
    );
    try {
      if (cachedVm === null) {
        vm.load(steps);
        if (this.#deadline.passed) throw new Error('compiled too late');
        this.#step();
      }
      const answer = this.#evaluate(vm, steps, call, elements, logs);
      if (answer.outcome === 'overrun') vm.dispose();
      else this.#vms.put(key, vm);
      return answer;
    } catch (error) {
      const overrun = this.#overrun(vm, error, call);
      vm.dispose();
      return overrun;
    } finally {
      Atomics.store(this.#progress, PROGRESS.inPayload, 0);
    }
  }

  #evaluate(
    vm: SelectorVm,
    steps: readonly ProgramStep[],
    call: SelectorCall,
    elements: PackedElements,
    logs: boolean,
  ): WorkerAnswer {
    this.#deadline.start(this.#limits.callMs);
    const json = vm.evaluate(elements, this.#limits.callMs / 2, call, logs);
    // An uninterruptible built-in may have returned too late.
    if (this.#deadline.passed) return this.#overrun(vm, null, call);
    if (call.needsBodies) return { outcome: 'needs-bodies' };
    return readAnswer(json, elements.count, steps.length, call);
  }

  /** Parses stored selectors. They were valid before; if one no longer parses, its destination fails with the error. */
  #readProgram(key: number, sources: ProgramSources): Program {
    const steps = sources.map((source): ProgramStep => {
      if (source === null) return null;
      const { source: text, lateError } = typeof source === 'string' ? { source, lateError: null } : source;
      const step = this.#read(text);
      return step instanceof SelectorError
        ? { broken: `SyntaxError: ${step.message}` }
        : { ...step, lateError };
    });
    const selectors = steps.filter((step) => step !== null).length;
    const program = { steps, selectors, headerTests: headerTestsOf(steps) };
    this.#programs.set(key, program);
    return program;
  }

  async #newVm(): Promise<SelectorVm> {
    const vm = await SelectorVm.restore(this.#image, this.#wasm, this.#limits, this.#deadline);
    this.#step();
    return vm;
  }

  /** Reports progress to the watchdog: the next step has its own limit. Returns the thread's processor time, ms. */
  #step(): number {
    const ms = cpuMs();
    Atomics.store(this.#progress, PROGRESS.cpuMs, Math.floor(ms));
    Atomics.add(this.#progress, PROGRESS.steps, 1);
    return ms;
  }
}

/** Null: a step needs the VM. */
function headerTestsOf(steps: readonly ProgramStep[]): (HeaderTest | null)[] | null {
  const tests: (HeaderTest | null)[] = [];
  for (const step of steps) {
    if (step !== null && ('broken' in step || step.headerTest === null)) return null;
    tests.push(step?.headerTest ?? null);
  }
  return tests;
}

/** Runs the selectors of a program without a VM, as `Guest.evaluate` does in one. */
function testHeaders(
  { headers }: PackedElements,
  tests: readonly (HeaderTest | null)[],
  softMs: number,
): Called {
  const elements: HeadersByName[] = JSON.parse(headers);
  const stopAt = performance.now() + softMs;
  let codes = '';
  let count = 0;
  for (const own of elements) {
    if (count > 0 && performance.now() > stopAt) break;
    for (const test of tests) codes += test === null || test(own) ? VERDICT_CODES.yes : VERDICT_CODES.no;
    count += 1;
  }
  return { outcome: 'called', count, codes, extras: [], changes: [], bodies: NO_BODIES, logs: [] };
}

function cpuMs(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
}

/**
 * Caches VMs between calls. If they are too many or use too much linear memory, the least recently used are closed. A
 * VM never shrinks: after a large payload, it may hold twenty times its initial memory.
 */
export class VmCache {
  readonly #limits: Pick<SandboxLimits, 'liveVms' | 'liveBytes'>;
  /** In the order of use, because a map preserves insertion order. */
  readonly #vms = new Map<number, { readonly vm: SelectorVm; readonly bytes: number }>();
  #bytes = 0;

  constructor(limits: Pick<SandboxLimits, 'liveVms' | 'liveBytes'>) {
    this.#limits = limits;
  }

  /** Removes and returns a program's VM; `put` it back after use. */
  take(program: number): SelectorVm | null {
    const entry = this.#vms.get(program);
    if (entry === undefined) return null;
    this.#vms.delete(program);
    this.#bytes -= entry.bytes;
    return entry.vm;
  }

  put(program: number, vm: SelectorVm): void {
    const { bytes } = vm;
    this.#vms.set(program, { vm, bytes });
    this.#bytes += bytes;
    for (const oldest of this.#vms.keys()) {
      if (this.#vms.size <= this.#limits.liveVms && this.#bytes <= this.#limits.liveBytes) return;
      this.drop(oldest);
    }
  }

  drop(program: number): void {
    this.take(program)?.dispose();
  }
}

/**
 * The host of one call: passes bodies to the VM when a selector uses them, and collects and validates the changes of
 * selectors like those of an insert. Its methods do not throw; errors of selectors are returned as strings.
 */
export class SelectorCall implements GuestHost {
  /** In the order in which the selectors ran, and therefore ascending. */
  readonly changes: Called['changes'][number][] = [];
  readonly logs: LogLine[] = [];
  /** Whether a selector used a body that the call did not contain. */
  needsBodies = false;
  readonly random = Math.random;
  readonly #elements: PackedElements;
  readonly #destinations: number;
  readonly #writers: number;
  readonly #limits: SandboxLimits;
  readonly #deadline: Deadline;
  /** The last body that selectors wrote, by element. */
  readonly #lastWritten = new Map<number, Uint8Array>();
  readonly #written: Uint8Array[] = [];
  /** Total bytes of written bodies, by element. */
  readonly #writtenFor = new Map<number, number>();
  #writtenBytes = 0;
  readonly #granted = new Set<number>();
  /** The values of `PackedElements.notUtf8`, by element and name. */
  readonly #notUtf8: ReadonlyMap<string, string>;
  readonly #onConverting: (isOn: boolean) => void;
  #grantedMs = 0;
  /** `Deadline.usedMs` when the running conversion of a payload started; null: none is running. */
  #convertingSince: number | null = null;
  #convertedMs = 0;

  /** @param onConverting called when the VM starts or ends parsing or serializing a payload as JSON */
  constructor(
    elements: PackedElements,
    program: { readonly destinations: number; readonly selectors: number },
    limits: SandboxLimits,
    deadline: Deadline,
    onConverting: (isOn: boolean) => void = () => {},
  ) {
    this.#onConverting = onConverting;
    this.#elements = elements;
    this.#notUtf8 = new Map(elements.notUtf8.map(([element, name, value]) => [`${element} ${name}`, value]));
    this.#destinations = program.destinations;
    this.#writers = program.selectors;
    this.#limits = limits;
    this.#deadline = deadline;
  }

  payload(element: number): string | Uint8Array {
    if (this.#elements.bodies === null) {
      this.needsBodies = true;
      return '!the payload is still to come';
    }
    const body = this.#body(element);
    const kind = this.#kind(element);
    this.#grantFor(element, body.length);
    const isWatched = kind === PAYLOAD_KINDS.json && body.length > QUICK_TEXT;
    if (isWatched) this.converting(true);
    const payload = decodeBody(body, kind);
    // For longer JSON, the guest calls `converting(false)` after parsing. The text may be shorter than the body.
    if (
      isWatched &&
      (typeof payload !== 'string' || payload[0] !== '=' || payload.length - 1 <= QUICK_TEXT)
    ) {
      this.converting(false);
    }
    return payload;
  }

  converting(isOn: boolean): void {
    const now = this.#deadline.usedMs;
    if (this.#convertingSince !== null) this.#convertedMs += now - this.#convertingSince;
    this.#convertingSince = isOn ? now : null;
    this.#onConverting(isOn);
  }

  log(at: number, text: string): void {
    this.logs.push([at, text.slice(1)]);
  }

  /**
   * Whether payloads, not selectors, used up the time of this call: a conversion is still running, or conversions took
   * longer than both the time granted for their sizes and half of `callMs`.
   */
  get isPayloadToBlame(): boolean {
    if (this.#convertingSince !== null) return true;
    return this.#convertedMs > Math.max(this.#grantedMs, this.#limits.callMs / 2);
  }

  seal(at: number, headersJson: string | null, payload: string | Uint8Array | null): string | null {
    const element = Math.floor(at / this.#destinations);
    const headers = headersJson === null ? null : this.#readHeaders(element, headersJson);
    if (typeof headers === 'string') return headers;
    const body = payload === null ? null : this.#changedBody(element, payload);
    if (typeof body === 'string') return body;
    if (headers === null && body === null) return null;
    if (body !== null) {
      this.#lastWritten.set(element, body);
      this.#written.push(body);
      this.#writtenBytes += body.length;
    }
    this.changes.push([at, headers, body === null ? null : this.#writtenBytes]);
    return null;
  }

  /** All written bodies, concatenated in a buffer that can be transferred. */
  joinBodies(): Uint8Array<ArrayBuffer> {
    const joined = new Uint8Array(this.#writtenBytes);
    let end = 0;
    for (const body of this.#written) {
      joined.set(body, end);
      end += body.length;
    }
    return joined;
  }

  /**
   * The headers to store, or an error message. Text is encoded in UTF-8; unchanged values that are not UTF-8 are
   * preserved.
   */
  #readHeaders(element: number, json: string): readonly string[] | string {
    const flat: unknown = JSON.parse(json);
    if (!Array.isArray(flat) || !flat.every((part) => typeof part === 'string'))
      return 'the headers are not strings';
    for (let i = 0; i + 1 < flat.length; i += 2) {
      const [name = '', text = ''] = [flat[i], flat[i + 1]];
      if (isAscii(text)) continue;
      if (!text.isWellFormed()) return `header ${quote(name)} is not well-formed Unicode`;
      if (this.#notUtf8.get(`${element} ${name}`) !== text) flat[i + 1] = toByteString(text);
    }
    try {
      return checkHeaders(flat, { exempt: SERVICE_HEADERS });
    } catch (error) {
      if (error instanceof QuaysideError) return error.message;
      throw error;
    }
  }

  /** The body that a selector wrote, null if unchanged, or an error message. */
  #changedBody(element: number, payload: string | Uint8Array): Uint8Array | string | null {
    const kind = this.#kind(element);
    // Written but never read: repeat the call with bodies, which has the kind and the body to compare with.
    if (kind === undefined) {
      this.needsBodies = true;
      return null;
    }
    const body = encodeBody(payload, kind);
    if (typeof body === 'string') return body;
    const { bodyBytes, elementBytes } = this.#limits;
    if (body.length > bodyBytes) return `the payload has more than ${bodyBytes} bytes`;
    if (Buffer.compare(body, this.#body(element)) === 0) return null;
    // The host holds several copies of these bodies in memory.
    const written = (this.#writtenFor.get(element) ?? 0) + body.length;
    if (written > elementBytes) return `selectors wrote more than ${elementBytes} bytes for this element`;
    this.#writtenFor.set(element, written);
    return body;
  }

  #kind(element: number): PayloadKind {
    return this.#elements.bodies?.kinds[element] as PayloadKind;
  }

  #body(element: number): Uint8Array {
    const written = this.#lastWritten.get(element);
    if (written !== undefined) return written;
    const { bytes, ends } = this.#elements.bodies as NonNullable<PackedElements['bodies']>;
    return bytes.subarray(element === 0 ? 0 : ends[element - 1], ends[element]);
  }

  #grantFor(element: number, bytes: number): void {
    if (this.#granted.has(element)) return;
    this.#granted.add(element);
    const wanted = bodyAllowanceMs(this.#limits, bytes, this.#writers);
    const granted = Math.min(wanted, this.#limits.maxBodyMs - this.#grantedMs);
    this.#grantedMs += granted;
    this.#deadline.grant(granted);
  }
}

/** Rejects invalid UTF-8 instead of replacing it, because an unchanged body must be preserved. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The body as `GuestHost.payload` returns it. */
function decodeBody(body: Uint8Array, kind: PayloadKind): string | Uint8Array {
  switch (kind) {
    case PAYLOAD_KINDS.bytes:
      return body;
    case PAYLOAD_KINDS.latin1:
      return `=${Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('latin1')}`;
    case PAYLOAD_KINDS.utf8:
      try {
        return `=${utf8.decode(body)}`;
      } catch {
        return '!the payload is not UTF-8';
      }
    case PAYLOAD_KINDS.json:
      return normalizeJson(body);
    default:
      return kind satisfies never;
  }
}

/**
 * Normalizes JSON before the VM gets it: the VM then serializes an unchanged value to the same string, so that one
 * comparison detects changes. The stored bytes remain as the producer sent them.
 */
function normalizeJson(body: Uint8Array): string {
  try {
    const text = utf8.decode(body);
    return `=${JSON.stringify(JSON.parse(text.charCodeAt(0) === 0xfeff ? text.slice(1) : text))}`;
  } catch (error) {
    // Serializing a value that is nested too deeply for the stack throws; parsing it does not.
    return error instanceof RangeError ? '!the payload is nested too deeply' : '!the payload is not JSON';
  }
}

/** Encodes a payload that a selector wrote. Returns the bytes to store, or an error message. */
function encodeBody(payload: string | Uint8Array, kind: PayloadKind): Uint8Array | string {
  if (typeof payload !== 'string') return payload;
  const text = payload.slice(1);
  if (kind === PAYLOAD_KINDS.latin1) {
    const bytes = Buffer.from(text, 'latin1');
    return bytes.toString('latin1') === text ? bytes : 'the payload has a character above U+00FF';
  }
  return text.isWellFormed() ? Buffer.from(text) : 'the payload is not well-formed Unicode';
}

const NO_BODIES = new Uint8Array(0);

/**
 * Parses the guest's answer. Every value is validated although the guest is our code: a selector that could write to
 * the VM's memory could forge the answer.
 * @throws Error if it is malformed
 */
export function readAnswer(json: string, elements: number, destinations: number, call: SelectorCall): Called {
  const answer: unknown = JSON.parse(json);
  if (!Array.isArray(answer) || answer.length !== 3) throw malformed('answer');
  const [count, codes, extras] = answer;
  if (!Number.isInteger(count) || count < 1 || count > elements) throw malformed('count');
  if (typeof codes !== 'string' || codes.length !== count * destinations || !/^[0-3]*$/.test(codes)) {
    throw malformed('codes');
  }
  if (!Array.isArray(extras)) throw malformed('extras');
  return {
    outcome: 'called',
    count,
    codes,
    extras: extras.map((extra) => readExtra(extra, codes)),
    changes: call.changes,
    bodies: call.changes.length === 0 ? NO_BODIES : call.joinBodies(),
    logs: call.logs,
  };
}

function readExtra(extra: unknown, codes: string): VerdictExtra {
  if (!Array.isArray(extra)) throw malformed('extra');
  const [at, error, mature, delay, tries, place] = extra;
  if (codes[at] === '3' ? typeof error !== 'string' : codes[at] !== '2') throw malformed('extra');
  if (![mature, delay, tries].every((value) => value === null || (Number.isFinite(value) && value >= 0))) {
    throw malformed('extra');
  }
  return [at, error === null ? null : error.slice(0, 200), mature, delay, tries, readPlace(place)];
}

/** Converts a position in the script, whose first line is not part of the selector. */
function readPlace(place: unknown): SourcePosition | null {
  if (place === null) return null;
  if (!Array.isArray(place) || place.length !== 2 || !place.every(Number.isSafeInteger)) {
    throw malformed('place');
  }
  const [line, column] = place;
  return line < 2 ? null : [line - 1, column];
}

function malformed(part: string): Error {
  return new Error(`the guest's ${part} is malformed`);
}

/**
 * The time budget of the running step. It counts the thread's processor time, so that a harmless selector does not
 * overrun on a busy machine; the watchdog on the main thread bounds the wall time. Checks read the wall clock first:
 * that takes a third of the time of reading the processor time, which cannot have advanced further.
 */
export class Deadline {
  #budgetMs = 0;
  #allowanceMs = 0;
  #startCpu = process.threadCpuUsage();
  /** The budget cannot be exhausted before this moment. */
  #notBefore = 0;
  #passed = false;

  /** Starts a step with a budget, to which `grant` may add. */
  start(budgetMs: number): void {
    this.#budgetMs = budgetMs;
    this.#allowanceMs = 0;
    this.#startCpu = process.threadCpuUsage();
    this.#notBefore = performance.now() + budgetMs;
    this.#passed = false;
  }

  /** Adds to the running step's budget. */
  grant(ms: number): void {
    this.#allowanceMs += ms;
  }

  /** Processor time of the running step, ms. */
  get usedMs(): number {
    const { user, system } = process.threadCpuUsage(this.#startCpu);
    return (user + system) / 1000;
  }

  /** Whether the step has exhausted its budget. Remains true until the next step. */
  get passed(): boolean {
    if (this.#passed) return true;
    const now = performance.now();
    if (now < this.#notBefore) return false;
    const leftMs = this.#budgetMs + this.#allowanceMs - this.usedMs;
    this.#passed = leftMs <= 0;
    this.#notBefore = now + Math.max(leftMs, 1);
    return this.#passed;
  }
}

/** A destination for the VM: a script, null to accept every element, or the error of an invalid selector. */
type ProgramStep = ScriptStep | { readonly broken: string } | null;

/** A script with the error of a maturity in the future; null or not given: the destination stores one. */
type ScriptStep = SelectorScript & { readonly lateError?: string | null };

/** The message of the VM's error when its heap is full. */
const OUT_OF_MEMORY = 'out of memory';
const DEADLINE_OVERRUN: Overrun = {
  outcome: 'overrun',
  cause: 'deadline',
  error: 'the selector took too long',
  inPayload: false,
};
const MEMORY_OVERRUN: Overrun = {
  outcome: 'overrun',
  cause: 'memory',
  error: 'the selector used too much memory',
  inPayload: false,
};

const guestLimits = ({ writtenBytes }: SandboxLimits) => ({
  quickText: QUICK_TEXT,
  logLines: 50,
  written: writtenBytes,
  mature: LIMITS.matureAt / 1000,
  delay: LIMITS.delayMs / 1000,
  tries: LIMITS.tries,
});

export async function makeImage(wasm: WasmModule, limits: SandboxLimits): Promise<VmImage> {
  const vm = await QuickJS.create(options(wasm, limits, () => false));
  const make = vm.evalCode(guestScript(guestLimits(limits)));
  const host = CALLBACKS.map((name) => vm.newFunction(name, () => vm.null));
  const guest = vm.callFunction(make, vm.null, ...host);
  const [add, evaluate] = [guest.getProp('add'), guest.getProp('evaluate')].map((handle) =>
    vm.exportHandle(handle),
  );
  const snapshot = vm.snapshot();
  const memory = new Uint8Array(new SharedArrayBuffer(snapshot.memory.byteLength));
  memory.set(snapshot.memory);
  return { snapshot: { ...snapshot, memory }, add: add as number, evaluate: evaluate as number };
}

type CallbackArguments = readonly [JSValueHandle, JSValueHandle, JSValueHandle];

/** One VM with the selectors of one exchange. Must be disposed after a method has thrown. */
export class SelectorVm {
  readonly #vm: QuickJS;
  readonly #add: JSValueHandle;
  readonly #evaluate: JSValueHandle;
  readonly #deadline: Deadline;
  readonly #memory: LinearMemory | null;
  #host: GuestHost | null = null;
  /** The error of a callback while the VM ran; `evaluate` throws it. */
  #callbackError: Error | null = null;
  /** The last value that a callback returned to the VM. The library copies the handle, so this one must be disposed. */
  #lastReturned: JSValueHandle;

  static async restore(
    image: VmImage,
    wasm: WasmModule,
    limits: SandboxLimits,
    deadline: Deadline,
  ): Promise<SelectorVm> {
    let memory: LinearMemory | null = null;
    const withMemory = options(
      wasm,
      limits,
      () => deadline.passed,
      (own) => {
        memory = own;
      },
    );
    const vm = await QuickJS.restore(image.snapshot, withMemory);
    return new SelectorVm(vm, image, deadline, memory);
  }

  private constructor(vm: QuickJS, image: VmImage, deadline: Deadline, memory: LinearMemory | null) {
    this.#vm = vm;
    this.#add = vm.importHandle(image.add);
    this.#evaluate = vm.importHandle(image.evaluate);
    this.#deadline = deadline;
    this.#memory = memory;
    this.#lastReturned = vm.null;
    const callbacks: Record<(typeof CALLBACKS)[number], (...args: CallbackArguments) => JSValueHandle> = {
      payload: (element) => this.#payload(element),
      seal: (at, headers, payload) => this.#seal(at, headers, payload),
      converting: (isOn) => {
        this.#host?.converting(isOn.toBoolean());
        return vm.null;
      },
      log: (at, text) => {
        this.#host?.log(at.toNumber(), readText(text));
        return vm.null;
      },
      random: () => vm.newNumber(this.#host?.random() ?? 0),
    };
    for (const name of CALLBACKS) {
      vm.registerHostCallback(name, this.#guard(callbacks[name] as HostFunction));
    }
  }

  /** Bytes of the VM's linear memory. */
  get bytes(): number {
    return this.#memory?.buffer.byteLength ?? 0;
  }

  /** Adds the destinations. If the VM rejects a script, its destination fails with this error. */
  load(steps: readonly ProgramStep[]): void {
    for (const step of steps) {
      if (step === null) this.#addStep(this.#vm.null);
      else if ('broken' in step) this.#addText(step.broken);
      else {
        const problem = this.compile(step.script, (selector) => this.#addStep(selector, step));
        if (problem !== null) this.#addText(`SyntaxError: ${problem.message}`);
      }
    }
  }

  /**
   * Compiles a script and passes its value to `use`. Returns the compiler's error, or null. Runs no code of the
   * selector's author: the script only evaluates to a function.
   */
  compile(script: string, use: (selector: JSValueHandle) => void): SourceProblem | null {
    let selector: JSValueHandle;
    try {
      selector = this.#vm.evalCode(script, 'selector');
    } catch (error) {
      if (!(error instanceof JSException) || error.name !== 'SyntaxError') throw error;
      const [, line, column] = /selector:(\d+)(?::(\d+))?/.exec(error.stack ?? '') ?? [];
      error.dispose();
      return inSelector(error.message, line === undefined ? undefined : Number(line), Number(column ?? 1));
    }
    use(selector);
    selector.dispose();
    return null;
  }

  /**
   * Calls the guest's `evaluate`. Returns JSON that the guest itself wrote.
   * @param logs whether to report console output
   * @throws the error that ended the call early: see {@link overrun}
   */
  evaluate(
    { headers, fields }: Pick<PackedElements, 'headers' | 'fields'>,
    softMs: number,
    host: GuestHost,
    logs = false,
  ): string {
    this.#host = host;
    const texts = [headers, fields].map((text) => this.#vm.newString(text));
    const soft = this.#vm.newNumber(softMs);
    const wantsLogs = logs ? this.#vm.true : this.#vm.false;
    const answer = this.#vm.callFunction(this.#evaluate, this.#vm.null, ...texts, soft, wantsLogs);
    const json = readText(answer);
    for (const handle of [...texts, soft, answer, this.#lastReturned]) handle.dispose();
    this.#lastReturned = this.#vm.null;
    this.#host = null;
    if (this.#callbackError !== null) throw this.#callbackError;
    return json;
  }

  dispose(): void {
    this.#vm.dispose();
  }

  /** Classifies the error that ended a step. */
  overrun(thrown: unknown): Overrun {
    if (this.#deadline.passed) return DEADLINE_OVERRUN;
    const message = messageOf(thrown);
    // The second message is the library's, for its own part of the heap; the third means an error that is too large to
    // read.
    if (message === OUT_OF_MEMORY || message === 'wasm_malloc failed' || message.startsWith('<null>'))
      return MEMORY_OVERRUN;
    // A WebAssembly trap, an overflow of the native stack, or a malformed answer.
    return {
      outcome: 'overrun',
      cause: 'crash',
      error: `the selector crashed its VM: ${message.slice(0, 100)}`,
      inPayload: false,
    };
  }

  #addStep(step: JSValueHandle, { isPure = false, lateError = null }: Partial<ScriptStep> = {}): void {
    const pure = isPure ? this.#vm.true : this.#vm.false;
    const error = lateError === null ? this.#vm.null : this.#vm.newString(lateError);
    for (const handle of [this.#vm.callFunction(this.#add, this.#vm.null, step, pure, error), error]) {
      handle.dispose();
    }
  }

  #addText(text: string): void {
    const handle = this.#vm.newString(text.slice(0, 200));
    this.#addStep(handle);
    handle.dispose();
  }

  #payload(element: JSValueHandle): JSValueHandle {
    const payload = this.#host?.payload(element.toNumber()) ?? '!there is no element';
    return typeof payload === 'string' ? this.#vm.newString(payload) : this.#vm.newUint8Array(payload);
  }

  #seal(at: JSValueHandle, headers: JSValueHandle, payload: JSValueHandle): JSValueHandle {
    const written = payload.isNull ? null : payload.isString ? readText(payload) : payload.toUint8Array();
    const refusal =
      this.#host?.seal(at.toNumber(), headers.isNull ? null : readText(headers), written) ?? null;
    return refusal === null ? this.#vm.null : this.#vm.newString(refusal);
  }

  /** Catches errors of the host: thrown into the VM, their stacks would reveal paths of the server to selectors. */
  #guard(callback: (...args: JSValueHandle[]) => JSValueHandle): (...args: JSValueHandle[]) => JSValueHandle {
    return (...args) => {
      this.#lastReturned.dispose();
      this.#lastReturned = this.#vm.null;
      try {
        this.#lastReturned = callback(...args);
        return this.#lastReturned;
      } catch (error) {
        this.#callbackError ??= error instanceof Error ? error : new Error(String(error));
        return this.#vm.null;
      }
    };
  }
}

/**
 * Reads a string from the guest. If memory for a copy is lacking, the library returns `<null>`; strings of the guest
 * never start with `<`.
 */
function readText(handle: JSValueHandle): string {
  const text = handle.toString();
  if (text.startsWith('<')) throw new Error(OUT_OF_MEMORY);
  return text;
}

interface LinearMemory {
  readonly buffer: ArrayBuffer;
}

function options(
  wasm: WasmModule,
  limits: SandboxLimits,
  interruptHandler: () => boolean,
  onMemory: (memory: LinearMemory) => void = () => {},
): QuickJSOptions {
  return {
    wasm,
    memoryLimit: limits.memoryBytes,
    maxStackSize: limits.stackBytes,
    interruptHandler,
    timezoneOffset: 0,
    wasi: (memory) => {
      onMemory(memory);
      // The default would print the messages of a failing VM to the output of this process.
      return { fd_write: () => 8 };
    },
  };
}
