import type { Delivery, ElementHeaders } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { fromByteString } from '../util/byte-string.ts';
import { type Clock, systemClock, toMs } from '../util/clock.ts';
import type { Service } from '../util/service.ts';
import { Dispatcher } from './dispatcher.ts';
import { bodyAllowanceMs, DEFAULT_LIMITS, type SandboxLimits, type SourceProblem } from './limits.ts';
import {
  type Called,
  type NotUtf8Header,
  type OverrunCause,
  PAYLOAD_KINDS,
  type PackedElements,
  type PayloadKind,
  type ProgramSources,
  type SourcePosition,
  VERDICT_CODES,
  type VerdictExtra,
  type WorkerAnswer,
} from './protocol.ts';
import type { Payer } from './request-queue.ts';

export interface ProgramOptions {
  /** The user whose share of the worker's time is used; defaults to the node itself. */
  readonly payer?: Payer;
  /** Whether answers contain the console output of selectors; defaults to false. */
  readonly logs?: boolean;
  /** Whether verdicts omit the headers and bodies that selectors wrote; defaults to false. */
  readonly decidesOnly?: boolean;
}

interface SelectorSource {
  readonly source: string;
  /** The path of its field in the request, such as `dst[0].selector`. */
  readonly path: string;
}

/** The selectors of one exchange, which have a VM of their own. */
export interface SelectorProgram {
  /**
   * Runs the selectors of all destinations for each element. Returns the answers in the order of the elements. If the
   * selectors write more than `writtenBytes`, returns answers for only the first elements: the caller must store these
   * copies before it continues with the rest. Batches of any size are split into calls; calls may overlap and
   * interleave with those of other programs.
   * @throws QuaysideError `shutting-down` after `stop`, `internal` if the thread cannot be started
   */
  select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]>;
  /**
   * As `select`, for elements whose bodies have not been read and are empty. Returns null if a selector needs bodies,
   * now or in an earlier call; then call `select` with the bodies.
   */
  selectWithoutBodies(elements: readonly SelectorInput[]): Promise<SelectorAnswer[] | null>;
  /** Closes the VM. A later `select` opens it again. */
  close(): void;
}

/** The parts of an element that selectors may read. */
export type SelectorInput = Pick<
  Delivery,
  'id' | 'tries' | 'matureAt' | 'headers' | 'body' | 'contentType' | 'contentEncoding'
>;

/** One line of a selector's console output, with the index of its destination. */
export type DestinationLogLine = readonly [destination: number, text: string];

/**
 * The result for one element.
 * - `evaluated`: the selectors ran; there is one verdict per destination.
 * - `overrun`: a selector exceeded its time or memory, or converting the payload for the selectors took too long
 *   (`inPayload`). No destination has a verdict.
 * - `not-evaluated`: the selectors did not run, because the previous `maxOverrunsInARow` elements overran or the
 *   program was closed. Return the element undelivered, without counting a try.
 */
export type SelectorAnswer =
  | {
      readonly outcome: 'evaluated';
      readonly verdicts: readonly SelectorVerdict[];
      readonly logs: readonly DestinationLogLine[];
    }
  | {
      readonly outcome: 'overrun';
      readonly cause: OverrunCause;
      readonly error: string;
      readonly inPayload: boolean;
      /** Console output until the overrun. */
      readonly logs?: readonly DestinationLogLine[];
    }
  | { readonly outcome: 'not-evaluated' };

type EvaluatedAnswer = Extract<SelectorAnswer, { outcome: 'evaluated' }>;

export interface SelectorVerdict {
  /** Whether this destination accepts the element. */
  readonly accepted: boolean;
  /**
   * The error that the selector threw, at most 200 characters, followed by its position if known; otherwise null. After
   * an error, `accepted` is false and the selector's changes are undone.
   */
  readonly error: string | null;
  /** The position of the error in the selector; null if unknown. */
  readonly place: SourcePosition | null;
  /** Ms since 1970; null if the selector set none. */
  readonly matureAt: number | null;
  /** Null if the selector set none, or a maturity. */
  readonly delayMs: number | null;
  /** Null if the selector set none. */
  readonly tries: number | null;
  /**
   * The headers of this destination's copy, validated as for an insert, without those that the exchange adds; null:
   * unchanged.
   */
  readonly headers: ElementHeaders | null;
  /** The body of this destination's copy; null: unchanged. */
  readonly body: Uint8Array | null;
}

