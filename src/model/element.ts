/** Elements and deliveries, as plain values. See `docs/concepts.md` for their states and transitions. */

/** Opaque, unique in the namespace, URL-safe, at most 64 characters. Assigned by the engine at insertion. */
export type ElementId = string;

/** The name of a consumer group. A plain queue has one group, {@link PLAIN_GROUP}, that is never named. */
export type GroupName = string;

/** The unnamed group of a plain queue. */
export const PLAIN_GROUP: GroupName = '';

/**
 * Element headers, flat: name, value, name, value, … Names are lower-case and have no `x-ks-hdr-` prefix. Flat pairs
 * need no conversion from and to the wire, and a header named `__proto__` needs no special treatment, as it would in an
 * object.
 */
export type ElementHeaders = readonly string[];

export const NO_HEADERS: ElementHeaders = Object.freeze([]);

/** The body of elements that are read without their bodies. */
export const NO_BODY = new Uint8Array(0);

/** The content as the producer sent it; every consumer receives it unchanged, byte for byte. */
export interface ElementContent {
  readonly body: Uint8Array;
  /** The `content-type` as received; null if the producer sent none. */
  readonly contentType: string | null;
  /** The `content-encoding` as received; the body is never decoded. */
  readonly contentEncoding: string | null;
  readonly headers: ElementHeaders;
}

/** The content without the body. */
export type ElementHead = Omit<ElementContent, 'body'>;

/** An element to insert. */
export interface NewElement extends ElementContent {
  /** The moment from which it may be delivered, ms since 1970. Null: `delayMs` after the engine's current time. */
  readonly matureAt: number | null;
  /** Used if `matureAt` is null; 0: eligible immediately. */
  readonly delayMs: number;
  /** Initial number of failed tries, from 0. */
  readonly tries: number;
  /** Groups that may consume it: `[PLAIN_GROUP]` on a plain queue, 1 to 64 names on a stream. */
  readonly groups: readonly GroupName[];
  /**
   * An insert whose key the queue has already seen (within the engine's window, a day by default) stores nothing and
   * returns the id of the first element, even if that was consumed long ago.
   */
  readonly dedupKey: string | null;
  /** The moment from which it is no longer delivered, ms since 1970; null or not given: it does not expire. */
  readonly expiresAt?: number | null;
  /**
   * Stored with the key, so that a repeat with other content is detected: {@link contentFingerprint}, always 22
   * characters. Without a fingerprint, and for elements that a settlement inserts, the key alone decides what is a
   * repeat.
   */
  readonly fingerprint?: string | null;
}

/** One group's view of an element, as delivered to a consumer. */
export interface Delivery extends ElementContent {
  readonly id: ElementId;
  readonly group: GroupName;
  /** Failed tries so far: rollbacks that count, and lease expiries. */
  readonly tries: number;
  /** Its maturity when it was delivered, ms since 1970. */
  readonly matureAt: number;
  /** The reservation; null if it was popped. */
  readonly lease: Lease | null;
}

/** A reservation of one delivery. */
interface Lease {
  /**
   * 128 random bits, new at every reservation, so that the token of an earlier one does not settle it. At most 32
   * URL-safe characters.
   */
  readonly token: string;
  /** When the lease expires, ms since 1970 by the engine's clock. */
  readonly until: number;
}

/** States of a delivery that is in the queue and not reserved. */
export const WAITING_STATES = ['ready', 'scheduled'] as const;
/** States of a delivery that is in the queue. A finished one is not stored. */
export const DELIVERY_STATES = [...WAITING_STATES, 'reserved'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/** Bytes of all bodies together. */
export function bodyBytes(elements: readonly Pick<ElementContent, 'body'>[]): number {
  let bytes = 0;
  for (const { body } of elements) bytes += body.byteLength;
  return bytes;
}

/** Bytes of the body and the headers; header strings have one byte per character. */
export function contentBytes({ body, headers }: Pick<ElementContent, 'body' | 'headers'>): number {
  let bytes = body.byteLength;
  for (const text of headers) bytes += text.length;
  return bytes;
}
