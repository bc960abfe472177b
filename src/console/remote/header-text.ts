/** Header values are UTF-8, but browsers read and write each byte as a character. */

export function toByteString(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join('');
}

/** Returns bytes that are not UTF-8 unchanged. */
export function fromByteString(bytes: string): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(
      Uint8Array.from(bytes, (one) => one.charCodeAt(0)),
    );
  } catch {
    return bytes;
  }
}
