import type { SweepResult } from '../../engine/storage.ts';
import type { QueueKey } from '../../model/names.ts';
import { applyChanges } from './changes.ts';
import { discard } from './discard.ts';
import { type DeliveryHead, HEAD_FIELDS } from './documents.ts';
import { fromDriver, Refused } from './errors.ts';
import type { Parts } from './parts.ts';
import { BY_AGE, BY_LEASE_END } from './schema.ts';
import { MAX_TIME_MS } from './settings.ts';
import { lapsed } from './verbs/decide.ts';

/** Leases that end in one step. */
const AT_ONCE = 500;
/** When to look again for one that could not be moved. */
const AGAIN_AFTER_MS = 1000;
/** Elements past their retention that one sweep drops, in steps. */
const DROPPED_AT_ONCE = 1000;
const MOST_DROPPED = 10_000;

/** Ends leases that ran out, and drops what is older than its namespace's retention. */
export class Housekeeping {
  readonly #parts: Parts;
  readonly #touched = new Map<string, QueueKey>();
  #ending: Promise<number | null> | null = null;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  touched({ ns, name }: QueueKey): void {
    this.#touched.set(JSON.stringify([ns, name]), { ns, name });
  }

  /** Before something is taken or settled: ends leases, if some may have ended. @throws what the driver throws */
  async before(): Promise<void> {
    if (this.#parts.leases.mayHaveEnded(this.#parts.store.time.estimate)) await this.endLeases();
    else await this.#ending;
  }

  /**
   * Ends the leases that ran out, the earliest first. Several callers at once share one look.
   * @returns when to call again, ms: a moment that has passed where more are left; null where no lease runs
   * @throws CommitUnknown, Lost, Refused, or what the driver throws
   */
  endLeases(): Promise<number | null> {
    this.#ending ??= this.#endLeases().finally(() => {
      this.#ending = null;
    });
    return this.#ending;
  }

  async sweep(): Promise<SweepResult> {
    const nextAt = await this.endLeases();
    for (const { ns, retentionMs } of this.#parts.policies.kept()) await this.#drop(ns, retentionMs);
    const touched = [...this.#touched.values()];
    this.#touched.clear();
    return { touched, nextAt };
  }

  async #endLeases(): Promise<number | null> {
    const { leases } = this.#parts;
    leases.look();
    try {
      const heads = await this.#ended();
      const now = heads[0]?.now.getTime() ?? 0;
      const ended = heads.filter(({ until }) => until !== undefined && until.getTime() <= now);
      await this.#end(ended.slice(0, AT_ONCE), now);
      const next = heads[Math.min(ended.length, AT_ONCE)]?.until?.getTime() ?? null;
      if (next !== null) leases.endsAt(next);
      return next;
    } catch (error) {
      leases.forget();
      throw error;
    }
  }

  /** The leases that end first, ended or not. */
  async #ended(): Promise<(DeliveryHead & { now: Date })[]> {
    const { store } = this.#parts;
    store.assertUp();
    const heads = await store.collections.elements
      .aggregate<DeliveryHead & { now: Date }>(
        [
          { $match: { until: { $exists: true } } },
          { $sort: { until: 1, id: 1 } },
          { $limit: AT_ONCE + 1 },
          { $project: { ...HEAD_FIELDS, now: store.time.expression } },
        ],
        { hint: BY_LEASE_END, maxTimeMS: MAX_TIME_MS },
      )
      .toArray();
    const [first] = heads;
    if (first !== undefined) store.time.saw(first.now);
    return heads;
  }

  async #end(heads: readonly DeliveryHead[], now: number): Promise<void> {
    const { store, ops, policies } = this.#parts;
    const isLast = ({ ns, queue, tries }: DeliveryHead): boolean =>
      policies.letterTarget({ ns, name: queue }, tries + 1) !== null;
    const staying = heads.filter((head) => !isLast(head));
    const changes = staying.flatMap((head) => (head.until === undefined ? [] : [lapsed(head, head.until)]));
    const { ids, refused } = await applyChanges(store, ops.next(), changes);
    for (const { _id, ns, queue } of staying) if (ids.has(_id)) this.touched({ ns, name: queue });
    if (refused !== null) throw refused;
    await this.#bury(heads.filter(isLast), now);
  }

  /**
   * Where one cannot be moved, the others are: a node that died may have left a transaction that holds a document
   * until the server gives it up, after a minute.
   */
  async #bury(dying: readonly DeliveryHead[], now: number): Promise<void> {
    const { deadLetters, leases, store, log } = this.#parts;
    const [first] = dying;
    if (first === undefined) return;
    try {
      await deadLetters.move(dying, now);
    } catch (error) {
      const fault = fromDriver(error);
      if (!(fault instanceof Refused) || !store.isUp) throw fault;
      if (dying.length > 1) {
        for (const one of dying) await this.#bury([one], now);
        return;
      }
      leases.endsAt(now + AGAIN_AFTER_MS);
      log.warn({ queue: first.queue, reason: fault.message }, 'a dead letter cannot be moved yet');
    }
  }

  async #drop(ns: string, retentionMs: number): Promise<void> {
    const { store } = this.#parts;
    const { elements } = store.collections;
    const now = await store.time.read();
    const oldest = new Date(now.getTime() - retentionMs);
    for (let dropped = 0; dropped < MOST_DROPPED; dropped += DROPPED_AT_ONCE) {
      const old = await elements
        .find(
          { ns, born: { $lte: oldest }, state: 'waiting' },
          { projection: { _id: 1 }, limit: DROPPED_AT_ONCE, hint: BY_AGE, maxTimeMS: MAX_TIME_MS },
        )
        .toArray();
      if (old.length === 0) return;
      // Somebody may have reserved one of them since; that one stays.
      const ids = old.map(({ _id }) => _id);
      const { writeConcern } = store.settings;
      await discard(
        this.#parts,
        { ids, mayHaveKeys: true, filter: { state: 'waiting' }, now },
        { writeConcern, maxTimeMS: MAX_TIME_MS },
      );
    }
  }
}
