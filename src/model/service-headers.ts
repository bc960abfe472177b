import { toByteString } from '../util/byte-string.ts';
import { type ElementHeaders, type ElementId, type GroupName, PLAIN_GROUP } from './element.ts';

// Headers that exchanges add to the elements they forward.
export const HOP_COUNT = 'x-hop-count';
export const EXCHANGE_NAME = 'x-exchange-name';
/** The reason for which an element was forwarded to `__no_route__`, if it is not that all selectors rejected it. */
export const EXCHANGE_ERROR = 'x-exchange-error';
/** How many copies the original has become, counting those that an exchange may take again; absent if 1. */
export const COPY_COUNT = 'x-copy-count';

/** Facts about the original of a dead letter, for its headers. */
interface DeadLetterFacts {
  /** The queue that it left, as header bytes. */
  readonly from: string;
  /** The group for which it failed. */
  readonly group: GroupName;
  /** When it was moved, ms since 1970. */
  readonly at: number;
  /** Its failed tries, including the last one. */
  readonly tries: number;
  /** Its id in the queue that it left. */
  readonly id: ElementId;
  /** Why it was moved; null or not given: unknown. */
  readonly reason?: string | null;
}

/** The first id of a dead letter: that of the element which its producer inserted. */
export const ORIGIN_ID = 'x-ks-origin-id';

/** The queue that a dead letter left. */
export const FROM_QUEUE = 'x-dl-from-queue';
/** On a stream, the consumer group for which it failed: dead letters are for other groups. */
export const FROM_GROUP = 'x-dl-group';

/**
 * The original queue of an element that a bulk move has stored in a temporary queue, on its way to another engine. If
 * it expires there, its {@link FROM_QUEUE} is that original queue.
 */
export const MOVED_FROM = 'x-ks-moved-from';

/** When a dead letter was moved (ISO 8601), and why. */
export const DEAD_LETTER_AT = 'x-dl-at';
export const DEAD_LETTER_REASON = 'x-dl-reason';

/**
 * The headers that describe the last move. They are removed when an element returns to its queue; {@link ORIGIN_ID}
 * remains.
 */
export const MOVE_HEADERS: ReadonlySet<string> = new Set([
  FROM_QUEUE,
  FROM_GROUP,
  DEAD_LETTER_AT,
  'x-dl-tries',
  DEAD_LETTER_REASON,
]);

/**
 * Headers of elements that never expire: dead letters, even if they were moved back, copies made by exchanges, and
 * elements that no destination of an exchange accepted.
 */
const WITHOUT_EXPIRY: ReadonlySet<string> = new Set([ORIGIN_ID, HOP_COUNT, EXCHANGE_NAME]);

/**
 * Whether an element with these headers never expires, although its headers may still name the expiry of its original.
 */
export function neverExpires(headers: ElementHeaders): boolean {
  return headers.some((name, at) => at % 2 === 0 && WITHOUT_EXPIRY.has(name));
}

/** All headers that are added to dead letters. */
const DEAD_LETTER_HEADERS: ReadonlySet<string> = new Set([...MOVE_HEADERS, ORIGIN_ID]);

/** All headers that the service itself adds. They do not count towards the limits of an element's headers. */
export const SERVICE_HEADERS: ReadonlySet<string> = new Set([
  HOP_COUNT,
  COPY_COUNT,
  EXCHANGE_NAME,
  EXCHANGE_ERROR,
  MOVED_FROM,
  ...DEAD_LETTER_HEADERS,
]);

/**
 * The headers of an element that is moved to a dead-letter queue (docs/concepts.md, "Rules"). Headers of an earlier
 * move, if it returned and failed again, are replaced; the origin id remains.
 */
export function deadLetterHeaders(headers: ElementHeaders, facts: DeadLetterFacts): ElementHeaders {
  const { from, group, at, tries, id, reason = null } = facts;
  let hasOriginId = false;
  const kept: string[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    const name = headers[i] ?? '';
    if (!MOVE_HEADERS.has(name)) kept.push(name, headers[i + 1] ?? '');
    if (name === ORIGIN_ID) hasOriginId = true;
  }
  const movedAt = new Date(at).toISOString();
  kept.push(FROM_QUEUE, from);
  if (group !== PLAIN_GROUP) kept.push(FROM_GROUP, toByteString(group));
  kept.push(DEAD_LETTER_AT, movedAt, 'x-dl-tries', String(tries));
  const deadLetterReason = headerValue(reason ?? '');
  if (deadLetterReason !== '') kept.push(DEAD_LETTER_REASON, deadLetterReason);
  if (!hasOriginId) kept.push(ORIGIN_ID, id);
  return kept;
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: they are what would end the header
const CONTROLS = /[\x00-\x1f\x7f]/g;

const SPACES_AT_ENDS = /^ +| +$/g;

/**
 * Converts a string to a header value: UTF-8 bytes, with control characters replaced by spaces, and trimmed. Reasons
 * often end with a newline, and headers are checked again when the element is inserted into another queue.
 */
function headerValue(text: string): string {
  return toByteString(text.replace(CONTROLS, ' ').replace(SPACES_AT_ENDS, ''));
}
