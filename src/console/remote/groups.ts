import { may } from '../session.ts';
import { listedElement } from './elements.ts';
import type { QueueNamed } from './live.ts';
import { queueStatus } from './queue-status.ts';

/** Groups of a stream that are looked at. */
const MAX_GROUPS = 10;

interface LookedGroups {
  readonly groups: readonly (string | null)[];
  /** Whether these are all. */
  readonly areAll: boolean;
}

/** The groups of a stream, or null alone: the queue has one group, which has no name. */
export async function groupsOf(of: QueueNamed, signal: AbortSignal): Promise<LookedGroups> {
  if (!may('read', of.ns)) return { groups: [null], areAll: true };
  const { groups } = await queueStatus(of, signal);
  if (groups === undefined) return { groups: [null], areAll: true };
  const all = Object.keys(groups);
  return { groups: all.slice(0, MAX_GROUPS), areAll: all.length <= MAX_GROUPS };
}

/** The groups of a stream that an element waits for. */
export async function groupsWith(
  of: QueueNamed,
  id: string,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const groups = (await groupsOf(of, signal)).groups.filter((group) => group !== null);
  const found = await Promise.all(groups.map((group) => listedElement(of, id, group, signal)));
  return groups.filter((_, i) => found[i] !== null);
}
