/** Headers carry text in UTF-8. Browsers take each of its bytes for a character, in both directions. */

export function bytesOfText(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('');
}

/** Bytes that are not UTF-8 stay what they are. */
export function textOfBytes(bytes: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(
      Uint8Array.from(bytes, (one) => one.charCodeAt(0)),
    );
  } catch {
    return bytes;
  }
}
