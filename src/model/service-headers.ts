import { bytesOfText } from '../util/byte-text.ts';
import type { ElementHeaders, ElementId } from './element.ts';

// Headers that exchanges write on what they forward.
export const HOP_COUNT = 'x-hop-count';
export const EXCHANGE_NAME = 'x-exchange-name';
/** Why an element went to `__no_route__` although no selector rejected it. */
export const EXCHANGE_ERROR = 'x-exchange-error';
/** How many copies an element's original has become, counting those that can come back; absent for one. */
export const COPY_COUNT = 'x-copy-count';

/** Where elements go that failed too often, if the options name no other queue. */
export const DEAD_LETTER_QUEUE = '__deadletter__';

/** What the headers of a dead letter add about the element that it was. */
interface DeadLetterFacts {
  /** The queue that it left, in bytes as headers are. */
  readonly from: string;
  /** When it was moved. */
  readonly at: number;
  /** Its failed tries, the last one included. */
  readonly tries: number;
  /** The id that it had there. */
  readonly id: ElementId;
  /** Why it was moved; null or not given: unknown. */
  readonly reason?: string | null;
}

/** Names the first id of a dead letter: that of the element which its producer inserted. */
export const ORIGIN_ID = 'x-ks-origin-id';

/** Names the queue that a dead letter left. */
export const FROM_QUEUE = 'x-dl-from-queue';

/**
 * Names the queue of an element that a bulk move has in a queue of its own, on its way to another engine. If it expires
 * there, that queue is what {@link FROM_QUEUE} names.
 */
export const MOVED_FROM = 'x-ks-moved-from';

/** When a dead letter was moved, ISO 8601, and why. */
export const DEAD_LETTER_AT = 'x-dl-at';
export const DEAD_LETTER_REASON = 'x-dl-reason';

/**
 * The headers that describe the last move. An element that returns to its queue loses them, and keeps its
 * {@link ORIGIN_ID}.
 */
export const MOVE_HEADERS: ReadonlySet<string> = new Set([
  FROM_QUEUE,
  DEAD_LETTER_AT,
  'x-dl-tries',
  DEAD_LETTER_REASON,
]);

/** The headers that are written on dead letters. */
const DEAD_LETTER_HEADERS: ReadonlySet<string> = new Set([...MOVE_HEADERS, ORIGIN_ID]);

/** What the service itself writes, in addition to what clients set. The limits of an element's headers exempt these. */
export const SERVICE_HEADERS: ReadonlySet<string> = new Set([
  HOP_COUNT,
  COPY_COUNT,
  EXCHANGE_NAME,
  EXCHANGE_ERROR,
  MOVED_FROM,
  ...DEAD_LETTER_HEADERS,
]);

/**
 * The headers of an element that is moved to a dead-letter queue (docs/concepts.md, "Rules"). Those of an earlier
 * move, if it was moved back and failed again, are replaced; the first id stays.
 */
export function deadLetterHeaders(headers: ElementHeaders, facts: DeadLetterFacts): ElementHeaders {
  const { from, at, tries, id, reason = null } = facts;
  let isMovedAgain = false;
  const kept: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] ?? '';
    if (!MOVE_HEADERS.has(name)) kept.push(name, headers[i + 1] ?? '');
    if (name === ORIGIN_ID) isMovedAgain = true;
  }
  const moved = new Date(at).toISOString();
  kept.push(FROM_QUEUE, from, DEAD_LETTER_AT, moved, 'x-dl-tries', String(tries));
  const why = headerValue(reason ?? '');
  if (why !== '') kept.push(DEAD_LETTER_REASON, why);
  if (!isMovedAgain) kept.push(ORIGIN_ID, id);
  return kept;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what would end the header
const CONTROLS = /[\x00-\x1f\x7f]/g;

const SPACES_AT_ENDS = /^ +| +$/g;

/**
 * Text as a header's value: its bytes, and what would end the header is a space. None at its ends, as of headers that
 * clients send: reasons often end with a line end, and what takes the element later checks its headers.
 */
function headerValue(text: string): string {
  return bytesOfText(text.replace(CONTROLS, ' ').replace(SPACES_AT_ENDS, ''));
}
