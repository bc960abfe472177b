import { may } from '../session.ts';
import { listedElement } from './elements.ts';
import type { QueueNamed } from './live.ts';
import { queueStatus } from './queue-status.ts';

/** Groups of a stream that are looked at. */
const MAX_GROUPS = 10;

/** The groups of a stream, or null alone: the queue has one group, which has no name. */
export async function groupsOf(of: QueueNamed, signal: AbortSignal): Promise<readonly (string | null)[]> {
  if (!may('read', of.ns)) return [null];
  const { groups } = await queueStatus(of, signal);
  return groups === undefined ? [null] : Object.keys(groups).slice(0, MAX_GROUPS);
}

/** The groups of a stream that an element waits for. */
export async function groupsWith(
  of: QueueNamed,
  id: string,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const groups = (await groupsOf(of, signal)).filter((group) => group !== null);
  const found = await Promise.all(groups.map((group) => listedElement(of, id, group, signal)));
  return groups.filter((_, i) => found[i] !== null);
}
