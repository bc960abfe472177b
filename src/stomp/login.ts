import type { Credentials } from '../session/login.ts';
import { quoteBytes } from '../util/quote.ts';
import { type Frame, headerOf } from './codec/frame.ts';
import { malformed } from './codec/malformed.ts';
import { VERSIONS, type Version } from './codec/version.ts';

/** What CONNECT asks for. */
export interface ConnectRequest extends Credentials {
  /** The highest version that both sides know; null where there is none. */
  readonly version: Version | null;
  /** How often the client can send something, and how often it wants to get something, ms; 0: not. */
  readonly canSendMs: number;
  readonly wantsMs: number;
}

const BEATS = /^([0-9]{1,15}),([0-9]{1,15})$/;

/** @throws QuaysideError `malformed-request` */
export function readConnect({ headers }: Frame): ConnectRequest {
  const accepted = headerOf(headers, 'accept-version');
  const version = accepted === null ? '1.0' : highestCommon(accepted);
  const wanted = headerOf(headers, 'heart-beat') ?? '0,0';
  const beats = BEATS.exec(wanted);
  if (beats === null) {
    throw malformed(
      `Invalid heart-beat ${quoteBytes(wanted)}. Allowed: two whole numbers of milliseconds, such as 0,10000.`,
      'heart-beat',
    );
  }
  // In 1.0 spaces around a value are padding; no version is agreed on before this frame.
  const text = (value: string | null): string => (version === '1.0' ? (value ?? '').trim() : (value ?? ''));
  return {
    version,
    login: text(headerOf(headers, 'login')),
    passcode: text(headerOf(headers, 'passcode')),
    canSendMs: Number(beats[1]),
    wantsMs: Number(beats[2]),
  };
}

function highestCommon(accepted: string): Version | null {
  const named = accepted.split(',').map((version) => version.trim());
  return VERSIONS.findLast((version) => named.includes(version)) ?? null;
}
