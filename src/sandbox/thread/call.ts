import { QuaysideError } from '../../model/errors.ts';
import { checkHeaders } from '../../model/headers.ts';
import { SERVICE_HEADERS } from '../../model/service-headers.ts';
import type { Host } from '../guest/ask.ts';
import { bodyAllowanceMs, type SandboxLimits } from '../limits.ts';
import {
  type Called,
  type Change,
  type Extra,
  type LogLine,
  PAYLOAD_KINDS,
  type PackedElements,
  type PayloadKind,
  type Place,
} from '../protocol.ts';
import type { Deadline } from './deadline.ts';

/** Characters of JSON that are always converted in no time: the slowest kind takes 5 ms. */
export const QUICK_TEXT = 1024;

/**
 * The worker's side of one call: hands bodies in when a selector touches them, takes what selectors wrote
 * out, and checks it as an insert would. Nothing in here throws: what a selector did wrong goes back as text.
 */
export class Call implements Host {
  /** In the order of the destinations asked, so ascending. */
  readonly changes: Change[] = [];
  readonly logs: LogLine[] = [];
  /** Whether a body was wanted that did not come along. */
  needsBodies = false;
  readonly #elements: PackedElements;
  readonly #destinations: number;
  readonly #writers: number;
  readonly #limits: SandboxLimits;
  readonly #deadline: Deadline;
  /** Bodies that selectors wrote, by element: the last one. */
  readonly #current = new Map<number, Uint8Array>();
  readonly #written: Uint8Array[] = [];
  #writtenBytes = 0;
  readonly #shown = new Set<number>();
  readonly #onConverting: (isOn: boolean) => void;
  #grantedMs = 0;
  /** Since when a payload is being converted, as the deadline counts; null: none is. */
  #convertingSince: number | null = null;
  #convertedMs = 0;

  /** @param onConverting called when the VM begins or ends to read or write a payload as JSON */
  constructor(
    elements: PackedElements,
    program: { readonly destinations: number; readonly selectors: number },
    limits: SandboxLimits,
    deadline: Deadline,
    onConverting: (isOn: boolean) => void = () => {},
  ) {
    this.#onConverting = onConverting;
    this.#elements = elements;
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
    const shown = showBody(body, kind);
    // The guest ends what it goes on to parse; a text may be shorter than its body was.
    if (isWatched && (typeof shown !== 'string' || shown[0] !== '=' || shown.length - 1 <= QUICK_TEXT)) {
      this.converting(false);
    }
    return shown;
  }

