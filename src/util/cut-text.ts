/** The start of a text that has at most so many bytes in UTF-8, cut at a character. */
export function cutText(text: string, maxBytes: number): string {
  // Each unit of a string has at most three bytes.
  if (text.length * 3 <= maxBytes) return text;
  const bytes = Buffer.from(text);
  if (bytes.length <= maxBytes) return text;
  let end = maxBytes;
  while (((bytes[end] ?? 0) & 0xc0) === 0x80) end--;
  return bytes.toString('utf8', 0, end);
}
