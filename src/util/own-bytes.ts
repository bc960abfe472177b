/**
 * Copies bytes into their own memory, for long-lived data. Small buffers of Node are slices of blocks of 64 KiB, and
 * each that is retained retains its whole block.
 */
export function ownBytes(bytes: Uint8Array): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.byteLength);
  copy.set(bytes);
  return copy;
}

/** Copies a string: a substring retains the whole string that it was cut from. */
export function ownString(text: string): string {
  return Buffer.from(text).toString();
}
