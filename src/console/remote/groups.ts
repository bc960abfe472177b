import { may } from '../session.ts';
import { listedElement } from './elements.ts';
import type { QueueNamed } from './live.ts';
import { queueStatus } from './queues.ts';

/** Groups of a stream that are searched at the same time. */
const MAX_GROUPS = 10;
/** Maximum groups that are searched for an element. */
const MAX_LOOKED = 200;

interface LookedGroups {
  readonly groups: readonly (string | null)[];
  /** Whether these are all. */
  readonly areAll: boolean;
}

/** Returns groups of a stream, at most {@link MAX_GROUPS}; for a plain queue, only null. */
export async function groupsOf(of: QueueNamed, signal: AbortSignal): Promise<LookedGroups> {
  if (!may('read', of.ns)) return { groups: [null], areAll: true };
  const { groups } = await queueStatus(of, signal);
  if (groups === undefined) return { groups: [null], areAll: true };
  const all = Object.keys(groups);
  return { groups: all.slice(0, MAX_GROUPS), areAll: all.length <= MAX_GROUPS };
}

/** Returns the groups of a stream that still have an element, of the first {@link MAX_LOOKED}. */
export async function groupsWith(of: QueueNamed, id: string, signal: AbortSignal): Promise<LookedGroups> {
  if (!may('read', of.ns)) return { groups: [], areAll: true };
  const all = Object.keys((await queueStatus(of, signal)).groups ?? {});
  const looked = all.slice(0, MAX_LOOKED);
  const groups: string[] = [];
  for (let from = 0; from < looked.length; from += MAX_GROUPS) {
    const some = looked.slice(from, from + MAX_GROUPS);
    const found = await Promise.all(some.map((group) => listedElement(of, id, group, signal)));
    groups.push(...some.filter((_, i) => found[i] !== null));
  }
  return { groups, areAll: looked.length === all.length };
}
