import {
  type ElementHeaders,
  type ElementId,
  type GroupName,
  NO_HEADERS,
  PLAIN_GROUP,
} from '../model/element.ts';
import { withChanges } from '../model/headers.ts';
import { deadLetterHeaders } from '../model/service-headers.ts';
import { toByteString } from '../util/byte-string.ts';

// How engines store headers: as JSON. A store that moves an element to a dead-letter queue appends a line instead of
// changing the first one, so that it need not parse any; the headers are computed when the element is read. The first
// dead-letter line names the original, the last one the move that the headers describe. A further line replaces the
// last one if another dead-letter line precedes that, so that lines do not grow with each move. After an `h` line, both
// remain: it may have removed the header that names the original.

/**
 * - `d`: the element became a dead letter. `original` is the engine's form of its id. Lines of earlier releases have no
 *   group.
 * - `h`: written by earlier releases. A move replaced these headers; the value null removed one.
 */
type Line =
  | readonly [
      'd',
      queue: string,
      at: number,
      tries: number,
      original: string | number,
      reason: string | null,
      group?: GroupName,
    ]
  | readonly ['h', ...changes: (string | null)[]];

/** Converts `original` of a line to the id. */
type IdOf = (original: string) => ElementId;

interface Metadata {
  readonly contentEncoding: string | null;
  readonly headers: ElementHeaders;
}

const NO_METADATA: Metadata = { contentEncoding: null, headers: NO_HEADERS };

/**
 * Encodes the rarer fields of an element's content, `[content encoding, name, value, …]`; null if it has none. So a
 * typical element, with a body and a content type, costs no JSON.
 */
export function encodeMetadata(contentEncoding: string | null, headers: ElementHeaders): string | null {
  if (contentEncoding === null && headers.length === 0) return null;
  return JSON.stringify([contentEncoding, ...headers]);
}

/** Decodes what {@link encodeMetadata} returned, with the lines that were appended since. */
export function decodeMetadata(text: string | null, idOf: IdOf = String): Metadata {
  if (text === null) return NO_METADATA;
  const [first = '', ...lines] = text.split('\n');
  const [contentEncoding = null, ...headers] = JSON.parse(first || '[]') as [string | null, ...string[]];
  return { contentEncoding, headers: withLines(headers, lines, idOf) };
}

/** Applies the lines that follow the first one to its headers. */
export function withLines(headers: ElementHeaders, lines: readonly string[], idOf: IdOf): ElementHeaders {
  let result = headers;
  for (const text of lines) {
    const line = JSON.parse(text) as Line;
    if (line[0] === 'd') {
      const [, queue, at, tries, original, reason, group = PLAIN_GROUP] = line;
      const facts = { from: toByteString(queue), group, at, tries, id: idOf(String(original)), reason };
      result = deadLetterHeaders(result, facts);
    } else {
      const [, ...changes] = line;
      result = withChanges(result, changes);
    }
  }
  return result;
}
