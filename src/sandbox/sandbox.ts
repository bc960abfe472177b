import type { Delivery, ElementHeaders } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { type Clock, systemClock } from '../util/clock.ts';
import type { Service } from '../util/service.ts';
import type { Payer } from './dispatcher.ts';
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
} from './protocol.ts';

/**
 * Runs the selectors of exchanges so that they cannot escape, harm the server, or keep others from running: see ADR 4.
 * Its thread starts with `start`, or when the first selector is checked or run.
 */
export interface SelectorSandbox extends Service {
  /**
   * Checks selectors before their exchange is created: syntax, size, no construct that cannot run here, and that the
   * VM compiles them within its time.
   * @param payer whose share of the worker's time it uses
   * @throws QuaysideError `invalid-body`; `details.parameter` is the selector's `path`, `details.extra` has
   * `line` and `column` (from 1) if the error has a position. `shutting-down` after `stop`.
   */
  check(selectors: readonly SelectorSource[], payer: Payer): Promise<void>;

  /**
   * Opens the program of an exchange. Per destination, in their order: a selector's source, or null for a destination
   * that accepts every element. Needs no thread and no VM until the first `select`. If a selector that was stored
   * earlier does not compile any more, its destination fails for each element.
   */
  open(selectors: readonly (string | null)[], options?: ProgramOptions): SelectorProgram;
}

export interface ProgramOptions {
  /** Whose share of the worker's time it uses; the node's own if not given. */
  readonly payer?: Payer;
  /** Whether answers contain what selectors wrote to their console; false if not given. */
  readonly logs?: boolean;
  /** Whether verdicts are without the headers and bodies that selectors wrote; false if not given. */
  readonly decidesOnly?: boolean;
}

interface SelectorSource {
  readonly source: string;
  /** The path of its field in the request: `dst[0].selector`. */
  readonly path: string;
}

/** The selectors of one exchange. No other program uses its VM. */
export interface SelectorProgram {
  /**
   * Runs the selectors of all destinations for each element. Returns the answers in the order of the elements, for the
   * first ones only if the selectors write more than `writtenBytes`: the caller is to store that before it continues.
   * Batches of any size are divided into calls; calls may overlap, and those of other programs may run in between.
   * @throws QuaysideError `shutting-down` after `stop`, `internal` if the thread cannot be started
   */
  select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]>;
  /**
   * The same for elements whose bodies were not read, and are empty. Returns null if a selector needs bodies, now or in
   * an earlier call: then call `select` with them.
   */
  selectWithoutBodies(elements: readonly SelectorInput[]): Promise<SelectorAnswer[] | null>;
  /** Closes the VM. A later `select` opens it again. */
  close(): void;
}

/** What a selector may know of an element. */
export type SelectorInput = Pick<
  Delivery,
  'id' | 'tries' | 'matureAt' | 'headers' | 'body' | 'contentType' | 'contentEncoding'
>;

/** What a selector wrote to `console`, with the index of its destination. */
export type DestinationLogLine = readonly [destination: number, text: string];

/**
 * The result for one element.
 * - `evaluated`: the selectors ran; there is one verdict per destination.
 * - `overrun`: one of the selectors used more time or memory than it may, or the payload took too long to be read for
 *   them (`inPayload`). No destination has a verdict.
 * - `not-evaluated`: the selectors did not run, since `maxOverrunsInARow` elements before it overran, or the program
 *   was closed. It is to be returned undelivered, without counting a try.
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
      /** Until the overrun. */
      readonly logs?: readonly DestinationLogLine[];
    }
  | { readonly outcome: 'not-evaluated' };

type EvaluatedAnswer = Extract<SelectorAnswer, { outcome: 'evaluated' }>;

export interface SelectorVerdict {
  /** Whether this destination accepts the element. */
  readonly accepted: boolean;
  /**
   * What the selector threw, at most 200 characters, and its position: `accepted` is then false and its changes are
   * undone.
   */
  readonly error: string | null;
  /** The position in the selector where it was thrown; null if it is not known. */
  readonly place: SourcePosition | null;
  /** Ms since 1970; null if the selector set none. */
  readonly matureAt: number | null;
  /** Null if the selector set none, or a maturity. */
  readonly delayMs: number | null;
  /** Null if the selector set none. */
  readonly tries: number | null;
  /**
   * The headers of this destination's copy, checked as at an insert, without those that the exchange adds; null:
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

/** A sandbox of QuickJS, compiled to WebAssembly, in one worker thread. */
export function makeSandbox(options: SandboxOptions = {}): SelectorSandbox {
  return new WorkerSandbox(options.clock ?? systemClock, { ...DEFAULT_LIMITS, ...options.limits });
}

class WorkerSandbox implements SelectorSandbox {
  readonly #limits: SandboxLimits;
  readonly #dispatcher: Dispatcher;
  #programs = 0;

