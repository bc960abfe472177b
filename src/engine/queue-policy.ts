import { ANY_NAME, bySpecificity } from '../util/name-pattern.ts';
import type { NamespacePolicy } from './engine.ts';
import type { DeadLetterPolicy, QueueOptions, RetryDelay } from './storage.ts';

/** Options of the queues whose names a pattern matches. */
export interface QueueRule<Options = QueueOptions> {
  /** A name in which each `*` stands for any characters, also none. */
  readonly pattern: string;
  readonly options: Options;
}

/** What the operations of an engine apply to a queue that has no options of its own. */
export interface QueueDefaults {
  readonly deadLetter: DeadLetterPolicy | null;
  readonly retentionMs: number | null;
  readonly retryDelay: RetryDelay | null;
}

/** Defaults of the queues that a pattern matches. */
export interface DefaultsRule extends QueueDefaults {
  readonly pattern: string;
}

/** The defaults of a namespace's queues, the most specific rule first; the last one matches all names. */
export function defaultsRules(policy: NamespacePolicy): DefaultsRule[] {
  const { deadLetter, retentionMs, retryDelay = null, queues = [] } = policy;
  const general = { pattern: ANY_NAME, deadLetter, retentionMs, retryDelay };
  const rules = bySpecificity(queues).map(({ pattern, options }) => ({
    pattern,
    deadLetter: options.deadLetter === undefined ? deadLetter : options.deadLetter,
    retentionMs: options.retentionMs === undefined ? retentionMs : options.retentionMs,
    retryDelay: options.retryDelay === undefined ? retryDelay : options.retryDelay,
  }));
  return [...rules, general];
}

/** After so many tries more the delay has reached its maximum; for arithmetic that overflows instead of becoming infinite. */
export function stepsToMax({ firstMs, factor, maxMs }: RetryDelay): number {
  if (factor === 1 || firstMs >= maxMs) return 0;
  return Math.ceil(Math.log(maxMs / firstMs) / Math.log(factor)) + 1;
}

/** Of the part by which jitter shortens a delay: 2^16 divided by the golden ratio, so that neighbours are far apart. */
const [SPREAD, PER_TRY, PARTS] = [40_503, 30_011, 65_536];

/**
 * How long a delivery waits after a failed try, ms. The jitter is computed from the element and the try, so every node, and
 * every engine, comes to the same result; elements that were inserted together are spread evenly.
 * `retryDelay` in `redis/library/queue.lua` and `retryDelay` in `postgres/sql.ts` compute the same.
 * @param tries failed tries, this one included
 * @param element its number
 */
export function retryDelayMs(
  { firstMs, factor, maxMs, jitter }: RetryDelay,
  tries: number,
  element: number,
): number {
  const delay = Math.min(maxMs, firstMs * factor ** (tries - 1));
  const part = (((element % PARTS) * SPREAD + tries * PER_TRY) % PARTS) / PARTS;
  return Math.floor(delay * (1 - jitter * part) + 0.5);
}
