import type { GroupName, NewElement } from '../model/element.ts';
import type { NamespacePolicy } from './engine.ts';

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
