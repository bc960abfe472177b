import type {
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  RollbackItem,
  SettleOutcome,
} from '../engine/storage.ts';
import type { ElementId, GroupName } from '../model/element.ts';
import type { QueueKey } from '../model/names.ts';
import type { Namespace } from './namespace.ts';
import { countedAs, isSettled, refusalOf, type Settled } from './refusal.ts';
import type { Waiting } from './waiting.ts';

export const ONE_COMMIT = { commit: 1 } as const;
const ONE_ROLLBACK = { rollback: 1 } as const;
export const ONE_RESERVE_UNDONE = { reserve: -1 } as const;

type Settling = 'commit' | 'rollback' | 'extend' | 'remove';

/** What a client names when it settles: the id, and what the reserve was made with. */
export interface SettleRef {
  readonly id: ElementId;
  readonly group: GroupName | null;
  readonly token: string | null;
  /** The user who settles; not given: the service itself. */
  readonly owner?: string | null;
}

/** What becomes of a queue's reserved elements. Each verb is described where `Queue` offers it. */
export class Reserved {
  readonly #ns: Namespace;
  readonly #key: QueueKey;

  constructor(ns: Namespace, key: QueueKey) {
    this.#ns = ns;
    this.#key = key;
  }

  get #waiting(): Waiting | undefined {
    return this.#ns.waitingAt(this.#key.name);
  }

  commit(ref: SettleRef): Promise<void> {
    const item = this.#delivery(ref);
    return this.#ns.meter.observe('commit', this.#ns.storage.commit(this.#key, [item]), ([outcome]) => {
      this.noteOutcome('commit', ref, outcome);
      this.#ns.stats.add(this.#key, item.group, ONE_COMMIT);
    });
  }

  async rollback(ref: SettleRef, delayMs: number): Promise<Settled> {
    const item = { ...this.#delivery(ref), delayMs, countTry: true };
    const settling = this.#ns.storage.rollback(this.#key, [item]);
    this.#waiting?.wake(item.group, delayMs);
    const [outcome] = await this.#ns.meter.observe('rollback', settling);
    this.noteOutcome('rollback', ref, outcome);
    this.#ns.stats.add(this.#key, item.group, ONE_ROLLBACK);
    if (outcome === 'dead-lettered') this.#ns.elementDied();
    else this.#ns.announce(this.#key, 1);
    return outcome === 'dead-lettered' ? outcome : 'done';
  }

  async commitAll(refs: readonly DeliveryRef[]): Promise<SettleOutcome[]> {
    const outcomes = await this.#ns.meter.observe('commit', this.#ns.storage.commit(this.#key, refs));
    for (const [i, outcome] of outcomes.entries()) {
      this.#count('commit', outcome);
      const ref = refs[i];
      if (ref !== undefined && isSettled(outcome)) this.#ns.stats.add(this.#key, ref.group, ONE_COMMIT);
    }
    return outcomes;
  }

  async rollbackAll(items: readonly RollbackItem[]): Promise<SettleOutcome[]> {
    const settling = this.#ns.storage.rollback(this.#key, items);
    for (const { group, delayMs } of items) this.#waiting?.wake(group, delayMs);
    const outcomes = await this.#ns.meter.observe('rollback', settling);
    let returned = 0;
    for (const [i, outcome] of outcomes.entries()) {
      this.#count('rollback', outcome);
      const item = items[i];
      if (item === undefined || !isSettled(outcome)) continue;
      this.#ns.stats.add(this.#key, item.group, item.countTry ? ONE_ROLLBACK : ONE_RESERVE_UNDONE);
      if (outcome === 'done') returned += 1;
      else this.#ns.elementDied();
    }
    if (returned > 0) this.#ns.announce(this.#key, returned);
    return outcomes;
  }

  async extendAll(items: readonly ExtendItem[]): Promise<ExtendOutcome[]> {
    const results = await this.#ns.meter.observe('extend', this.#ns.storage.extend(this.#key, items));
    for (const result of results) {
      this.#count('extend', result.outcome);
      if (result.outcome === 'done') this.#ns.leaseEndsAt(result.until);
    }
    return results;
  }

  async extend(ref: SettleRef, leaseMs: number | null): Promise<number> {
    const item = { ...this.#delivery(ref), leaseMs: leaseMs ?? this.#ns.leaseMs };
    const [result] = await this.#ns.meter.observe('extend', this.#ns.storage.extend(this.#key, [item]));
    this.noteOutcome('extend', ref, result?.outcome);
    const until = result?.outcome === 'done' ? result.until : 0;
    this.#ns.leaseEndsAt(until);
    return until;
  }

  /** Counts an outcome. @throws QuaysideError where it is a refusal */
  noteOutcome(operation: Settling, ref: SettleRef, outcome: SettleOutcome = 'not-found'): void {
    this.#count(operation, outcome);
    if (isSettled(outcome)) return;
    const { isStream, defaultGroup } = this.#ns;
    const group = ref.group ?? (isStream ? defaultGroup : null);
    throw refusalOf(outcome, { id: ref.id, group }, this.#key);
  }

  /** A group on a plain queue is not the reserve's group: such a ref finds nothing, and changes nothing. */
  #delivery(ref: SettleRef): DeliveryRef {
    const { id, token, owner = null } = ref;
    return { id, group: ref.group ?? this.#ns.defaultGroup, token, owner };
  }

  #count(operation: Settling, outcome: SettleOutcome): void {
    this.#ns.meter.count(operation, countedAs(outcome));
  }
}
