import { type GroupName, type NewElement, PLAIN_GROUP } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import { ANY_NAME, bySpecificity, ruleFor } from '../util/name-pattern.ts';
import type { NamespacePolicy } from './engine.ts';
import type { DeadLetterPolicy, QueueOptions, RetryDelay } from './storage.ts';

/** Options of the queues whose names a pattern matches. */
export interface QueueRule<Options = QueueOptions> {
  /** A queue name in which each `*` matches any characters, including none. */
  readonly pattern: string;
  readonly options: Options;
}

/** The policy of a queue without stored options. */
export interface QueueDefaults {
  readonly deadLetter: DeadLetterPolicy | null;
  readonly retentionMs: number | null;
  readonly retryDelay: RetryDelay | null;
}

/** For namespaces that are not configured, since callers may name any. */
const NO_DEFAULTS: QueueDefaults = { deadLetter: null, retentionMs: null, retryDelay: null };

/** Defaults of the queues that a pattern matches. */
interface DefaultsRule extends QueueDefaults {
  readonly pattern: string;
}

/** The defaults of a namespace's queues, the most specific rule first; the last one matches all names. */
function defaultsRules(policy: NamespacePolicy): DefaultsRule[] {
  const { deadLetter, retentionMs, retryDelay = null, queues = [] } = policy;
  const fallback = { pattern: ANY_NAME, deadLetter, retentionMs, retryDelay };
  const rules = bySpecificity(queues).map(({ pattern, options }) => ({
    pattern,
    deadLetter: options.deadLetter === undefined ? deadLetter : options.deadLetter,
    retentionMs: options.retentionMs === undefined ? retentionMs : options.retentionMs,
    retryDelay: options.retryDelay === undefined ? retryDelay : options.retryDelay,
  }));
  return [...rules, fallback];
}

/** Constants of the jitter. `SPREAD` is 2^16 divided by the golden ratio, so that neighbors get distant values. */
const [SPREAD, PER_TRY, PARTS] = [40_503, 30_011, 65_536];

/**
 * How long a delivery waits after a failed try, ms. The jitter is computed from the element and the try, so that every
 * node and every engine gets the same result; elements inserted together are spread evenly. Must match `retryDelay` in
 * `redis/library/queue.lua` and in `postgres/sql.ts`.
 * @param tries failed tries, including this one
 * @param element its sequence number
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

/** Bounds the number of groups of a queue. */
export interface GroupLimit {
  readonly max: number;
  /** The default groups of the namespace, which always fit and do not count. */
  readonly defaults: ReadonlySet<GroupName>;
}

/** The policies of all namespaces of an engine. */
export class NamespacePolicies {
  readonly #policies: ReadonlyMap<string, NamespacePolicy>;
  readonly #limits: ReadonlyMap<string, GroupLimit>;
  /** Rules by namespace, the most specific first. */
  readonly #rules: ReadonlyMap<string, readonly DefaultsRule[]>;

  constructor(policies: readonly NamespacePolicy[]) {
    this.#policies = new Map(policies.map((policy) => [policy.name, policy]));
    this.#limits = new Map(
      policies.flatMap(({ name, groups, maxGroups }) =>
        groups === null || maxGroups === undefined
          ? []
          : [[name, { max: maxGroups, defaults: new Set(groups) }]],
      ),
    );
    this.#rules = new Map(policies.map((policy) => [policy.name, defaultsRules(policy)]));
  }

  defaultsOf({ ns, name }: QueueKey): QueueDefaults {
    return ruleFor(this.rulesOf(ns), name) ?? NO_DEFAULTS;
  }

  /** The rules of a namespace, the most specific first; empty if it is not configured. */
  rulesOf(ns: string): readonly DefaultsRule[] {
    return this.#rules.get(ns) ?? [];
  }

  /** Whether elements of the namespace may have several groups. */
  isStream(ns: string): boolean {
    return (this.#policies.get(ns)?.groups ?? null) !== null;
  }

  /** The groups of elements that the engine itself stores, such as dead letters. */
  defaultGroups(ns: string): readonly GroupName[] {
    return this.#policies.get(ns)?.groups ?? [PLAIN_GROUP];
  }

  /** The limit on groups of each queue; null: unlimited, as on plain queues and without `maxGroups`. */
  groupLimit(ns: string): GroupLimit | null {
    return this.#limits.get(ns) ?? null;
  }
}

/** How many of a queue's groups count toward the limit. */
export function limitedCount(
  { defaults }: GroupLimit,
  groups: { readonly size: number; has(group: GroupName): boolean },
): number {
  let count = groups.size;
  for (const group of defaults) if (groups.has(group)) count -= 1;
  return count;
}

/** The distinct groups of new elements that count toward the limit. */
export function limitedGroups(
  { defaults }: GroupLimit,
  elements: readonly Pick<NewElement, 'groups'>[],
): Set<GroupName> {
  const named = new Set<GroupName>();
  for (const { groups } of elements) for (const group of groups) if (!defaults.has(group)) named.add(group);
  return named;
}
