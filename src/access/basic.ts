import { PASSWORD_BYTES } from './password.ts';

/** A longer `Authorization` header is refused before anything is decoded (reliability, S5). */
export const HEADER_BYTES = 1024;

export interface BasicCredentials {
  readonly name: string;
  readonly password: string;
}

const BASIC = /^basic +([A-Za-z0-9+/]+={0,2})$/i;
// biome-ignore lint/suspicious/noControlCharactersInRegex: RFC 7617 forbids them in both parts
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * The user name and password of a Basic header (RFC 7617), or null if it is anything else: another
 * scheme, base64 that is not canonical, bytes that are not UTF-8, control characters, no colon.
 */
export function readBasic(authorization: string): BasicCredentials | null {
  if (authorization.length > HEADER_BYTES) return null;
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return null;
  const bytes = Buffer.from(encoded, 'base64');
  // One spelling per credentials: otherwise one password would have several, each remembered on its own.
  if (bytes.toString('base64') !== encoded) return null;
  const text = decodeUtf8(bytes);
  const colon = text?.indexOf(':') ?? -1;
  if (text === null || colon < 1 || CONTROL.test(text)) return null;
  const password = text.slice(colon + 1);
  if (Buffer.byteLength(password) > PASSWORD_BYTES) return null;
  return { name: text.slice(0, colon), password };
}

/**
 * The credentials part of a Basic header, the same text for all spellings of the scheme and the spaces after it; null
 * for a header that is longer than one may be, or has none. It is not checked: see `readBasic`.
 */
export function credentialsPart(authorization: string): string | null {
  if (authorization.length > HEADER_BYTES) return null;
  // As nearly every client spells it; this is asked for each request.
  if (authorization.startsWith('Basic ') && authorization.charCodeAt(6) !== SPACE)
    return authorization.slice(6);
  return BASIC.exec(authorization)?.[1] ?? null;
}

const SPACE = 0x20;

function decodeUtf8(bytes: Buffer): string | null {
  try {
    return utf8.decode(bytes);
  } catch {
    return null;
  }
}
