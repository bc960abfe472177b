/**
 * One frame. Header names and values are bytes, one character for each (see `util/byte-text.ts`), free of
 * escapes, as flat pairs in the order in which they came: name, value, name, value, …
 */
export interface Frame {
  readonly command: string;
  readonly headers: readonly string[];
  /** A view of the memory that was read; to be copied if it is kept for long. */
  readonly body: Buffer;
}

/** A header's value, or null. Of repeated headers the first counts. */
export function headerOf(headers: readonly string[], name: string): string | null {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] === name) return headers[at + 1] ?? null;
  }
  return null;
}
