import type { InsertOperation, Operation, Outcome, TakeOperation } from './history.ts';
import {
  checkStory,
  crashedBetween,
  type Found,
  keepsItsPlace,
  unknownDelivery,
  type Violation,
} from './history-rules.ts';
import {
  earliestEligibleWallAt,
  firstInvokedAt,
  groupByValue,
  isAcknowledged,
  queueGroupOf,
  type Story,
  type Surroundings,
} from './history-story.ts';

/** The result of checking one history. All lists except `maybePopped`, `overtaken` and `recovered` are violations. */
export interface Verdict extends Found {
  /** Acknowledged inserts that some group never received, and that no pop of unknown outcome can account for. */
  readonly lost: readonly Violation[];
  /** Acknowledged and never delivered, each matched with a different pop of unknown outcome that may have taken it. */
  readonly maybePopped: readonly Violation[];
  /**
   * Delivered after a younger element of the same producer, each matched with a different take that may have held it.
   */
  readonly overtaken: readonly Violation[];
  /** Values whose insert had an unknown outcome and that were delivered: allowed. */
  readonly recovered: readonly string[];
  readonly counts: Counts;
  /** Time from eligible to received, for gets that were already waiting; whole milliseconds of wall time. */
  readonly wakeUp: { readonly count: number; readonly p50: number; readonly p99: number };
}

export interface Counts {
  readonly inserts: OutcomeCounts;
  readonly takes: OutcomeCounts;
  readonly settles: OutcomeCounts;
  /** Number of takes that returned an element. */
  readonly deliveries: number;
  readonly crashes: number;
}

export type OutcomeCounts = Readonly<Record<Outcome, number>>;

/** How long after its response a take may still be executed, ms. */
const LATEST_TAKE_MS = 30_000;

export interface CheckOptions {
  /**
   * Also check that elements of one producer are delivered in the order of their inserts, unless something moved them.
   */
  readonly fifo?: boolean;
}

/**
 * Checks a finished history whose queues were healed and drained. Values are unique, so it is enough to check each
 * value on its own, and to count; the work grows with the number of operations.
 */
export function checkHistory(operations: readonly Operation[], options: CheckOptions = {}): Verdict {
  const { stories, unknownDeliveries, around } = groupByValue(operations);
  const found: Found = {
    unexpected: unknownDeliveries.map(unknownDelivery),
    duplicated: [],
    early: [],
    wrongTries: [],
    outOfOrder: [],
  };
  const overtaken = options.fifo === true ? checkOrder(stories, around, found) : [];
  for (const story of stories) checkStory(story, around, found);
  return {
    ...found,
    ...missing(stories, around),
    overtaken,
    recovered: stories.filter(isRecovered).map(({ value }) => value),
    counts: countOperations(operations),
    wakeUp: wakeUps(stories, around),
  };
}

/** Describes the violations of a verdict, one line each; empty if there are none. */
export function describeViolations(verdict: Verdict): string[] {
  const lines = (kind: string, list: readonly Violation[]): string[] =>
    list.map(
      ({ value, group, what }) => `${kind}: ${value}${group === '' ? '' : ` (group ${group})`}: ${what}`,
    );
  return [
    ...lines('lost', verdict.lost),
    ...lines('unexpected', verdict.unexpected),
    ...lines('duplicated', verdict.duplicated),
    ...lines('early', verdict.early),
    ...lines('tries', verdict.wrongTries),
    ...lines('order', verdict.outOfOrder),
  ];
}

export function violationsOf(verdict: Verdict): Violation[] {
  const { lost, unexpected, duplicated, early, wrongTries, outOfOrder } = verdict;
  return [...lost, ...unexpected, ...duplicated, ...early, ...wrongTries, ...outOfOrder];
}

function isRecovered(story: Story): boolean {
  const delivered = [...story.groups.values()].some(({ deliveries }) => deliveries.length > 0);
  return delivered && !isAcknowledged(story) && story.inserts.some(({ outcome }) => outcome === 'unknown');
}

/** An acknowledged insert that some group never received. */
interface Absent extends Violation {
  /** The element may be stored from then on: an insert without a reply precedes its repeat that has one. */
  readonly invokedAt: number;
}

/**
 * Attributes every absence to a pop of unknown outcome of the same queue and group that ended after the insert began.
 * Each pop is used once, as it can have taken one element. Absences without a pop left are losses.
 */
function missing(stories: readonly Story[], around: Surroundings): Pick<Verdict, 'lost' | 'maybePopped'> {
  const absent = new Map<string, Absent[]>();
  for (const story of stories) {
    const insert = story.inserts.find(({ outcome }) => outcome === 'ok');
    if (insert === undefined) continue;
    for (const { group, deliveries } of story.groups.values()) {
      if (deliveries.length > 0 || !insert.groups.includes(group)) continue;
      const target = queueGroupOf(insert.queue, group);
      const what = `acknowledged as ${insert.id} to ${insert.client}, never delivered`;
      const list = absent.get(target) ?? [];
      list.push({ value: story.value, group, what, invokedAt: firstInvokedAt(story) });
      absent.set(target, list);
    }
  }
  const verdict: { lost: Violation[]; maybePopped: Violation[] } = { lost: [], maybePopped: [] };
  for (const [target, list] of absent) layToPops(list, around.unknownTakes.get(target) ?? [], verdict);
  return verdict;
}

