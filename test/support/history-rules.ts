import type { Content, SettleOperation } from './history.ts';
import {
  type Delivered,
  earliestEligibleWallAt,
  firstInvokedAt,
  type GroupStory,
  isAcknowledged,
  queueGroupOf,
  type Story,
  type Surroundings,
} from './history-story.ts';

/** One violation of the rules, described so that a person can find it in the history. */
export interface Violation {
  readonly value: string;
  readonly group: string;
  readonly what: string;
}

export interface Found {
  /**
   * Delivered although its insert was never sent or was rejected, or to another group, or with other bytes or headers.
   */
  readonly unexpected: Violation[];
  readonly duplicated: Violation[];
  /** Delivered before its maturity, or before its insert was invoked. */
  readonly early: Violation[];
  readonly wrongTries: Violation[];
  readonly outOfOrder: Violation[];
}

/** Wall clocks are read in whole milliseconds, so a moment may seem this much too early. */
const TOLERANCE_MS = 1;

/** Applies the rules that concern a single value. */
export function checkStory(story: Story, around: Surroundings, found: Found): void {
  checkIds(story, found);
  for (const group of story.groups.values()) {
    for (const [at, delivered] of group.deliveries.entries()) {
      checkExpected(story, group, delivered, found);
      checkEarly(story, group, at, found);
      checkTries(story, group, at, around, found);
      checkRepeat(story, group, at, around, found);
    }
    checkCommits(story, group, found);
  }
}

function checkIds(story: Story, found: Found): void {
  const ids = new Set(story.inserts.map((insert) => insert.id).filter((id) => id !== null));
  if (ids.size > 1) {
    const what = `its repeated insert answered ${ids.size} ids: ${[...ids].join(', ')}`;
    found.duplicated.push({ value: story.value, group: '', what });
  }
}

function checkExpected(story: Story, { group }: GroupStory, { handed }: Delivered, found: Found): void {
  const add = (what: string): number => found.unexpected.push({ value: story.value, group, what });
  const [insert] = story.inserts;
  if (insert === undefined) return;
  if (story.inserts.every(({ outcome }) => outcome === 'fail')) add('its insert was rejected');
  if (!insert.groups.includes(group)) add('it was handed to a group outside its set');
  const ids = story.inserts.map(({ id }) => id).filter((id) => id !== null);
  if (ids.length > 0 && !ids.includes(handed.id)) add(`it came with id ${handed.id}, inserted as ${ids[0]}`);
  for (const difference of differences(insert.content, handed.content)) add(difference);
}

/** Describes the differences between the inserted and the delivered content; empty if there are none. */
function differences(given: Content, got: Content): string[] {
  const changes: string[] = [];
  if (given.bytes !== got.bytes) changes.push(`the body has ${got.bytes} bytes instead of ${given.bytes}`);
  else if (given.digest !== got.digest) changes.push('bytes of the body changed');
  if (given.contentType !== got.contentType) {
    changes.push(`the content type is ${got.contentType} instead of ${given.contentType}`);
  }
  if (given.contentEncoding !== got.contentEncoding) {
    changes.push(`the content encoding is ${got.contentEncoding} instead of ${given.contentEncoding}`);
  }
  if (given.headers.join('\n') !== got.headers.join('\n')) {
    changes.push(`the headers are [${got.headers.join(', ')}] instead of [${given.headers.join(', ')}]`);
  }
  return changes;
}

function checkEarly(story: Story, group: GroupStory, at: number, found: Found): void {
  const delivered = group.deliveries[at];
  if (delivered === undefined) return;
  const { take } = delivered;
  const add = (what: string): number => found.early.push({ value: story.value, group: group.group, what });
  if (take.endedAt < firstInvokedAt(story)) add('it was handed out before its insert was invoked');
  let eligibleWallAt = earliestEligibleWallAt(story);
  const before = at === 0 ? undefined : group.deliveries[at - 1];
  for (const settle of group.settles) {
    if (settle.kind !== 'rollback' || settle.outcome !== 'ok') continue;
    const certainlyBefore = fencedBy(settle, before) || settle.endedAt < take.invokedAt;
    if (certainlyBefore) eligibleWallAt = Math.max(eligibleWallAt, settle.eligibleWallAt);
  }
  const early = eligibleWallAt - take.endedWallAt;
  if (early > TOLERANCE_MS) add(`it was handed out ${early} ms before its maturity`);
}

/**
 * Checks the tries: each reservation ends in at most one failed try, and each acknowledged rollback with a token in
 * exactly one. A reserve of unknown outcome, or one during an outage, may have reserved this element.
 */
