import type {
  CrashOperation,
  Handed,
  InsertOperation,
  Operation,
  SettleOperation,
  TakeOperation,
} from './history.ts';

/** Everything that happened to one value. */
export interface Story {
  readonly value: string;
  /** More than one only where an insert was repeated under its idempotency key. */
  readonly inserts: InsertOperation[];
  /** By consumer group; the groups of the insert are there even if nothing was delivered. */
  readonly groups: Map<string, GroupStory>;
}

/** What one consumer group saw of a value. */
export interface GroupStory {
  readonly group: string;
  /** Sorted by when their answers came. */
  readonly deliveries: Delivered[];
  readonly settles: SettleOperation[];
}

/** A take that handed something out. */
export interface Delivered {
  readonly take: TakeOperation;
  readonly handed: Handed;
}

/** What a single value's story cannot know: crashes, and takes that failed. */
export interface Surroundings {
  /** Sorted. */
  readonly crashes: readonly CrashOperation[];
  /** Takes of unknown outcome, by {@link queueGroupOf}, sorted by their start. */
  readonly unknownTakes: ReadonlyMap<string, readonly TakeOperation[]>;
  /** Takes that were answered with an error, or not at all, in the same way. */
  readonly failedTakes: ReadonlyMap<string, readonly TakeOperation[]>;
}

export interface Telling {
  readonly stories: Story[];
  /** Deliveries of values that nobody tried to insert. */
  readonly strangers: Delivered[];
  readonly around: Surroundings;
}

/** A queue as one group sees it: where a take of unknown outcome may have eaten something. */
export function queueGroupOf(queue: string, group: string): string {
  return `${queue}\u0000${group}`;
}

/** Sorts a history into one story per value. Three passes over the operations. */
export function tellStories(operations: readonly Operation[]): Telling {
  const stories = new Map<string, Story>();
  for (const operation of operations) if (operation.kind === 'insert') addInsert(stories, operation);
  const strangers: Delivered[] = [];
  const crashes: CrashOperation[] = [];
  const failedTakes = new Map<string, TakeOperation[]>();
  for (const operation of operations) {
    if (operation.kind === 'crash') crashes.push(operation);
    else if (operation.kind === 'pop' || operation.kind === 'reserve') {
      addTake(stories, operation, failedTakes, strangers);
    } else if (operation.kind === 'commit' || operation.kind === 'rollback') addSettle(stories, operation);
  }
  for (const story of stories.values()) {
    for (const { deliveries } of story.groups.values()) {
      deliveries.sort((a, b) => a.take.endedAt - b.take.endedAt);
    }
  }
  crashes.sort((a, b) => a.invokedAt - b.invokedAt);
  const unknownTakes = new Map<string, readonly TakeOperation[]>();
  for (const [target, takes] of failedTakes) {
    takes.sort((a, b) => a.invokedAt - b.invokedAt);
    unknownTakes.set(
      target,
      takes.filter(({ outcome }) => outcome === 'unknown'),
    );
  }
  return { stories: [...stories.values()], strangers, around: { crashes, unknownTakes, failedTakes } };
}

function addInsert(stories: Map<string, Story>, insert: InsertOperation): void {
  let story = stories.get(insert.value);
  if (story === undefined) {
    story = { value: insert.value, inserts: [], groups: new Map() };
    stories.set(insert.value, story);
  }
  story.inserts.push(insert);
  for (const group of insert.groups) groupOf(story, group);
}

function addTake(
  stories: Map<string, Story>,
  take: TakeOperation,
  failedTakes: Map<string, TakeOperation[]>,
  strangers: Delivered[],
): void {
  if (take.outcome !== 'ok') {
    const target = queueGroupOf(take.queue, take.group);
    const list = failedTakes.get(target);
    if (list === undefined) failedTakes.set(target, [take]);
    else list.push(take);
  }
  const handed = take.delivery;
  if (handed === null) return;
  const story = handed.value === null ? undefined : stories.get(handed.value);
  if (story === undefined) strangers.push({ take, handed });
  else groupOf(story, take.group).deliveries.push({ take, handed });
}

function addSettle(stories: Map<string, Story>, settle: SettleOperation): void {
  const story = stories.get(settle.value);
  if (story !== undefined) groupOf(story, settle.group).settles.push(settle);
}

function groupOf(story: Story, group: string): GroupStory {
  let found = story.groups.get(group);
  if (found === undefined) {
    found = { group, deliveries: [], settles: [] };
    story.groups.set(group, found);
  }
  return found;
}

/** When an insert was first invoked, its repeats under one idempotency key included. */
export function firstInvokedAt(story: Story): number {
  return Math.min(...story.inserts.map((insert) => insert.invokedAt));
}

export function earliestEligibleWallAt(story: Story): number {
  return Math.min(...story.inserts.map((insert) => insert.eligibleWallAt));
}

export function isAcknowledged(story: Story): boolean {
  return story.inserts.some((insert) => insert.outcome === 'ok');
}