interface SandboxOptions {
  readonly clock?: Clock;
  readonly limits?: Partial<SandboxLimits>;
}

export type SelectorSandbox = Pick<WorkerSandbox, keyof WorkerSandbox>;

/**
 * Runs the selectors of exchanges so that they cannot escape, harm the server, or block other selectors: see ADR 4.
 * They run in QuickJS, compiled to WebAssembly, in one worker thread, which starts with `start`, or when the first
 * selector is checked or run.
 */
export class WorkerSandbox implements Service {
  readonly #limits: SandboxLimits;
  readonly #dispatcher: Dispatcher;
  #programs = 0;

  constructor({ clock = systemClock, limits = {} }: SandboxOptions = {}) {
    this.#limits = { ...DEFAULT_LIMITS, ...limits };
    this.#dispatcher = new Dispatcher(clock, this.#limits);
  }

  /** Does not wait for the thread; requests wait until it is ready. */
  async start(): Promise<void> {
    this.#dispatcher.start();
  }

  stop(): Promise<void> {
    return this.#dispatcher.stop();
  }

  /**
   * Checks selectors before their exchange is created: syntax, size, unsupported constructs, and the time to compile
   * them.
   * @param payer the user whose share of the worker's time is used
   * @throws QuaysideError `invalid-body`; `details.parameter` is the selector's `path`, and `details.extra` has `line`
   * and `column` (from 1) if the position is known. `shutting-down` after `stop`.
   */
  async check(selectors: readonly SelectorSource[], payer: Payer): Promise<void> {
    const [first] = selectors;
    if (first === undefined) return;
    const sources = selectors.map(({ source }) => source);
    const answer = await this.#dispatcher.request({ kind: 'compile', payer, sources });
    if (answer.outcome === 'overrun') throw invalidSelector(first.path, compileOverrun(answer.error));
    if (answer.outcome !== 'compiled') throw unexpected(answer.outcome);
    for (const [index, problem] of answer.problems.entries()) {
      if (problem !== null) throw invalidSelector((selectors[index] as SelectorSource).path, problem);
    }
  }

  /**
   * Opens the program of an exchange. `selectors` has an entry for each destination in order: a selector, or null to
   * accept every element. The thread and the VM start with the first `select`. If a stored selector no longer
   * compiles, its destination fails for each element.
   */
  open(selectors: ProgramSources, options: ProgramOptions = {}): SelectorProgram {
    if (selectors.every((selector) => selector === null)) return new AcceptAllProgram(selectors.length);
    this.#programs += 1;
    return new WorkerProgram(this.#dispatcher, this.#limits, this.#programs, selectors, options);
  }
}

function compileOverrun(error: string): SourceProblem {
  return { message: `Compiling this: ${error}.`, line: null, column: null };
}

/** The client's error for an invalid selector; `path` is the selector's path in the request. */
function invalidSelector(path: string, problem: SourceProblem): QuaysideError {
  const { message, line, column } = problem;
  const where = line === null ? '' : `, line ${line}, column ${column ?? 1}`;
  return new QuaysideError('invalid-body', `${path}${where}: ${message}`, {
    parameter: path,
    ...(line === null ? {} : { extra: { line, column: column ?? 1 } }),
  });
}

/** A program without selectors: all destinations accept every element. */
class AcceptAllProgram implements SelectorProgram {
  readonly #destinations: number;

  constructor(destinations: number) {
    this.#destinations = destinations;
  }

  async select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    return elements.map(() => allAccept(this.#destinations));
  }

  selectWithoutBodies(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    return this.select(elements);
  }

  close(): void {}
}

/** A call to the worker for `count` elements from index `from`. */
interface SentCall {
  readonly from: number;
  readonly count: number;
  readonly answer: Promise<WorkerAnswer>;
}

class WorkerProgram implements SelectorProgram {
  readonly #dispatcher: Dispatcher;
  readonly #limits: SandboxLimits;
  readonly #key: number;
  readonly #sources: ProgramSources;
  readonly #payer: Payer;
  readonly #logs: boolean;
  readonly #decidesOnly: boolean;
  readonly #selectors: number;
  /**
   * Whether calls contain bodies: false until a selector uses one, since most selectors read headers only. Selectors
   * have no state between calls, so a call can be repeated with the bodies.
   */
  #withBodies = false;
  /**
   * Whether the last call evaluated all of its elements. The next call is then sent before its answer has come, so that
   * the worker does not idle while this thread reads it: exchanges that change payloads forward 12 % more.
   */
  #isSteady = false;
  /** Number of `close` calls. */
  #closes = 0;

