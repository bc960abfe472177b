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
  /** More than one only if an insert was repeated with its idempotency key. */
  readonly inserts: InsertOperation[];
  /** By consumer group; the groups of the insert are there even if nothing was delivered. */
  readonly groups: Map<string, GroupStory>;
}

/** Everything that one consumer group did with a value. */
export interface GroupStory {
  readonly group: string;
  /** Sorted by the time of their replies. */
  readonly deliveries: Delivered[];
  readonly settles: SettleOperation[];
}

/** A take that returned an element. */
export interface Delivered {
  readonly take: TakeOperation;
  readonly handed: Handed;
}

/**
 * Facts outside of a single value's story: crashes, and takes that may have held it without any client having seen it.
 */
export interface Surroundings {
  /** Sorted by time. */
  readonly crashes: readonly CrashOperation[];
  /** Takes of unknown outcome, by {@link queueGroupOf}, sorted by their start. */
  readonly unknownTakes: ReadonlyMap<string, readonly TakeOperation[]>;
  /**
   * The same, including all takes during an outage, however they ended: a node repeats a take for a client that still
   * waits.
   */
  readonly unseenTakes: ReadonlyMap<string, readonly TakeOperation[]>;
}

export interface GroupedHistory {
  readonly stories: Story[];
  /** Deliveries of values that were never inserted. */
  readonly unknownDeliveries: Delivered[];
  readonly around: Surroundings;
}

/** Key of a queue and group: a take of unknown outcome may have taken an element from there. */
export function queueGroupOf(queue: string, group: string): string {
  return `${queue}\u0000${group}`;
}

/** Groups a history into one story per value, in three passes over the operations. */
export function groupByValue(operations: readonly Operation[]): GroupedHistory {
  const stories = new Map<string, Story>();
  for (const operation of operations) if (operation.kind === 'insert') addInsert(stories, operation);
  const unknownDeliveries: Delivered[] = [];
  const crashes: CrashOperation[] = [];
  const unknownTakes = new Map<string, TakeOperation[]>();
  const unseenTakes = new Map<string, TakeOperation[]>();
  const outages = operations.filter(({ kind }) => kind === 'outage');
  for (const operation of operations) {
    if (operation.kind === 'crash') crashes.push(operation);
    else if (operation.kind === 'pop' || operation.kind === 'reserve') {
      const isUnknown = operation.outcome === 'unknown';
      if (isUnknown) addTo(unknownTakes, operation);
      if (isUnknown || isDuring(operation, outages)) addTo(unseenTakes, operation);
      addTake(stories, operation, unknownDeliveries);
    } else if (operation.kind === 'commit' || operation.kind === 'rollback') addSettle(stories, operation);
  }
  for (const story of stories.values()) {
    for (const { deliveries } of story.groups.values()) {
      deliveries.sort((a, b) => a.take.endedAt - b.take.endedAt);
    }
  }
  crashes.sort((a, b) => a.invokedAt - b.invokedAt);
  for (const takes of [...unknownTakes.values(), ...unseenTakes.values()]) {
    takes.sort((a, b) => a.invokedAt - b.invokedAt);
  }
  return {
    stories: [...stories.values()],
    unknownDeliveries,
    around: { crashes, unknownTakes, unseenTakes },
  };
}

function isDuring({ invokedAt, endedAt }: Operation, spans: readonly Operation[]): boolean {
  return spans.some((span) => span.invokedAt <= endedAt && invokedAt <= span.endedAt);
}

/** Adds a take to those of its {@link queueGroupOf}. */
function addTo(takes: Map<string, TakeOperation[]>, take: TakeOperation): void {
  const target = queueGroupOf(take.queue, take.group);
  const list = takes.get(target);
  if (list === undefined) takes.set(target, [take]);
  else list.push(take);
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

function addTake(stories: Map<string, Story>, take: TakeOperation, unknownDeliveries: Delivered[]): void {
  const handed = take.delivery;
  if (handed === null) return;
  const story = handed.value === null ? undefined : stories.get(handed.value);
  if (story === undefined) unknownDeliveries.push({ take, handed });
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

/** When the insert of a value was first invoked; repeats with the same idempotency key count as one. */
export function firstInvokedAt(story: Story): number {
  return Math.min(...story.inserts.map((insert) => insert.invokedAt));
}

export function earliestEligibleWallAt(story: Story): number {
  return Math.min(...story.inserts.map((insert) => insert.eligibleWallAt));
}

export function isAcknowledged(story: Story): boolean {
  return story.inserts.some((insert) => insert.outcome === 'ok');
}

const STORIES_SHOWN = 3;
/** How long before and after a value's own operations those of its queue are printed, ms. */
const AROUND_MS = 3000;

/** Prints the history of the first affected values, and of their queues at that time: a line for each operation. */
export function storiesOf(
  concerned: readonly { readonly value: string; readonly group: string }[],
  operations: readonly Operation[],
): string[] {
  return concerned
    .slice(0, STORIES_SHOWN)
    .flatMap(({ value, group }) => [
      `history of ${value}${group === '' ? '' : ` in group ${group}`}, and of its queue around it:`,
      ...operationsAround(operations, value, group).map((operation) => JSON.stringify(operation)),
    ]);
}

/**
 * Returns the operations on a value, and those at that time in its queue: crashes, outages, and every operation that
 * was not acknowledged, since one of these may have taken it.
 */
function operationsAround(operations: readonly Operation[], value: string, group: string): Operation[] {
  const own = operations.filter((operation) => valueIn(operation) === value);
  const from = Math.min(...own.map(({ invokedAt }) => invokedAt)) - AROUND_MS;
  const until = Math.max(...own.map(({ endedAt }) => endedAt)) + AROUND_MS;
  return operations.filter((operation) => {
    if (own.includes(operation)) return true;
    if (operation.endedAt < from || operation.invokedAt > until) return false;
    if (operation.kind === 'crash' || operation.kind === 'outage') return true;
    const isOfGroup = !('group' in operation) || operation.group === group;
    return operation.outcome !== 'ok' && operation.queue === own[0]?.queue && isOfGroup;
  });
}

function valueIn(operation: Operation): string | null {
  if ('value' in operation) return operation.value;
  return 'delivery' in operation ? (operation.delivery?.value ?? null) : null;
}
