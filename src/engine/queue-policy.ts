import type { GroupName, NewElement } from '../model/element.ts';
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

/** How many groups a queue may have in addition to the default ones. */
export interface GroupLimit {
  readonly most: number;
  /** The default groups of the namespace, which always fit and are not counted. */
  readonly defaults: ReadonlySet<GroupName>;
}

/** Null if nothing bounds them: on plain queues, and if the policy does not say. */
export function groupLimitOf(policy: NamespacePolicy | null | undefined): GroupLimit | null {
  const { groups = null, maxGroups } = policy ?? {};
  return groups === null || maxGroups === undefined ? null : { most: maxGroups, defaults: new Set(groups) };
}

/** The groups that are named and that a limit is about, each once. */
export function limitedGroups(
  { defaults }: GroupLimit,
  elements: readonly Pick<NewElement, 'groups'>[],
): Set<GroupName> {
  const named = new Set<GroupName>();
  for (const { groups } of elements) for (const group of groups) if (!defaults.has(group)) named.add(group);
  return named;
}

/** Whether elements name more groups than even an empty queue may have: then the store need not be read. */
export function isBeyond(limit: GroupLimit, elements: readonly Pick<NewElement, 'groups'>[]): boolean {
  let count = 0;
  for (const { groups } of elements) count += groups.length;
  return count > limit.most && limitedGroups(limit, elements).size > limit.most;
}
