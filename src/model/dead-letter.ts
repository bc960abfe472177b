import type { ElementHeaders } from './element.ts';

/** What a dead letter says of the element that it was, beside that one's own headers. */
export interface LetterFacts {
  /** The queue that it left, in bytes as headers are. */
  readonly from: string;
  /** When it was moved. */
  readonly at: number;
  /** Its failed tries, the last one included. */
  readonly tries: number;
}

/** The headers that are written on dead letters. */
export const LETTER_HEADERS: ReadonlySet<string> = new Set(['x-dl-from-queue', 'x-dl-at', 'x-dl-tries']);

/**
 * The headers of an element that is moved to a dead-letter queue (decisions, "Dead letter"). Those of an earlier
 * move, if it was moved back and failed again, give way to the new ones.
 */
export function letterHeaders(headers: ElementHeaders, { from, at, tries }: LetterFacts): ElementHeaders {
  const kept: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] ?? '';
    if (!LETTER_HEADERS.has(name)) kept.push(name, headers[i + 1] ?? '');
  }
  const moved = new Date(at).toISOString();
  return [...kept, 'x-dl-from-queue', from, 'x-dl-at', moved, 'x-dl-tries', String(tries)];
}
