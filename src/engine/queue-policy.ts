import { type GroupName, type NewElement, PLAIN_GROUP } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import { ANY_NAME, bySpecificity, ruleFor } from '../util/name-pattern.ts';
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

/** Those of namespaces that are not configured: their names come from callers. */
const NO_DEFAULTS: QueueDefaults = { deadLetter: null, retentionMs: null, retryDelay: null };

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
 * How long a delivery waits after a failed try, ms. The jitter is computed from the element and the try, so every node,
 * and every engine, comes to the same result; elements that were inserted together are spread evenly. `retryDelay` in
 * `redis/library/queue.lua` and `retryDelay` in `postgres/sql.ts` compute the same.
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

/** The policies of all namespaces of an engine, as they apply to its queues. */
export class NamespacePolicies {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** Of each namespace, the most specific rule first. */
  readonly #rules: ReadonlyMap<string, readonly DefaultsRule[]>;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    this.#limits = new Map(
      policies.flatMap(({ name, groups, maxGroups }) =>
        groups === null || maxGroups === undefined
          ? []
          : [[name, { most: maxGroups, defaults: new Set(groups) }]],
      ),
    );
    this.#rules = new Map(policies.map((policy) => [policy.name, defaultsRules(policy)]));
  }

  defaultsOf({ ns, name }: QueueKey): QueueDefaults {
    return ruleFor(this.rulesOf(ns), name) ?? NO_DEFAULTS;
  }

  /** The most specific first; none if the namespace is not configured. */
  rulesOf(ns: string): readonly DefaultsRule[] {
    return this.#rules.get(ns) ?? [];
  }

  /** Whether elements of the namespace may have several groups. */
  isStream(ns: string): boolean {
    return (this.#policies.get(ns)?.groups ?? null) !== null;
  }

  /** Those of what the engine itself stores, such as dead letters. */
  defaultGroups(ns: string): readonly GroupName[] {
    return this.#policies.get(ns)?.groups ?? [PLAIN_GROUP];
  }

  /** What bounds the groups of each queue; null: nothing does, as on plain queues, and if the policy does not say. */
  groupLimit(ns: string): GroupLimit | null {
    return this.#limits.get(ns) ?? null;
  }
}

/** How many of a queue's groups count for a limit. */
export function limitedCount(
  { defaults }: GroupLimit,
  groups: { readonly size: number; has(group: GroupName): boolean },
): number {
  let count = groups.size;
  for (const group of defaults) if (groups.has(group)) count -= 1;
  return count;
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
