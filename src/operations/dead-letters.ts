import type { Queue } from '../broker/queue.ts';
import { DEAD_LETTER_AT, DEAD_LETTER_REASON, FROM_QUEUE } from '../model/dead-letter.ts';
import { DELIVERY_STATES, type ElementHeaders } from '../model/element.ts';
import { textOfBytes } from '../util/byte-text.ts';
import type { Clock } from '../util/clock.ts';
import { MAX_CHUNK } from './search.ts';

/** How many dead letters have the same value of something; null: they have none. */
export interface DeadLetterGroup {
  readonly value: string | null;
  readonly count: number;
}

/** What a dead-letter queue holds. */
export interface DeadLetterSummary {
  readonly ns: string;
  readonly queue: string;
  /** All elements that it has now, looked at or not. */
  readonly count: number;
  /** When the oldest of those that were looked at died, ms since 1970; null if none says so. */
  readonly oldestAt: number | null;
  /** Of those that were looked at, the most frequent first; what is beyond {@link MAX_GROUPS} is left out. */
  readonly reasons: readonly DeadLetterGroup[];
  /** By the queue that they left. */
  readonly sources: readonly DeadLetterGroup[];
  readonly looked: number;
  /** Whether all were looked at. */
  readonly isComplete: boolean;
}

/** Groups that are returned. Reasons are written by clients, so there may be as many as elements. */
const MAX_GROUPS = 100;
/** Different values that are counted; elements with others are looked at, and counted in no group. */
const MAX_VALUES = 1_000;
const MAX_LOOKED = 20_000;
const MAX_MS = 1_000;

/**
 * Summarizes dead-letter queues, in their order. Looks at a bounded number of elements in bounded time, all queues together. Elements
 * beyond that number are counted, but not looked at; queues whose turn comes after that time are left out. Of a stream it looks
 * at the deliveries of the default group.
 */
export async function summarizeDeadLetters(
  queues: readonly Queue[],
  clock: Clock,
): Promise<DeadLetterSummary[]> {
  const endsAt = clock.monotonic() + MAX_MS;
  const summaries: DeadLetterSummary[] = [];
  let left = MAX_LOOKED;
  for (const queue of queues) {
    if (clock.monotonic() >= endsAt) break;
    const { ready, scheduled, reserved } = await queue.counts();
    const counted = new CountedDeadLetters();
    let after: string | null = null;
    let isComplete = ready + scheduled + reserved === 0;
    while (!isComplete && left > 0 && clock.monotonic() < endsAt) {
      const options = { group: null, states: DELIVERY_STATES, after, bodies: false };
      const page = await queue.scan({ ...options, limit: Math.min(MAX_CHUNK, left) });
      for (const { headers } of page.deliveries) counted.add(headers);
      left -= page.deliveries.length;
      after = page.next;
      isComplete = after === null;
    }
    const { ns, name } = queue.key;
    const count = ready + scheduled + reserved;
    summaries.push({ ns, queue: name, count, ...counted.summary(), isComplete });
  }
  return summaries;
}

class CountedDeadLetters {
  readonly #reasons = new Map<string | null, number>();
  readonly #sources = new Map<string | null, number>();
  #oldestAt: number | null = null;
  #looked = 0;

  add(headers: ElementHeaders): void {
    this.#looked += 1;
    count(this.#reasons, headerText(headers, DEAD_LETTER_REASON));
    count(this.#sources, headerText(headers, FROM_QUEUE));
    const at = Date.parse(headerText(headers, DEAD_LETTER_AT) ?? '');
    if (!Number.isNaN(at) && (this.#oldestAt === null || at < this.#oldestAt)) this.#oldestAt = at;
  }

  summary(): Pick<DeadLetterSummary, 'oldestAt' | 'reasons' | 'sources' | 'looked'> {
    const [reasons, sources] = [this.#reasons, this.#sources].map(mostFrequent);
    return { oldestAt: this.#oldestAt, reasons: reasons ?? [], sources: sources ?? [], looked: this.#looked };
  }
}

function count(counts: Map<string | null, number>, value: string | null): void {
  const before = counts.get(value) ?? 0;
  if (before > 0 || counts.size < MAX_VALUES) counts.set(value, before + 1);
}

function mostFrequent(counts: ReadonlyMap<string | null, number>): DeadLetterGroup[] {
  return [...counts]
    .map(([value, times]) => ({ value, count: times }))
    .sort((a, b) => b.count - a.count)
    .slice(0, MAX_GROUPS);
}

/** A header as text; null if there is none. */
function headerText(headers: ElementHeaders, name: string): string | null {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    if (headers[at] !== name) continue;
    const value = headers[at + 1] ?? '';
    return textOfBytes(value) ?? value;
  }
  return null;
}