  constructor(
    dispatcher: Dispatcher,
    limits: SandboxLimits,
    key: number,
    sources: ProgramSources,
    { payer = '', logs = false, decidesOnly = false }: ProgramOptions,
  ) {
    this.#dispatcher = dispatcher;
    this.#limits = limits;
    this.#key = key;
    this.#sources = sources;
    this.#payer = payer;
    this.#logs = logs;
    this.#decidesOnly = decidesOnly;
    this.#selectors = sources.filter((source) => source !== null).length;
  }

  /**
   * If a call with several elements overruns, it is repeated with one element at a time, to find the element that
   * overruns and to get verdicts for the others.
   */
  async select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    return (await this.#select(elements, true)) ?? [];
  }

  selectWithoutBodies(elements: readonly SelectorInput[]): Promise<SelectorAnswer[] | null> {
    return this.#select(elements, false);
  }

  async #select(elements: readonly SelectorInput[], hasBodies: boolean): Promise<SelectorAnswer[] | null> {
    const closes = this.#closes;
    const answers: SelectorAnswer[] = [];
    let oneByOneUntil = 0;
    let overrunsInARow = 0;
    let written = 0;
    let ahead: SentCall | null = null;
    while (answers.length < elements.length && written < this.#limits.writtenBytes) {
      const from = answers.length;
      if (this.#withBodies && !hasBodies) return null;
      // After `close`, another call would reopen the program in the worker, and nothing would close it.
      if (this.#closes !== closes || overrunsInARow >= this.#limits.maxOverrunsInARow) {
        answers.push({ outcome: 'not-evaluated' });
        continue;
      }
      const callFrom = (at: number): SentCall =>
        this.#call(elements, at, at < oneByOneUntil ? 1 : elements.length);
      // If the call before did not evaluate all of its elements, this call starts at another element than expected.
      const call: SentCall = ahead?.from === from ? ahead : callFrom(from);
      const end = from + call.count;
      ahead = this.#isSteady && end < elements.length ? callFrom(end) : null;
      const answer = await call.answer;
      this.#isSteady = answer.outcome === 'called' && answer.count === call.count;
      if (answer.outcome === 'called') {
        const called = this.#decidesOnly ? withoutChanges(answer) : answer;
        for (const evaluated of readVerdicts(called, this.#sources.length)) {
          if (called.changes.length > 0) written += writtenBytes(evaluated.verdicts);
          answers.push(evaluated);
        }
        overrunsInARow = 0;
      } else if (answer.outcome === 'needs-bodies') {
        this.#withBodies = true;
      } else if (answer.outcome !== 'overrun') {
        throw unexpected(answer.outcome);
      } else if (call.count > 1) {
        oneByOneUntil = end;
      } else {
        // In a call with one element, the positions of log lines equal destination indexes.
        answers.push(answer);
        overrunsInARow += 1;
      }
    }
    return answers;
  }

  close(): void {
    this.#closes += 1;
    this.#dispatcher.close(this.#key);
  }

  /** @param maxCount of elements; the call may have fewer */
  #call(elements: readonly SelectorInput[], from: number, maxCount: number): SentCall {
    const closes = this.#closes;
    const withBodies = this.#withBodies;
    const count = Math.min(maxCount, callSize(elements, from, this.#limits, withBodies));
    let bytes = 0;
    if (withBodies) for (const { body } of elements.slice(from, from + count)) bytes += body.length;
    const answer = this.#dispatcher.request({
      kind: 'call',
      payer: this.#payer,
      program: this.#key,
      sources: this.#sources,
      logs: this.#logs,
      pack: () => packElements(elements, from, count, withBodies),
      allowanceMs: bytes === 0 ? 0 : bodyAllowanceMs(this.#limits, bytes, this.#selectors),
    });
    const reclose = (): void => {
      // A call that was waiting during `close` has reopened the program in the worker.
      if (this.#closes !== closes) this.#dispatcher.close(this.#key);
    };
    answer.then(reclose, reclose);
    return { from, count, answer };
  }
}

function withoutChanges(called: Called): Called {
  return { ...called, changes: [], bodies: NO_BODIES };
}

/** Bytes of the headers and bodies that selectors wrote, counted for each copy. */
export function writtenBytes(verdicts: readonly SelectorVerdict[]): number {
  let bytes = 0;
  for (const { headers, body } of verdicts) {
    if (body !== null) bytes += body.byteLength;
    if (headers !== null) for (const text of headers) bytes += text.length;
  }
  return bytes;
}

function unexpected(outcome: string): Error {
  return new Error(`the selector worker answered '${outcome}' to something else`);
}

// Packing of requests for the worker, and parsing of its replies.

/** The number of elements in the call that starts at index `from`. */
export function callSize(
  elements: readonly SelectorInput[],
  from: number,
  limits: Pick<SandboxLimits, 'batch' | 'batchBodyBytes'>,
  withBodies: boolean,
): number {
  const maxCount = Math.min(elements.length - from, limits.batch);
  if (!withBodies) return maxCount;
  let bytes = 0;
  for (let count = 0; count < maxCount; count += 1) {
    bytes += (elements[from + count] as SelectorInput).body.length;
    if (bytes > limits.batchBodyBytes && count > 0) return count;
  }
  return maxCount;
}

export function packElements(
  elements: readonly SelectorInput[],
  from: number,
  count: number,
  withBodies: boolean,
): PackedElements {
  let headers = '[';
  let fields = '[';
  const notUtf8: NotUtf8Header[] = [];
  for (let at = 0; at < count; at += 1) {
    const element = elements[from + at] as SelectorInput;
    const comma = at === 0 ? '' : ',';
    headers += comma + packHeaders(element.headers, at, notUtf8);
    fields += comma + packFields(element);
  }
  const bodies = withBodies ? packBodies(elements.slice(from, from + count)) : null;
  return { count, headers: `${headers}]`, fields: `${fields}]`, notUtf8, bodies };
}

// JSON is built by concatenation, which for objects this small halves the cost of building the objects first.

function packHeaders(headers: ElementHeaders, index: number, notUtf8: NotUtf8Header[]): string {
  let pairs = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = [headers[at], headers[at + 1]];
    const text = fromByteString(value);
    if (text === null) notUtf8.push([index, name, value]);
    pairs += `${at === 0 ? '' : ','}${JSON.stringify(name)}:${JSON.stringify(text ?? value)}`;
  }
  return `{${pairs}}`;
}

function packFields({ id, tries, matureAt, contentType, contentEncoding }: SelectorInput): string {
  return `${JSON.stringify(id)},${tries},${matureAt / 1000},${payloadKind(contentType, contentEncoding)}`;
}

function packBodies(elements: readonly SelectorInput[]): NonNullable<PackedElements['bodies']> {
  let total = 0;
  const ends = elements.map((element) => {
    total += element.body.length;
    return total;
  });
  const bytes = new Uint8Array(total);
  for (const [at, element] of elements.entries())
    bytes.set(element.body, (ends[at] as number) - element.body.length);
  return {
    bytes,
    ends,
    kinds: elements.map(({ contentType, contentEncoding }) => payloadKind(contentType, contentEncoding)),
  };
}

const PLAIN = {
  error: null,
  place: null,
  matureAt: null,
  delayMs: null,
  tries: null,
  headers: null,
  body: null,
};
const NO: SelectorVerdict = Object.freeze({ accepted: false, ...PLAIN });
const YES: SelectorVerdict = Object.freeze({ accepted: true, ...PLAIN });

/** The answer for an element if no destination has a selector. */
function allAccept(destinations: number): SelectorAnswer {
  return {
    outcome: 'evaluated',
    verdicts: new Array<SelectorVerdict>(destinations).fill(YES),
    logs: NO_LOGS,
  };
}

/** Splits the worker's answer by element. To save allocations, most verdicts are one of two shared objects. */
function readVerdicts(called: Called, destinations: number): EvaluatedAnswer[] {
  const answers: EvaluatedAnswer[] = [];
  const extras = called.extras.values();
  const changes = called.changes.values();
  let extra = extras.next().value;
  let change = changes.next().value;
  let bodyStart = 0;
  for (let element = 0; element < called.count; element += 1) {
    const verdicts = new Array<SelectorVerdict>(destinations);
    let written = NOTHING_WRITTEN;
    for (let destination = 0; destination < destinations; destination += 1) {
      const at = element * destinations + destination;
      if (change?.[0] === at) {
        const end: number | null = change[2];
        written = {
          headers: change[1] ?? written.headers,
          body: end === null ? written.body : called.bodies.subarray(bodyStart, end),
        };
        bodyStart = end ?? bodyStart;
        change = changes.next().value;
      }
      const ownExtra = extra?.[0] === at ? extra : null;
      if (ownExtra !== null) extra = extras.next().value;
      const isPlain = ownExtra === null && written.headers === null && written.body === null;
      if (isPlain) verdicts[destination] = called.codes[at] === VERDICT_CODES.yes ? YES : NO;
      else verdicts[destination] = readVerdict(called.codes[at], ownExtra ?? NO_EXTRA, written);
    }
    const logs = called.logs.length === 0 ? NO_LOGS : logsOf(called, element, destinations);
    answers.push({ outcome: 'evaluated', verdicts, logs });
  }
  return answers;
}

const NO_LOGS: readonly DestinationLogLine[] = [];
const NO_BODIES = new Uint8Array(0);

/** The log lines of one element. */
function logsOf({ logs }: Called, element: number, destinations: number): readonly DestinationLogLine[] {
  const first = element * destinations;
  return logs
    .filter(([at]) => at >= first && at < first + destinations)
    .map(([at, text]) => [at - first, text] as const);
}

interface Written {
  readonly headers: ElementHeaders | null;
  readonly body: Uint8Array | null;
}

const NOTHING_WRITTEN: Written = { headers: null, body: null };

function readVerdict(code: string | undefined, extra: VerdictExtra, written: Written): SelectorVerdict {
  const accepted = code === VERDICT_CODES.yes || code === VERDICT_CODES.override;
  const [, error, mature, delay, tries, place] = extra;
  return {
    accepted,
    error: error === null || place === null ? error : `${error} (line ${place[0]}, column ${place[1]})`,
    place,
    matureAt: mature === null ? null : toMs(mature),
    delayMs: delay === null || mature !== null ? null : toMs(delay),
    tries,
    ...written,
  };
}

const NO_EXTRA: VerdictExtra = [0, null, null, null, null, null];

/**
 * The payload's type in a selector: a parsed value for `application/json`, `text/json` and `…+json`, a string for
 * `text/*`, otherwise bytes. Text is UTF-8 unless its charset is Latin-1 or ASCII. With another charset or any content
 * encoding, the payload is bytes, because decoding it might be wrong.
 */
function payloadKind(contentType: string | null, contentEncoding: string | null): PayloadKind {
  if (contentType === null || (contentEncoding !== null && contentEncoding !== 'identity')) {
    return PAYLOAD_KINDS.bytes;
  }
  const known = knownKinds.get(contentType);
  if (known !== undefined) return known;
  const kind = readKind(contentType);
  // Bounded, because clients may send any number of content types.
  if (knownKinds.size < 256) knownKinds.set(contentType, kind);
  return kind;
}

/** As `payloadKind`, as a word for people. */
export function payloadName(
  contentType: string | null,
  contentEncoding: string | null,
): 'json' | 'text' | 'bytes' {
  switch (payloadKind(contentType, contentEncoding)) {
    case PAYLOAD_KINDS.json:
      return 'json';
    case PAYLOAD_KINDS.bytes:
      return 'bytes';
    default:
      return 'text';
  }
}

const knownKinds = new Map<string, PayloadKind>();

function readKind(contentType: string): PayloadKind {
  const [media = '', ...parameters] = contentType.toLowerCase().split(';');
  const type = media.trim();
  if (type === 'application/json' || type === 'text/json' || type.endsWith('+json'))
    return PAYLOAD_KINDS.json;
  if (!type.startsWith('text/')) return PAYLOAD_KINDS.bytes;
  const charset = parameters.map((parameter) => /^\s*charset\s*=\s*"?([^"\s]*)"?\s*$/.exec(parameter)?.[1]);
  switch (charset.find((name) => name !== undefined) ?? 'utf-8') {
    case 'utf-8':
    case 'utf8':
      return PAYLOAD_KINDS.utf8;
    case 'iso-8859-1':
    case 'latin1':
    case 'us-ascii':
      return PAYLOAD_KINDS.latin1;
    default:
      return PAYLOAD_KINDS.bytes;
  }
}
