import type { Queue } from '../broker/queue.ts';
import { DELIVERY_STATES, type ElementHeaders } from '../model/element.ts';
import { isOutage } from '../model/errors.ts';
import { headerOf } from '../model/headers.ts';
import { DEAD_LETTER_AT, DEAD_LETTER_REASON, FROM_QUEUE } from '../model/service-headers.ts';
import { textOfByteString } from '../util/byte-string.ts';
import type { Clock } from '../util/clock.ts';
import { MAX_CHUNK } from './search.ts';

/** How many dead letters have the same reason or source; null: they have none. */
export interface DeadLetterGroup {
  readonly value: string | null;
  readonly count: number;
}

/** Summary of a dead-letter queue. */
export interface DeadLetterSummary {
  readonly ns: string;
  readonly queue: string;
  /** All elements of the queue, examined or not. */
  readonly count: number;
  /** When the oldest examined element was dead-lettered, ms since 1970; null if unknown. */
  readonly oldestAt: number | null;
  /** Of the examined elements, the most frequent first, at most {@link MAX_GROUPS}. */
  readonly reasons: readonly DeadLetterGroup[];
  /** The same by source queue. */
  readonly sources: readonly DeadLetterGroup[];
  readonly looked: number;
  /** Whether all elements were examined. */
  readonly isComplete: boolean;
}

/** Maximum groups returned. Clients write the reasons, so each element may have a different one. */
const MAX_GROUPS = 100;
/** Maximum distinct values counted. Elements with further values are examined, but not counted in a group. */
const MAX_VALUES = 1_000;
const MAX_SUMMARIZED = 20_000;
const MAX_MS = 1_000;

export interface DeadLetterSummaries {
  readonly summaries: readonly DeadLetterSummary[];
  /** Namespaces that are left out because their engine is unavailable. */
  readonly unavailable: readonly string[];
}

/**
 * Summarizes dead-letter queues, in the given order. Examines a bounded number of elements in bounded time, for all
 * queues together. Elements beyond that number are only counted; queues that are not reached in time are left out. On a
 * stream, only deliveries of the default group are examined.
 * @throws QuaysideError the first failure, if the engines of all queues are unavailable
 */
export async function summarizeDeadLetters(
  queues: readonly Queue[],
  clock: Clock,
): Promise<DeadLetterSummaries> {
  let endsAt = clock.monotonic() + MAX_MS;
  const summaries: DeadLetterSummary[] = [];
  const failures = new Map<string, unknown>();
  let elementsLeft = MAX_SUMMARIZED;
  const summarize = async (queue: Queue): Promise<void> => {
    const { ready, scheduled, reserved } = await queue.counts();
    const count = ready + scheduled + reserved;
    const counted = new CountedDeadLetters();
    let after: string | null = null;
    let isComplete = count === 0;
    while (!isComplete && elementsLeft > 0 && clock.monotonic() < endsAt) {
      const options = { group: null, states: DELIVERY_STATES, after, bodies: false };
      const page = await queue.scan({ ...options, limit: Math.min(MAX_CHUNK, elementsLeft) });
      for (const { headers } of page.deliveries) counted.add(headers);
      elementsLeft -= page.deliveries.length;
      after = page.next;
      isComplete = after === null;
    }
    const { ns, name } = queue.key;
    const summary = counted.summary();
    if (queue.namespace.isStream && summary.looked < count) isComplete = false;
    summaries.push({ ns, queue: name, count, ...summary, isComplete });
  };
  for (const queue of queues) {
    const { ns } = queue.key;
    if (failures.has(ns)) continue;
    const startedAt = clock.monotonic();
    if (startedAt >= endsAt) break;
    try {
      await summarize(queue);
    } catch (error) {
      if (!isOutage(error)) throw error;
      failures.set(ns, error);
      // An unavailable engine must not use up the time of the others.
      endsAt += clock.monotonic() - startedAt;
    }
  }
  if (summaries.length === 0) for (const error of failures.values()) throw error;
  return { summaries, unavailable: [...failures.keys()] };
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
  const value = headerOf(headers, name);
  return value && textOfByteString(value);
}