function layToPops(
  absent: Absent[],
  takes: readonly TakeOperation[],
  verdict: { lost: Violation[]; maybePopped: Violation[] },
): void {
  // The latest insert has the fewest pops to choose from, so it chooses first, and takes the latest.
  const pops = takes.filter(({ kind }) => kind === 'pop').sort((a, b) => a.endedAt - b.endedAt);
  for (const one of absent.sort((a, b) => b.invokedAt - a.invokedAt)) {
    const last = pops.at(-1);
    const { value, group, what } = one;
    if (last === undefined || last.endedAt < one.invokedAt) {
      verdict.lost.push({ value, group, what });
      continue;
    }
    pops.pop();
    verdict.maybePopped.push({ value, group, what: `possibly taken by pop ${last.seq} of ${last.client}` });
  }
}

/** The first delivery of an element to a group. */
interface First {
  readonly insert: InsertOperation;
  readonly take: TakeOperation;
  readonly value: string;
  readonly group: string;
}

/**
 * Finds elements that were delivered before a get for an older element of the same producer was even invoked. A take
 * returns what is ready. If an engine executes a take whose reply is lost, the element is not ready until the take is
 * undone, and younger ones are delivered first. Each such case is attributed to a different such take, and returned.
 */
function checkOrder(stories: readonly Story[], around: Surroundings, found: Found): Violation[] {
  const overtaken: Violation[] = [];
  for (const [target, firsts] of firstDeliveries(stories)) {
    const takes = [...(around.unseenTakes.get(target) ?? [])];
    for (const [older, younger] of reordered(firsts)) {
      const { value, group } = older;
      const what = `${younger.value}, inserted later, came first`;
      const at = takes.findIndex((take) => mayHaveHeld(take, older, younger));
      const [take] = at < 0 ? [] : takes.splice(at, 1);
      if (take === undefined) found.outOfOrder.push({ value, group, what });
      else
        overtaken.push({
          value,
          group,
          what: `${what}; take ${take.seq} of ${take.client} may have held it`,
        });
    }
  }
  return overtaken;
}

/** First deliveries by queue and group, of elements whose place in the order cannot have changed. */
function firstDeliveries(stories: readonly Story[]): Map<string, First[]> {
  const targets = new Map<string, First[]>();
  for (const story of stories) {
    const [insert] = story.inserts;
    if (insert === undefined || story.inserts.length > 1) continue;
    // Only elements that were eligible at insertion are comparable; a delayed one is ordered by its maturity.
    if (insert.eligibleWallAt > insert.invokedWallAt) continue;
    for (const { group, deliveries } of story.groups.values()) {
      const [first] = deliveries;
      if (first === undefined || !keepsItsPlace(story, first)) continue;
      const target = queueGroupOf(insert.queue, group);
      const list = targets.get(target) ?? [];
      list.push({ insert, take: first.take, value: story.value, group });
      targets.set(target, list);
    }
  }
  return targets;
}

/** Pairs of elements of one producer whose younger one was delivered before a get for the older one was invoked. */
function reordered(firsts: readonly First[]): [older: First, younger: First][] {
  const pairs: [First, First][] = [];
  const earliest = new Map<string, First>();
  for (const one of [...firsts].sort((a, b) => b.insert.seq - a.insert.seq)) {
    const younger = earliest.get(one.insert.client);
    if (younger !== undefined && younger.take.endedAt < one.take.invokedAt) pairs.push([one, younger]);
    if (younger === undefined || one.take.endedAt < younger.take.endedAt) {
      earliest.set(one.insert.client, one);
    }
  }
  return pairs;
}

/**
 * Whether a take may have held the older element. An engine that was frozen or cut off may execute a take long after
 * its response: Redis rejects those sent more than 30 s ago.
 */
function mayHaveHeld(take: TakeOperation, older: First, younger: First): boolean {
  return take.invokedAt < younger.take.endedAt && take.endedAt + LATEST_TAKE_MS > older.insert.invokedAt;
}

function countOperations(operations: readonly Operation[]): Counts {
  const noOutcomes = (): Record<Outcome, number> => ({ ok: 0, fail: 0, unknown: 0 });
  const counts = {
    inserts: noOutcomes(),
    takes: noOutcomes(),
    settles: noOutcomes(),
    deliveries: 0,
    crashes: 0,
  };
  for (const operation of operations) {
    switch (operation.kind) {
      case 'insert':
        counts.inserts[operation.outcome]++;
        break;
      case 'pop':
      case 'reserve':
        counts.takes[operation.outcome]++;
        if (operation.delivery !== null) counts.deliveries++;
        break;
      case 'commit':
      case 'rollback':
        counts.settles[operation.outcome]++;
        break;
      case 'crash':
        counts.crashes++;
        break;
      case 'outage':
        break;
      default:
        operation satisfies never;
    }
  }
  return counts;
}

function wakeUps(stories: readonly Story[], around: Surroundings): Verdict['wakeUp'] {
  const waits: number[] = [];
  for (const story of stories) {
    const [insert] = story.inserts;
    if (insert === undefined || story.inserts.length > 1 || insert.outcome !== 'ok') continue;
    for (const { deliveries } of story.groups.values()) {
      const take = deliveries[0]?.take;
      if (take === undefined || take.invokedAt > insert.invokedAt) continue;
      if (crashedBetween(around, insert.invokedAt, take.endedAt)) continue;
      const eligibleAt = Math.max(earliestEligibleWallAt(story), insert.endedWallAt);
      waits.push(Math.max(0, take.endedWallAt - eligibleAt));
    }
  }
  waits.sort((a, b) => a - b);
  const at = (part: number): number =>
    waits[Math.min(waits.length - 1, Math.floor(waits.length * part))] ?? 0;
  return { count: waits.length, p50: at(0.5), p99: at(0.99) };
}
