import type { NamespacePolicy } from '../../engine/engine.ts';
import { type GroupLimit, groupLimitOf, limitedGroups } from '../../engine/group-limit.ts';
import { tooManyGroups } from '../../engine/store-failures.ts';
import type { GroupName, NewElement } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { queueText } from './documents.ts';

/** Queues whose groups are remembered; with more than these, all are asked for again. */
const MOST_REMEMBERED = 10_000;
/** Where a queue has all the groups that it may have, the server is not asked again for so long. */
const ASK_AGAIN_MS = 1000;

export interface GroupRoomHost {
  /** Groups of a queue that have deliveries. @throws what the driver throws */
  read(queue: QueueKey): Promise<readonly GroupName[]>;
  /** Milliseconds from an arbitrary start. */
  monotonic(): number;
}

interface Remembered {
  groups: Set<GroupName>;
  readAt: number;
}

type Addressed = Pick<NewElement, 'groups'>;

/**
 * Bounds the groups of a queue. MongoDB keeps no list of them: a group is there while it has deliveries, and to list
 * them is to read the queue's index. So each node remembers what it let in, and asks when it meets a group that it
 * does not know in a queue that it does not know, or that seems full. Nodes may so let in more than the bound together, each
 * no more than the bound.
 */
export class GroupRoom {
  readonly #host: GroupRoomHost;
  readonly #limits: ReadonlyMap<string, GroupLimit | null>;
  #known = new Map<string, Remembered>();

  constructor(policies: readonly NamespacePolicy[], host: GroupRoomHost) {
    this.#host = host;
    this.#limits = new Map(policies.map((policy) => [policy.name, groupLimitOf(policy)]));
  }

  /** The store may be another one, as after a restore. */
  forget(): void {
    this.#known = new Map();
  }

  /** Lets elements in. Null where that needs no question. @throws QuaysideError `too-many-groups` */
  admit(queue: QueueKey, elements: readonly Addressed[]): Promise<void> | null {
    const limit = this.#limits.get(queue.ns) ?? null;
    if (limit === null) return null;
    const known = this.#known.get(queueText(queue));
    const isKnown = (group: GroupName): boolean =>
      limit.defaults.has(group) || known?.groups.has(group) === true;
    return elements.every(({ groups }) => groups.every(isKnown)) ? null : this.#admit(queue, limit, elements);
  }

  async #admit(queue: QueueKey, limit: GroupLimit, elements: readonly Addressed[]): Promise<void> {
    const text = queueText(queue);
    const named = limitedGroups(limit, elements);
    let known = this.#known.get(text);
    const isStale = known === undefined || this.#host.monotonic() >= known.readAt + ASK_AGAIN_MS;
    if (named.size <= limit.most && isStale && !hasRoom(known, named, limit))
      known = await this.#read(queue, limit);
    if (!hasRoom(known, named, limit)) throw tooManyGroups(queue.name, limit.most);
    for (const group of named) known?.groups.add(group);
  }

  async #read(queue: QueueKey, { defaults }: GroupLimit): Promise<Remembered> {
    const groups = await this.#host.read(queue);
    const known = {
      groups: new Set(groups.filter((group) => !defaults.has(group))),
      readAt: this.#host.monotonic(),
    };
    if (this.#known.size >= MOST_REMEMBERED) this.forget();
    this.#known.set(queueText(queue), known);
    return known;
  }
}

/** Unknown as long as nothing was read. */
function hasRoom(
  known: Remembered | undefined,
  named: ReadonlySet<GroupName>,
  { most }: GroupLimit,
): boolean {
  if (known === undefined) return false;
  let count = known.groups.size;
  for (const group of named) if (!known.groups.has(group)) count += 1;
  return count <= most;
}
