import type { Credentials } from '../../session/login.ts';
import { Fields } from './fields.ts';
import { binary, FRAME_TYPE, listFrame, symbol, ubyte } from './frames.ts';
import { AMQP_LIMITS } from './limits.ts';
import { descriptorNumber } from './performatives.ts';
import { decodeError, framingError, hex } from './refusal.ts';
import { CODE, widthOf } from './type-codes.ts';

/** AMQP 1.0, part 5: how a login ended. */
export const OUTCOME = {
  ok: 0,
  /** The credentials are wrong. */
  auth: 1,
  /** Something else is wrong with what was said. */
  sys: 2,
  /** It may do later. */
  later: 4,
} as const;

const SASL = { mechanisms: 0x40, init: 0x41, challenge: 0x42, response: 0x43, outcome: 0x44 } as const;
/** The one mechanism. */
const PLAIN = 'PLAIN';

export const MECHANISMS = listFrame(FRAME_TYPE.sasl, SASL.mechanisms, [symbol(PLAIN)]);
/** Asks for a response that `sasl-init` did not bring. */
export const CHALLENGE = listFrame(FRAME_TYPE.sasl, SASL.challenge, [binary(Buffer.alloc(0))]);

export function outcomeFrame(code: number): Buffer {
  return listFrame(FRAME_TYPE.sasl, SASL.outcome, [ubyte(code)]);
}

/** What a client's SASL frame says. */
export type SaslSaid =
  | { readonly kind: 'response'; readonly response: Buffer }
  /** PLAIN, but no response with it. */
  | { readonly kind: 'no-response' }
  /** A mechanism that was not offered. */
  | { readonly kind: 'other-mechanism'; readonly mechanism: string };

/**
 * Reads a whole `sasl-init`, or a `sasl-response` where one was asked for.
 * @throws Breach where it is anything else
 */
export function readSasl(bytes: Buffer, start: number, end: number, isChallenged: boolean): SaslSaid {
  const offset = start + 4 * (bytes[start + 4] ?? 0);
  if (offset < start + 8 || offset > end)
    throw framingError('The data offset of a SASL frame is outside of it.');
  if (bytes[start + 5] !== FRAME_TYPE.sasl) {
    throw framingError(`Frame type ${bytes[start + 5]} came before the login. Allowed: 1 (SASL).`);
  }
  const fields = new Fields(AMQP_LIMITS);
  const type = fields.enter(bytes, offset, end);
  if (descriptorNumber(type) !== (isChallenged ? SASL.response : SASL.init)) {
    throw decodeError(
      `The SASL frame ${hex(descriptorNumber(type))} came. Expected: ${isChallenged ? 'sasl-response' : 'sasl-init'}.`,
    );
  }
  const mechanism = isChallenged ? PLAIN : readSymbol(fields, bytes);
  const response = readBinary(fields, bytes);
  if (!isChallenged) fields.oneOf('hostname', CODE.string8, CODE.string32);
  fields.finish();
  if (mechanism !== PLAIN) return { kind: 'other-mechanism', mechanism };
  return response === null ? { kind: 'no-response' } : { kind: 'response', response };
}

function readSymbol(fields: Fields, bytes: Buffer): string {
  const { at } = fields;
  const code = fields.oneOf('mechanism', CODE.symbol8, CODE.symbol32);
  return code === CODE.null ? '' : bytes.toString('latin1', at + 1 + (widthOf[code] ?? 0), fields.at);
}

function readBinary(fields: Fields, bytes: Buffer): Buffer | null {
  const { at } = fields;
  const code = fields.oneOf('response', CODE.binary8, CODE.binary32);
  return code === CODE.null ? null : bytes.subarray(at + 1 + (widthOf[code] ?? 0), fields.at);
}

/** The credentials of a PLAIN response (RFC 4616); null where it is none, or asks to act as somebody else. */
export function readPlain(response: Buffer): Credentials | null {
  const parts = response.toString('latin1').split('\0');
  const [authorisedAs, login, passcode] = parts;
  if (parts.length !== 3 || login === undefined || passcode === undefined) return null;
  if (authorisedAs !== '' && authorisedAs !== login) return null;
  return { login, passcode };
}

/** The outcome for a login that was refused with this condition. */
export function outcomeOf(condition: string): number {
  switch (condition) {
    case 'amqp:unauthorized-access':
      return OUTCOME.auth;
    case 'amqp:decode-error':
    case 'amqp:connection:framing-error':
      return OUTCOME.sys;
    default:
      return OUTCOME.later;
  }
}
