/**
 * What a queue holds, as plain values. See `docs/concepts.md` for the states and who moves them.
 */

/** Opaque, unique in the namespace, URL-safe, at most 64 characters. Assigned by the engine at insertion. */
export type ElementId = string;

/** The name of a consumer group. A plain queue has one group, {@link PLAIN_GROUP}, that is never named. */
export type GroupName = string;

/** The one unnamed group of a plain queue. */
export const PLAIN_GROUP: GroupName = '';

/**
 * Element headers, flat: name, value, name, value, … Names are lower-case and carry no `x-ks-hdr-` prefix.
 * Flat pairs, not an object: they go to and from the wire without a copy, and a header named
 * `__proto__` is a header like any other.
 */
export type ElementHeaders = readonly string[];

export const NO_HEADERS: ElementHeaders = Object.freeze([]);

/** What the producer gave and every consumer gets back, byte for byte and character for character. */
export interface ElementContent {
  readonly body: Uint8Array;
  /** The `content-type` as it came; null if the producer gave none. */
  readonly contentType: string | null;
  /** The `content-encoding` as it came; the body is never decoded. */
  readonly contentEncoding: string | null;
  readonly headers: ElementHeaders;
}

/** An element on its way in. */
export interface NewElement extends ElementContent {
  /** Before this moment (ms since 1970) it is not delivered. Null: `delayMs` after the engine's now. */
  readonly matureAt: number | null;
  /** Used where `matureAt` is null; 0 means eligible at once. */
  readonly delayMs: number;
  /** Initial count of failed tries, from 0. */
  readonly tries: number;
  /** Groups that may consume it: `[PLAIN_GROUP]` on a plain queue, 1 to 64 names on a stream. */
  readonly groups: readonly GroupName[];
  /**
   * An insert whose key the queue has already seen (within the engine's window, a day by default) stores nothing
   * and returns the id of the first one, even if that element is long consumed.
   */
  readonly dedupKey: string | null;
  /** From this moment on (ms since 1970) it is not delivered; null or not given: it does not expire. */
  readonly expiresAt?: number | null;
  /**
   * Stored with the key, so that a repeat with other content is noticed: {@link contentFingerprint}, always 22
   * characters. Without one, and in what a settlement inserts, a key that was seen is a repeat whatever its content.
   */
  readonly fingerprint?: string | null;
}

/** One group's view of an element, as handed to a consumer. */
export interface Delivery extends ElementContent {
  readonly id: ElementId;
  readonly group: GroupName;
  /** Failed tries so far: rollbacks that count, and leases that ran out. */
  readonly tries: number;
  /** The maturity by which it was handed out, ms since 1970. */
  readonly matureAt: number;
  /** The reservation, or null when it was popped. */
  readonly lease: Lease | null;
}

/** A reservation of one delivery. */
export interface Lease {
  /**
   * 128 random bits, new at every reservation: a late worker's token no longer fits. At most 32 URL-safe characters.
   */
  readonly token: string;
  /** The moment at which the reservation ends by itself, ms since 1970 by the engine's clock. */
  readonly until: number;
}

/** States of a delivery that is in the queue and not reserved. */
export const WAITING_STATES = ['ready', 'scheduled'] as const;
/** States of a delivery that is still in the queue. A finished one is gone. */
export const DELIVERY_STATES = [...WAITING_STATES, 'reserved'] as const;
export type DeliveryState = (typeof DELIVERY_STATES)[number];

/** Bytes of the body and the headers, which are text of one byte a character. */
export function contentBytes({ body, headers }: Pick<ElementContent, 'body' | 'headers'>): number {
  let bytes = body.byteLength;
  for (const text of headers) bytes += text.length;
  return bytes;
}
