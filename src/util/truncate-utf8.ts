/** Truncates a string to at most `maxBytes` bytes of UTF-8, at a character boundary. */
export function truncateUtf8(string: string, maxBytes: number): string {
  // A UTF-16 code unit has at most three bytes in UTF-8.
  if (string.length * 3 <= maxBytes) return string;
  const bytes = Buffer.from(string);
  if (bytes.length <= maxBytes) return string;
  let end = maxBytes;
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.toString('utf8', 0, end);
}
