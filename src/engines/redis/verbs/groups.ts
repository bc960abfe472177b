import { tooManyGroups } from '../../../engine/calls.ts';
import type { GroupLimit } from '../../../engine/queue-policy.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import { single } from '../batcher.ts';
import type { Policies } from '../policies.ts';

/** The error if all group numbers of a queue are in use. */
export const noNumberLeft = (): QuaysideError =>
  new QuaysideError('too-many-groups', 'The queue has 65,535 consumer groups, which is the maximum.');

/** The result of a verb that stored nothing, because groups do not fit: see `library/queue.lua`. */
export const NO_CAPACITY = 0x21;

/** The limit of a queue's groups. */
export interface GroupCapacity {
  readonly queue: QueueKey;
  readonly limit: GroupLimit | null;
  /** The limit as `library/groups.lua` reads it. */
  readonly encoded: string;
}

/** The error if groups do not fit. */
export function groupsRejected({ queue, limit }: GroupCapacity): QuaysideError {
  return limit === null ? noNumberLeft() : tooManyGroups(queue.name, limit.max);
}

export function capacityOf(policies: Policies, queue: QueueKey): GroupCapacity {
  const limit = policies.groupLimit(queue.ns);
  return { queue, limit, encoded: limit === null ? '' : `${limit.max},${[...limit.defaults].join(',')},` };
}

/** Creates groups; rejected if they do not all fit. */
export const CREATE_GROUPS = single<{ readonly capacity: GroupCapacity; readonly groups: string }, undefined>(
  'create-groups',
  ({ capacity, groups }) => [capacity.encoded, groups],
  ({ text }, { capacity }) => (text.length > 0 ? groupsRejected(capacity) : undefined),
);
