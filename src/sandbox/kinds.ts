import { PAYLOAD_KINDS, type PayloadKind } from './protocol.ts';

/**
 * How a selector sees a body: `application/json`, `text/json` and `…+json` as a parsed value, `text/*` as text,
 * anything else as bytes. Text is UTF-8 unless its charset is Latin-1 or ASCII; another charset, and any
 * content encoding, leaves bytes: to read them is not the sandbox's to guess.
 */
export function payloadKind(contentType: string | null, contentEncoding: string | null): PayloadKind {
  if (contentType === null || (contentEncoding !== null && contentEncoding !== 'identity')) {
    return PAYLOAD_KINDS.bytes;
  }
  const known = seen.get(contentType);
  if (known !== undefined) return known;
  const kind = readKind(contentType);
  // Producers use a handful of content types; strangers may use any number.
  if (seen.size < 256) seen.set(contentType, kind);
  return kind;
}

/** The same as a word for people. */
export function payloadName(
  contentType: string | null,
  contentEncoding: string | null,
): 'json' | 'text' | 'bytes' {
  switch (payloadKind(contentType, contentEncoding)) {
    case PAYLOAD_KINDS.json:
      return 'json';
    case PAYLOAD_KINDS.bytes:
      return 'bytes';
    default:
      return 'text';
  }
}

const seen = new Map<string, PayloadKind>();

function readKind(contentType: string): PayloadKind {
  const [media = '', ...parameters] = contentType.toLowerCase().split(';');
  const type = media.trim();
  if (type === 'application/json' || type === 'text/json' || type.endsWith('+json'))
    return PAYLOAD_KINDS.json;
  if (!type.startsWith('text/')) return PAYLOAD_KINDS.bytes;
  const charset = parameters.map((parameter) => /^\s*charset\s*=\s*"?([^"\s]*)"?\s*$/.exec(parameter)?.[1]);
  switch (charset.find((name) => name !== undefined) ?? 'utf-8') {
    case 'utf-8':
    case 'utf8':
      return PAYLOAD_KINDS.utf8;
    case 'iso-8859-1':
    case 'latin1':
    case 'us-ascii':
      return PAYLOAD_KINDS.latin1;
    default:
      return PAYLOAD_KINDS.bytes;
  }
}
