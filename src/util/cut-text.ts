/** Truncates a string to at most `maxBytes` bytes of UTF-8, at a character boundary. */
export function cutText(text: string, maxBytes: number): string {
  // A UTF-16 code unit has at most three bytes in UTF-8.
  if (text.length * 3 <= maxBytes) return text;
  const bytes = Buffer.from(text);
  if (bytes.length <= maxBytes) return text;
  let end = maxBytes;
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.toString('utf8', 0, end);
}