  converting(isOn: boolean): void {
    const now = this.#deadline.usedMs;
    if (this.#convertingSince !== null) this.#convertedMs += now - this.#convertingSince;
    this.#convertingSince = isOn ? now : null;
    this.#onConverting(isOn);
  }

  log(at: number, text: string): void {
    this.logs.push([at, text]);
  }

  /**
   * Whether payloads, not selectors, used up the time of this call: one is being converted still, or that took longer
   * than bodies of their size are given, and than half of what any call is given.
   */
  get isPayloadToBlame(): boolean {
    if (this.#convertingSince !== null) return true;
    return this.#convertedMs > Math.max(this.#grantedMs, this.#limits.callMs / 2);
  }

  seal(at: number, headersJson: string | null, payload: string | Uint8Array | null): string | null {
    const element = Math.floor(at / this.#destinations);
    const headers = headersJson === null ? null : readHeaders(headersJson);
    if (typeof headers === 'string') return headers;
    const body = payload === null ? null : this.#changedBody(element, payload);
    if (typeof body === 'string') return body;
    if (headers === null && body === null) return null;
    if (body !== null) {
      this.#current.set(element, body);
      this.#written.push(body);
      this.#writtenBytes += body.length;
    }
    this.changes.push([at, headers, body === null ? null : this.#writtenBytes]);
    return null;
  }

  /** All written bodies end to end, in a buffer of their own that can be handed over. */
  joinBodies(): Uint8Array<ArrayBuffer> {
    const joined = new Uint8Array(this.#writtenBytes);
    let end = 0;
    for (const body of this.#written) {
      joined.set(body, end);
      end += body.length;
    }
    return joined;
  }

  /** The bytes of what a selector left; null where they are what is stored already; a text says what is wrong. */
  #changedBody(element: number, payload: string | Uint8Array): Uint8Array | string | null {
    const kind = this.#kind(element);
    // Written without being read: the kind and the body to compare with come with the bodies.
    if (kind === undefined) {
      this.needsBodies = true;
      return null;
    }
    const body = writeBody(payload, kind);
    if (typeof body === 'string') return body;
    if (body.length > this.#limits.bodyBytes)
      return `the payload has more than ${this.#limits.bodyBytes} bytes`;
    return Buffer.compare(body, this.#body(element)) === 0 ? null : body;
  }

  #kind(element: number): PayloadKind {
    return this.#elements.bodies?.kinds[element] as PayloadKind;
  }

  #body(element: number): Uint8Array {
    const written = this.#current.get(element);
    if (written !== undefined) return written;
    const { bytes, ends } = this.#elements.bodies as NonNullable<PackedElements['bodies']>;
    return bytes.subarray(element === 0 ? 0 : ends[element - 1], ends[element]);
  }

  #grantFor(element: number, bytes: number): void {
    if (this.#shown.has(element)) return;
    this.#shown.add(element);
    const wanted = bodyAllowanceMs(this.#limits, bytes, this.#writers);
    const granted = Math.min(wanted, this.#limits.bodyMsAtMost - this.#grantedMs);
    this.#grantedMs += granted;
    this.#deadline.grant(granted);
  }
}

function readHeaders(json: string): readonly string[] | string {
  const flat: unknown = JSON.parse(json);
  if (!Array.isArray(flat) || !flat.every((part) => typeof part === 'string'))
    return 'the headers are not strings';
  try {
    return checkHeaders(flat, SERVICE_HEADERS);
  } catch (error) {
    if (error instanceof QuaysideError) return error.message;
    throw error;
  }
}

/** How a body is shown to selectors (docs: decisions, "Exchanges"): the reading is lossless or refused. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Text or bytes for the VM, or why there is none: see `Host.payload`. */
function showBody(body: Uint8Array, kind: PayloadKind): string | Uint8Array {
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
      return showJson(body);
    default:
      return kind satisfies never;
  }
}

/**
 * JSON goes into the VM as this engine writes it: the VM's own writing of an unchanged value is then the
 * same text, and one comparison tells that nothing was changed. The stored bytes stay as the producer sent them.
 */
function showJson(body: Uint8Array): string {
  try {
    const text = utf8.decode(body);
    return `=${JSON.stringify(JSON.parse(text.charCodeAt(0) === 0xfeff ? text.slice(1) : text))}`;
  } catch (error) {
    // Writing what is nested deeper than the stack throws; reading it does not.
    return error instanceof RangeError ? '!the payload is nested too deeply' : '!the payload is not JSON';
  }
}

/** The bytes of a payload that a selector left behind, as its kind is stored; a text says why there are none. */
function writeBody(payload: string | Uint8Array, kind: PayloadKind): Uint8Array | string {
  if (typeof payload !== 'string') return payload;
  const text = payload.slice(1);
  if (kind === PAYLOAD_KINDS.latin1) {
    const bytes = Buffer.from(text, 'latin1');
    return bytes.toString('latin1') === text ? bytes : 'the payload has a character above U+00FF';
  }
  return text.isWellFormed() ? Buffer.from(text) : 'the payload is not well-formed Unicode';
}

/**
 * Reads what the guest answered. Its shape is checked to the last value although the guest is ours: should a
 * selector ever break out of the VM's language into the VM's memory, this is the wall behind it.
 * @throws Error where it is not as the guest writes it
 */
export function readAnswer(json: string, elements: number, destinations: number, call: Call): Called {
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
    bodies: call.joinBodies(),
    logs: call.logs,
  };
}

function readExtra(extra: unknown, codes: string): Extra {
  if (!Array.isArray(extra)) throw malformed('extra');
  const [at, error, mature, delay, tries, place] = extra;
  if (codes[at] === '3' ? typeof error !== 'string' : codes[at] !== '2') throw malformed('extra');
  if (![mature, delay, tries].every((value) => value === null || (Number.isFinite(value) && value >= 0))) {
    throw malformed('extra');
  }
  return [at, error === null ? null : error.slice(0, 200), mature, delay, tries, readPlace(place)];
}

/** The guest names a line of the script, of which the first is ours. */
function readPlace(place: unknown): Place | null {
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
