import type { GroupLimit } from '../../../engine/group-limit.ts';
import { tooManyGroups } from '../../../engine/store-failures.ts';
import type { GroupName } from '../../../model/element.ts';
import { Refusal } from './faults.ts';
import type { Lane, Queue } from './names.ts';
import type { Store } from './store.ts';

/** Groups of no use that one call forgets. */
const LANES_A_CALL = 1000;

/** The part of a new element that says who may read it: names joined by commas, '' on a plain queue. */
interface Addressed {
  readonly groups: string;
}

/**
 * Sees that a queue has no more groups than its namespace allows once these elements are stored. Where it would,
 * groups that have nothing are forgotten: names come from producers and must not pile up.
 * Called before anything of a call is stored; a queue that was never written stays unknown.
 * @throws Refusal where even that makes no room
 */
export function makeRoom(store: Store, handle: number, elements: readonly Addressed[]): void {
  const limit = store.names.limitOf(handle);
  if (limit === null) return;
  const queue = store.names.find(handle);
  const missing = missingGroups(queue, limit, elements);
  if (missing === null) return;
  const excess = limitedLanes(queue, limit) + missing.size - limit.most;
  if (excess <= 0) return;
  const empty = queue === null ? [] : emptyLanes(queue, limit, elements);
  if (empty.length < excess) throw new Refusal(tooManyGroups(store.names.keyOf(handle).name, limit.most));
  for (const lane of empty) {
    store.leases.forget(lane);
    store.names.removeLane(lane);
  }
}

/** How many groups the queue has beside the default ones. */
function limitedLanes(queue: Queue | null, { defaults }: GroupLimit): number {
  if (queue === null) return 0;
  let limited = queue.lanes.size;
  for (const group of defaults) if (queue.lanes.has(group)) limited -= 1;
  return limited;
}

/** Groups that the queue does not have yet, but for default ones, which always fit; null: none. */
function missingGroups(
  queue: Queue | null,
  { defaults }: GroupLimit,
  elements: readonly Addressed[],
): Set<GroupName> | null {
  let missing: Set<GroupName> | null = null;
  let last = '';
  for (const { groups } of elements) {
    // Elements of one call are mostly for the same groups.
    if (groups === last) continue;
    last = groups;
    for (const group of groups.split(',')) {
      if (queue?.lanes.has(group) || defaults.has(group)) continue;
      missing ??= new Set();
      missing.add(group);
    }
  }
  return missing;
}

/** Lanes that hold nothing and that nobody names now. */
function emptyLanes(queue: Queue, { defaults }: GroupLimit, elements: readonly Addressed[]): readonly Lane[] {
  const kept = new Set(defaults);
  for (const { groups } of elements) for (const group of groups.split(',')) kept.add(group);
  const empty: Lane[] = [];
  for (const lane of queue.lanes.values()) {
    const { ready, scheduled, reserved } = lane.counts;
    if (ready + scheduled + reserved > 0 || kept.has(lane.group)) continue;
    empty.push(lane);
    if (empty.length === LANES_A_CALL) break;
  }
  return empty;
}
