import type { InsertOperation, Operation, Outcome, TakeOperation } from './history.ts';
import {
  checkStory,
  crashedBetween,
  type Found,
  keepsItsPlace,
  strangeDelivery,
  type Violation,
} from './history-rules.ts';
import {
  earliestEligibleWallAt,
  firstInvokedAt,
  isAcknowledged,
  queueGroupOf,
  type Story,
  type Surroundings,
  tellStories,
} from './history-story.ts';

/** The judgement over one history. All lists but `eaten` and `recovered` are violations. */
export interface Verdict extends Found {
  /** Acknowledged inserts that some group never got, beyond what unknown pops may have eaten. */
  readonly lost: readonly Violation[];
  /** Acknowledged, never delivered, each matched with an unknown pop of its own that may have taken it. */
  readonly eaten: readonly Violation[];
  /** Values whose insert had an unknown outcome and that were delivered: allowed. */
  readonly recovered: readonly string[];
  readonly counts: Counts;
  /** From eligible to received, for gets that were already waiting; whole milliseconds of wall time. */
  readonly wakeUp: { readonly count: number; readonly p50: number; readonly p99: number };
}

export interface Counts {
  readonly inserts: OutcomeCounts;
  readonly takes: OutcomeCounts;
  readonly settles: OutcomeCounts;
  /** Takes that handed something out. */
  readonly deliveries: number;
  readonly crashes: number;
}

export type OutcomeCounts = Readonly<Record<Outcome, number>>;

export interface CheckOptions {
  /** Also check that elements of one producer come in the order of their inserts, where nothing moved them. */
  readonly fifo?: boolean;
}

/**
 * Decides over a finished history whose queues were healed and drained. Values are unique, so checking each
 * value on its own, and counting, is enough; the work grows with the number of operations.
 */
export function checkHistory(operations: readonly Operation[], options: CheckOptions = {}): Verdict {
  const { stories, strangers, around } = tellStories(operations);
  const found: Found = {
    unexpected: strangers.map(strangeDelivery),
    duplicated: [],
    early: [],
    wrongTries: [],
    outOfOrder: options.fifo === true ? outOfOrder(stories) : [],
  };
  for (const story of stories) checkStory(story, around, found);
  return {
    ...found,
    ...missing(stories, around),
    recovered: stories.filter(isRecovered).map(({ value }) => value),
    counts: countOperations(operations),
    wakeUp: wakeUps(stories, around),
  };
}

/** What the verdict holds against the server, one line each; empty where all is well. */
export function faultsOf(verdict: Verdict): string[] {
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

function isRecovered(story: Story): boolean {
  const delivered = [...story.groups.values()].some(({ deliveries }) => deliveries.length > 0);
  return delivered && !isAcknowledged(story) && story.inserts.some(({ outcome }) => outcome === 'unknown');
}

/** An acknowledged insert that some group never got. */
interface Absent extends Violation {
  /** It may be stored from here on: an insert without a reply comes before its repeat that has one. */
  readonly invokedAt: number;
}

/**
 * Every absence is laid to an unknown pop of the same queue and group that ended after the insert began,
 * each pop used once: it can have eaten one element. What no pop is left for is lost.
 */
function missing(stories: readonly Story[], around: Surroundings): Pick<Verdict, 'lost' | 'eaten'> {
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
  const verdict: { lost: Violation[]; eaten: Violation[] } = { lost: [], eaten: [] };
  for (const [target, list] of absent) layToPops(list, around.unknownTakes.get(target) ?? [], verdict);
  return verdict;
}

function layToPops(
  absent: Absent[],
  takes: readonly TakeOperation[],
  verdict: { lost: Violation[]; eaten: Violation[] },
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
    verdict.eaten.push({ value, group, what: `possibly taken by pop ${last.seq} of ${last.client}` });
  }
}

/** Looks for an element that was handed out before a get for an older one of its producer was even invoked. */
function outOfOrder(stories: readonly Story[]): Violation[] {
  const targets = new Map<
    string,
    { insert: InsertOperation; first: TakeOperation; value: string; group: string }[]
  >();
  for (const story of stories) {
    const [insert] = story.inserts;
    if (insert === undefined || story.inserts.length > 1) continue;
    for (const { group, deliveries } of story.groups.values()) {
      const [first] = deliveries;
      if (first === undefined || !keepsItsPlace(story, first)) continue;
      const target = `${queueGroupOf(insert.queue, group)}\u0000${insert.client}`;
      const list = targets.get(target) ?? [];
      list.push({ insert, first: first.take, value: story.value, group });
      targets.set(target, list);
    }
  }
  const violations: Violation[] = [];
  for (const list of targets.values()) {
    list.sort((a, b) => b.insert.seq - a.insert.seq);
    let younger: (typeof list)[number] | null = null;
    for (const one of list) {
      // A delayed element has a maturity of its own; only those eligible at insertion are comparable.
      if (one.insert.eligibleWallAt > one.insert.invokedWallAt) continue;
      if (younger !== null && younger.first.endedAt < one.first.invokedAt) {
        violations.push({
          value: one.value,
          group: one.group,
          what: `${younger.value}, inserted later, came first`,
        });
      }
      if (younger === null || one.first.endedAt < younger.first.endedAt) younger = one;
    }
  }
  return violations;
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
