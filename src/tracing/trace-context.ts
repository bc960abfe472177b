import { randomFillSync } from 'node:crypto';
import type { ElementHeaders } from '../model/element.ts';

/** The header of a request, and of an element, that names a span of its sender (W3C Trace Context). */
export const TRACEPARENT = 'traceparent';

/** Names a span, of this process or of another one. */
export interface TraceContext {
  /** 32 hexadecimal digits. */
  readonly traceId: string;
  /** 16 hexadecimal digits. */
  readonly spanId: string;
  /** Whether the spans of its trace are recorded. */
  readonly isSampled: boolean;
}

/** Version, trace id, span id, flags. A later version may add fields behind them; version `ff` is forbidden. */
const FORM = /^(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;
const SAMPLED = 1;

/** Null if the text is not a valid `traceparent`: such a header counts as not sent. */
export function parseTraceparent(text: string): TraceContext | null {
  const [, version, traceId = '', spanId = '', flags = '', more] = FORM.exec(text.trim()) ?? [];
  if (version === undefined || (version === '00' && more !== undefined)) return null;
  return { traceId, spanId, isSampled: (Number.parseInt(flags, 16) & SAMPLED) !== 0 };
}

/** The span that inserted an element; null if its headers name none. */
export function contextIn(headers: ElementHeaders): TraceContext | null {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] === TRACEPARENT) return parseTraceparent(headers[at + 1] ?? '');
  }
  return null;
}

const TRACE_BYTES = 16;
const SPAN_BYTES = 8;
/** Drawn in one go, since each draw has a fixed cost. */
const POOL_BYTES = 4096;

/** Draws the ids of traces and spans. */
export class TraceIds {
  readonly #pool = Buffer.alloc(POOL_BYTES);
  #at = POOL_BYTES;

  trace(): string {
    return this.#draw(TRACE_BYTES);
  }

  span(): string {
    return this.#draw(SPAN_BYTES);
  }

  #draw(bytes: number): string {
    if (this.#at + bytes > POOL_BYTES) {
      randomFillSync(this.#pool);
      this.#at = 0;
    }
    const from = this.#at;
    this.#at += bytes;
    const id = this.#pool.toString('hex', from, this.#at);
    // All zeros are not an id.
    return /[^0]/.test(id) ? id : this.#draw(bytes);
  }
}
