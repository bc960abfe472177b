import type { Authenticator, User } from '../access/user.ts';
import { textOfBytes } from '../model/byte-text.ts';
import { QuaysideError } from '../model/errors.ts';
import { type Frame, headerOf } from './codec/frame.ts';
import { malformed } from './codec/malformed.ts';
import { VERSIONS, type Version } from './codec/version.ts';

/** What CONNECT asks for. */
export interface ConnectRequest {
  /** The highest version that both sides know; null where there is none. */
  readonly version: Version | null;
  readonly login: string;
  readonly passcode: string;
  /** How often the client can send something, and how often it wants to get something, ms; 0: not. */
  readonly canSendMs: number;
  readonly wantsMs: number;
}

const BEATS = /^([0-9]{1,15}),([0-9]{1,15})$/;

/** @throws QuaysideError `malformed-request` */
export function readConnect({ headers }: Frame): ConnectRequest {
  const accepted = headerOf(headers, 'accept-version');
  const version = accepted === null ? '1.0' : highestCommon(accepted);
  const beats = BEATS.exec(headerOf(headers, 'heart-beat') ?? '0,0');
  if (beats === null) {
    throw malformed('heart-beat is two whole numbers of milliseconds with a comma between.', 'heart-beat');
  }
  // In 1.0 spaces around a value are padding; nobody has agreed on a version before this frame.
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

/**
 * Checks a login as HTTP does, with the same limit on failures. It goes by way of Basic credentials, so that a
 * client that connects again is recognised without a hash: a thousand of them come back at once when a
 * node restarts.
 * @throws QuaysideError `unauthorized`, `too-many-attempts`, `overloaded`
 */
export async function authenticate(
  authenticator: Authenticator,
  { login, passcode }: ConnectRequest,
  address: string,
): Promise<User> {
  // Basic credentials end the name at the first colon; no user's name has one.
  if (login === '' || login.includes(':') || textOfBytes(login) === null || textOfBytes(passcode) === null) {
    throw new QuaysideError('unauthorized', 'CONNECT needs the login and passcode of a user.');
  }
  const basic = `Basic ${Buffer.from(`${login}:${passcode}`, 'latin1').toString('base64')}`;
  return authenticator.recall(basic) ?? authenticator.loginBasic(basic, address);
}
