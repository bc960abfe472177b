/**
 * A copy in memory of its own, for what lives long. Small buffers of Node are parts of blocks of 64 KiB, and one that
 * stays would retain its whole block.
 */
export function ownBytes(bytes: Uint8Array): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.byteLength);
  copy.set(bytes);
  return copy;
}

/** The same of a string: one that was cut out of a longer one retains all of that. */
export function ownString(text: string): string {
  return Buffer.from(text).toString();
}

/** The same of a text, in UTF-8. */
export function ownText(text: string): Buffer {
  const bytes = Buffer.allocUnsafeSlow(Buffer.byteLength(text));
  bytes.write(text);
  return bytes;
}