function checkTries(story: Story, group: GroupStory, at: number, around: Surroundings, found: Found): void {
  const delivered = group.deliveries[at];
  const [insert] = story.inserts;
  if (delivered === undefined || insert === undefined) return;
  const { take, handed } = delivered;
  const earlier = group.deliveries.slice(0, at);
  const rolledBack = group.settles.filter(
    (settle) =>
      settle.kind === 'rollback' &&
      settle.outcome === 'ok' &&
      (settle.token === null
        ? settle.endedAt <= take.invokedAt
        : earlier.some((other) => fencedBy(settle, other))),
  );
  const low = insert.tries + rolledBack.length;
  const reserved = earlier.filter((other) => other.take.kind === 'reserve').length;
  let high = insert.tries + reserved;
  if (handed.tries > high) high += unseenReserves(story, group, delivered, around);
  if (handed.tries < low || handed.tries > high) {
    const right = low === high ? `${low}` : `${low} to ${high}`;
    const what = `tries are ${handed.tries} instead of ${right}`;
    found.wrongTries.push({ value: story.value, group: group.group, what });
  }
}

/** Counts reserves that may have reserved this value before the delivery without any client having seen it. */
function unseenReserves(story: Story, group: GroupStory, delivered: Delivered, around: Surroundings): number {
  const from = firstInvokedAt(story);
  let count = 0;
  for (const take of around.unseenTakes.get(queueGroupOf(delivered.take.queue, group.group)) ?? []) {
    if (take.invokedAt > delivered.take.endedAt) break;
    if (take.kind === 'reserve' && take.endedAt >= from) count++;
  }
  return count;
}

/** A second delivery needs a reason: the previous one was a reserve that may have ended without a commit. */
function checkRepeat(story: Story, group: GroupStory, at: number, around: Surroundings, found: Found): void {
  const [before, delivered] = [group.deliveries[at - 1], group.deliveries[at]];
  if (before === undefined || delivered === undefined) return;
  const cause = causeOfRepeat(group, before, delivered, around);
  if (cause === null) return;
  found.duplicated.push({ value: story.value, group: group.group, what: `it was handed out again ${cause}` });
}

/** Returns why the second delivery is a violation; null if it is allowed. */
function causeOfRepeat(
  group: GroupStory,
  before: Delivered,
  after: Delivered,
  around: Surroundings,
): string | null {
  if (before.take.kind === 'pop') return 'after a pop';
  const committed = group.settles.some(
    (settle) =>
      settle.kind === 'commit' &&
      settle.outcome === 'ok' &&
      (fencedBy(settle, before) || settle.endedAt < after.take.invokedAt),
  );
  if (committed) return 'after an acknowledged commit';
  return mayHaveEnded(group, before, after, around) ? null : 'with no rollback, lease end or crash between';
}

function mayHaveEnded(group: GroupStory, before: Delivered, after: Delivered, around: Surroundings): boolean {
  const { leaseUntilWallAt } = before.handed;
  if (leaseUntilWallAt !== null && after.take.endedWallAt + TOLERANCE_MS >= leaseUntilWallAt) return true;
  const rolledBack = group.settles.some(
    (settle) =>
      settle.kind === 'rollback' &&
      settle.outcome !== 'fail' &&
      settle.invokedAt <= after.take.endedAt &&
      (settle.token === null || settle.token === before.handed.token),
  );
  if (rolledBack) return true;
  return crashedBetween(around, before.take.invokedAt, after.take.endedAt);
}

/** Whether the server was killed during that time. */
export function crashedBetween({ crashes }: Surroundings, from: number, until: number): boolean {
  let [low, high] = [0, crashes.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((crashes[middle]?.endedAt ?? 0) < from) low = middle + 1;
    else high = middle;
  }
  const next = crashes[low];
  return next !== undefined && next.invokedAt <= until;
}

function checkCommits(story: Story, group: GroupStory, found: Found): void {
  const commits = group.settles.filter(({ kind, outcome }) => kind === 'commit' && outcome === 'ok').length;
  if (commits > 1) {
    const what = `${commits} commits of it were acknowledged`;
    found.duplicated.push({ value: story.value, group: group.group, what });
  }
  if (commits > 0 && group.deliveries.some(({ take }) => take.kind === 'pop')) {
    const what = 'it was popped, and a commit of it was acknowledged';
    found.duplicated.push({ value: story.value, group: group.group, what });
  }
}

/** Whether the settle named the reservation of this delivery by its token. */
function fencedBy(settle: SettleOperation, delivered: Delivered | undefined): boolean {
  return settle.token !== null && delivered !== undefined && settle.token === delivered.handed.token;
}

/** A violation for a delivery of a value that was never inserted. */
export function unknownDelivery({ take, handed }: Delivered): Violation {
  const value = handed.value ?? `(no value, id ${handed.id})`;
  return { value, group: take.group, what: 'nobody tried to insert it' };
}

/** Whether a delivery is the first one of an element whose place in the order cannot have changed. */
export function keepsItsPlace(story: Story, delivered: Delivered): boolean {
  const [insert] = story.inserts;
  return insert !== undefined && isAcknowledged(story) && delivered.handed.tries === insert.tries;
}
