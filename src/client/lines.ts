import type { EncodedBody } from './codec.ts';
import type { ReceivedElement } from './element.ts';
import { checkedMs, checkNoOthers, invalid, jsonIn, quoted, textOf } from './errors.ts';
import type { InsertOptions } from './options.ts';

/** A line of the response to a take. */
export interface TakenLine extends ReceivedElement {
  readonly lease: string | null;
  readonly leaseUntil: string | null;
}

/** Returns the line of an insert. @param suffix appended to the caller's idempotency key */
export function insertLine(encoded: EncodedBody, options: InsertOptions, suffix = ''): string {
  const { delayMs, at, ttlMs, headers, groups, idempotencyKey, signal, timeoutMs, ...others } = options;
  checkNoOthers(others);
  // JSON leaves out what is undefined.
  const rest = {
    contentType: encoded.contentType,
    headers,
    delay: secondsOf('delayMs', delayMs),
    mature: at && momentOf(at) / 1000,
    ttl: secondsOf('ttlMs', ttlMs),
    groups,
    key: typeof idempotencyKey === 'string' ? idempotencyKey + suffix : undefined,
  };
  const members = JSON.stringify(rest).slice(1);
  return `{${bodyMember(encoded)}${members === '}' ? '' : ','}${members}\n`;
}

function secondsOf(name: string, ms: number | undefined): number | undefined {
  return ms === undefined ? ms : checkedMs(name, ms) / 1000;
}

function momentOf(at: Date): number {
  // JavaScript callers may pass anything.
  const ms = at.getTime?.();
  if (Number.isFinite(ms)) return ms;
  throw invalid(`at is ${at}. Allowed: a Date with a time.`);
}

function bodyMember(encoded: EncodedBody): string {
  if ('json' in encoded) return `"json":${encoded.json}`;
  const { body } = encoded;
  if (body instanceof Uint8Array) return `"base64":"${base64Of(body)}"`;
  if (typeof body === 'string' && body.isWellFormed()) return `"text":${JSON.stringify(body)}`;
  // JavaScript callers may return anything. A promise or an ArrayBuffer would be sent as an empty body.
  throw invalid(`The codec returned ${quoted(textOf(body))}. Allowed: well-formed text, or a Uint8Array.`);
}

export function takenLines(text: string): TakenLine[] {
  return text
    .trimEnd()
    .split('\n')
    .map((line) => jsonIn<TakenLine>(line, 'id'));
}

/** Maximum arguments of one call; more could exceed the stack. */
const CHUNK = 0x2000;

export function base64Of(bytes: Uint8Array): string {
  let binary = '';
  for (let at = 0; at < bytes.length; at += CHUNK) {
    binary += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  }
  return btoa(binary);
}

export function bytesOfBase64(base64: string): Uint8Array {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}
