import { QuaysideError } from '../../model/errors.ts';
import { checkHeaders } from '../../model/headers.ts';
import { SERVICE_HEADERS } from '../../model/service-headers.ts';
import type { Host } from '../guest/ask.ts';
import { bodyAllowanceMs, type SandboxLimits } from '../limits.ts';
import {
  type Change,
  type LogLine,
  PAYLOAD_KINDS,
  type PackedElements,
  type PayloadKind,
} from '../protocol.ts';
import type { Deadline } from './deadline.ts';
import { showBody, writeBody } from './payload.ts';

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