  constructor(clock: Clock, limits: SandboxLimits) {
    this.#limits = limits;
    this.#dispatcher = new Dispatcher(clock, limits);
  }

  /** Returns at once, also if the thread runs: requests before it is ready wait for it. */
  async start(): Promise<void> {
    this.#dispatcher.start();
  }

  stop(): Promise<void> {
    return this.#dispatcher.stop();
  }

  async check(selectors: readonly SelectorSource[], payer: Payer): Promise<void> {
    const [first] = selectors;
    if (first === undefined) return;
    const sources = selectors.map(({ source }) => source);
    const answer = await this.#dispatcher.request({ kind: 'compile', payer, sources });
    if (answer.outcome === 'overrun') throw invalidSelector(first.path, overran(answer.error));
    if (answer.outcome !== 'compiled') throw unexpected(answer.outcome);
    for (const [index, problem] of answer.problems.entries()) {
      if (problem !== null) throw invalidSelector((selectors[index] as SelectorSource).path, problem);
    }
  }

  open(selectors: readonly (string | null)[], options: ProgramOptions = {}): SelectorProgram {
    if (selectors.every((selector) => selector === null)) return new OpenProgram(selectors.length);
    this.#programs += 1;
    return new WorkerProgram(this.#dispatcher, this.#limits, this.#programs, selectors, options);
  }
}

function overran(error: string): SourceProblem {
  return { message: `Compiling this: ${error}.`, line: null, column: null };
}

/** The error that a client gets for a selector; `path` is where the selector was in what it sent. */
function invalidSelector(path: string, problem: SourceProblem): QuaysideError {
  const { message, line, column } = problem;
  const where = line === null ? '' : `, line ${line}, column ${column ?? 1}`;
  return new QuaysideError('invalid-body', `${path}${where}: ${message}`, {
    parameter: path,
    ...(line === null ? {} : { extra: { line, column: column ?? 1 } }),
  });
}

/** A program whose destinations all accept every element. */
class OpenProgram implements SelectorProgram {
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
   * Whether calls contain bodies: not before a selector has used one. Most selectors read headers only, and a
   * selector keeps nothing between calls, so that a call can be repeated with the bodies.
   */
  #withBodies = false;
  /** How often it was closed. */
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
   * A call of several elements that overran does not show which of them was the cause, so it is repeated with one
   * element at a time. That finds the one that overruns, and verdicts for the others.
   */
  async select(elements: readonly SelectorInput[]): Promise<SelectorAnswer[]> {
    return (await this.#select(elements, true)) ?? [];
  }

  selectWithoutBodies(elements: readonly SelectorInput[]): Promise<SelectorAnswer[] | null> {
    return this.#select(elements, false);
  }

  async #select(elements: readonly SelectorInput[], hasBodies: boolean): Promise<SelectorAnswer[] | null> {
    const closes = this.#closes;
    try {
      return await this.#answersFor(elements, hasBodies, closes);
    } finally {
      // A call that waited when the program was closed has opened it in the worker again.
      if (this.#closes !== closes) this.#dispatcher.close(this.#key);
    }
  }

  async #answersFor(
    elements: readonly SelectorInput[],
    hasBodies: boolean,
    closes: number,
  ): Promise<SelectorAnswer[] | null> {
    const answers: SelectorAnswer[] = [];
    let oneByOneUntil = 0;
    let overrunsInARow = 0;
    let written = 0;
    while (answers.length < elements.length && written < this.#limits.writtenBytes) {
      const from = answers.length;
      if (this.#withBodies && !hasBodies) return null;
      // A call after the close would open the program in the worker again, and nothing would close it.
      if (this.#closes !== closes || overrunsInARow >= this.#limits.maxOverrunsInARow) {
        answers.push({ outcome: 'not-evaluated' });
        continue;
      }
      const count = from < oneByOneUntil ? 1 : callSize(elements, from, this.#limits, this.#withBodies);
      const answer = await this.#call(elements, from, count);
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
      } else if (count > 1) {
        oneByOneUntil = from + count;
      } else {
        // In a call of one element, the positions of log lines are its destinations.
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

  #call(elements: readonly SelectorInput[], from: number, count: number) {
    const withBodies = this.#withBodies;
    let bytes = 0;
    if (withBodies) for (const { body } of elements.slice(from, from + count)) bytes += body.length;
    return this.#dispatcher.request({
      kind: 'call',
      payer: this.#payer,
      program: this.#key,
      sources: this.#sources,
      logs: this.#logs,
      pack: () => packElements(elements, from, count, withBodies),
      allowanceMs: bytes === 0 ? 0 : bodyAllowanceMs(this.#limits, bytes, this.#selectors),
    });
  }
}

function withoutChanges(called: Called): Called {
  return { ...called, changes: [], bodies: NO_BODIES };
}

/** Bytes of the headers and bodies that selectors wrote, counted in each copy. */
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

// What the host sends to the worker, and how it reads the reply.

/** How many elements, from index `from` on, one call has. */
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
  let input = '[';
  const notUtf8: NotUtf8Header[] = [];
  for (let at = from; at < from + count; at += 1) {
    const onNotUtf8 = (name: string, value: string): void => {
      notUtf8.push([at - from, name, value]);
    };
    input += (at === from ? '' : ',') + packElement(elements[at] as SelectorInput, onNotUtf8);
  }
  const bodies = withBodies ? packBodies(elements.slice(from, from + count)) : null;
  return { count, input: `${input}]`, notUtf8, bodies };
}

/** JSON by hand: for objects this small half the cost of building them first. */
function packElement(element: SelectorInput, onNotUtf8: (name: string, value: string) => void): string {
  const { headers } = element;
  let pairs = '';
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = [headers[at], headers[at + 1]];
    const text = textOfBytes(value);
    if (text === null) onNotUtf8(name, value);
    pairs += `${at === 0 ? '' : ','}${JSON.stringify(name)}:${JSON.stringify(text ?? value)}`;
  }
  const kind = payloadKind(element.contentType, element.contentEncoding);
  return `[${JSON.stringify(element.id)},${element.tries},${element.matureAt / 1000},${kind},{${pairs}}]`;
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

/** The answer for an element whose destinations have no selectors. */
function allAccept(destinations: number): SelectorAnswer {
  return {
    outcome: 'evaluated',
    verdicts: new Array<SelectorVerdict>(destinations).fill(YES),
    logs: NO_LOGS,
  };
}

/** Converts the worker's answer to one per element. To save allocations, most verdicts are one of two objects. */
function readVerdicts(called: Called, destinations: number): EvaluatedAnswer[] {
  const answers: EvaluatedAnswer[] = [];
  const extras = called.extras.values();
  const changes = called.changes.values();
  let extra = extras.next().value;
  let change = changes.next().value;
  let bodyStart = 0;
  for (let element = 0; element < called.count; element += 1) {
    const verdicts: SelectorVerdict[] = [];
    let written: Written = { headers: null, body: null };
    for (let at = element * destinations; at < (element + 1) * destinations; at += 1) {
      if (change?.[0] === at) {
        const end: number | null = change[2];
        written = {
          headers: change[1] ?? written.headers,
          body: end === null ? written.body : called.bodies.subarray(bodyStart, end),
        };
        bodyStart = end ?? bodyStart;
        change = changes.next().value;
      }
      const own = extra?.[0] === at ? extra : null;
      if (own !== null) extra = extras.next().value;
      const isPlain = own === null && written.headers === null && written.body === null;
      if (isPlain) verdicts.push(called.codes[at] === VERDICT_CODES.yes ? YES : NO);
      else verdicts.push(readVerdict(called.codes[at], own ?? NO_EXTRA, written));
    }
    const logs = called.logs.length === 0 ? NO_LOGS : logsOf(called, element, destinations);
    answers.push({ outcome: 'evaluated', verdicts, logs });
  }
  return answers;
}

const NO_LOGS: readonly DestinationLogLine[] = [];
const NO_BODIES = new Uint8Array(0);

/** The lines of one element. */
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

function readVerdict(code: string | undefined, extra: VerdictExtra, written: Written): SelectorVerdict {
  const accepted = code === VERDICT_CODES.yes || code === VERDICT_CODES.override;
  const [, error, mature, delay, tries, place] = extra;
  return {
    accepted,
    error: error === null || place === null ? error : `${error} (line ${place[0]}, column ${place[1]})`,
    place,
    matureAt: mature === null ? null : Math.round(mature * 1000),
    delayMs: delay === null || mature !== null ? null : Math.round(delay * 1000),
    tries,
    ...written,
  };
}

const NO_EXTRA: VerdictExtra = [0, null, null, null, null, null];

/**
 * What the payload is in a selector: `application/json`, `text/json` and `…+json` a parsed value, `text/*` a string,
 * anything else bytes. Text is UTF-8 unless its charset is Latin-1 or ASCII. With another charset or any
 * content encoding the payload is bytes: the sandbox does not decode what it might decode wrongly.
 */
function payloadKind(contentType: string | null, contentEncoding: string | null): PayloadKind {
  if (contentType === null || (contentEncoding !== null && contentEncoding !== 'identity')) {
    return PAYLOAD_KINDS.bytes;
  }
  const known = seen.get(contentType);
  if (known !== undefined) return known;
  const kind = readKind(contentType);
  // Bounded, since clients may send any number of content types.
  if (seen.size < 256) seen.set(contentType, kind);
  return kind;
}

/** The same as a word for people. */
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

const seen = new Map<string, PayloadKind>();

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
