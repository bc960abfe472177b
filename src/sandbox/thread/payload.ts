import { PAYLOAD_KINDS, type PayloadKind } from '../protocol.ts';

/** How a body is shown to selectors (docs: decisions, "Exchanges"): the reading is lossless or refused. */
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** Text or bytes for the VM, or why there is none: see `Host.payload`. */
export function showBody(body: Uint8Array, kind: PayloadKind): string | Uint8Array {
  switch (kind) {
    case PAYLOAD_KINDS.bytes:
      return body;
    case PAYLOAD_KINDS.latin1:
      return `=${Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString('latin1')}`;
    case PAYLOAD_KINDS.utf8:
      try {
        return `=${utf8.decode(body)}`;
      } catch {
        return '!the payload is not UTF-8';
      }
    case PAYLOAD_KINDS.json:
      return showJson(body);
    default:
      return kind satisfies never;
  }
}

/**
 * JSON goes into the VM as this engine writes it: the VM's own writing of an unchanged value is then the
 * same text, and one comparison tells that nothing was changed. The stored bytes stay as the producer sent them.
 */
function showJson(body: Uint8Array): string {
  try {
    const text = utf8.decode(body);
    return `=${JSON.stringify(JSON.parse(text.charCodeAt(0) === 0xfeff ? text.slice(1) : text))}`;
  } catch (error) {
    // Writing what is nested deeper than the stack throws; reading it does not.
    return error instanceof RangeError ? '!the payload is nested too deeply' : '!the payload is not JSON';
  }
}

/** The bytes of a payload that a selector left behind, as its kind is stored; a text says why there are none. */
export function writeBody(payload: string | Uint8Array, kind: PayloadKind): Uint8Array | string {
  if (typeof payload !== 'string') return payload;
  const text = payload.slice(1);
  if (kind === PAYLOAD_KINDS.latin1) {
    const bytes = Buffer.from(text, 'latin1');
    return bytes.toString('latin1') === text ? bytes : 'the payload has a character above U+00FF';
  }
  return text.isWellFormed() ? Buffer.from(text) : 'the payload is not well-formed Unicode';
}
