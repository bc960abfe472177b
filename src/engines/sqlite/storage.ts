import {
  type GroupCounts,
  type InsertOptions,
  MAX_REASON_BYTES,
  type PurgeStep,
  type QueueCounts,
  type QueueOptions,
  type ScannedDelivery,
  type ScanOptions,
  type ScanPage,
  SETTLED,
  type SettleAction,
  type SettleItem,
  type SettleOutcome,
  type SettleResult,
  type Storage,
  type StorageCapabilities,
  type SweepResult,
  type TakeOptions,
  type TakeResult,
  type Usage,
} from '../../engine/storage.ts';
import type { Delivery, DeliveryState, ElementId, GroupName, NewElement } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import { holderTexts, ownerNumber, readHolder } from '../../model/owner.ts';
import { cutText } from '../../util/cut-text.ts';
import type { WorkerClient } from './client.ts';
import {
  type BodyWriter,
  bodyAt,
  type Extra,
  type Fields,
  fromMore,
  nameOf,
  type Operations,
  type PackedBodies,
  type QueueName,
  SCANNED_FIELDS,
  type Scanned,
  SETTLE_NEEDS,
  type SettleDetails,
  TAKEN_FIELDS,
  type Taken,
  toMore,
} from './protocol.ts';
import type { SteadyTime } from './steady-time.ts';

const NO_BODY = new Uint8Array(0);

/** What a popped delivery has in addition, so that an undone take loses nothing of it. */
interface Lost {
  readonly expiresAt: number | null;
  readonly reason: string | null;
}

/** The Storage port over the worker: flattens arguments, and makes objects of results. */
export class SqliteStorage implements Storage {
  readonly capabilities: StorageCapabilities = {
    sched: true,
    reserve: true,
    pipeline: true,
    remove: true,
    expiry: true,
  };
  readonly undoesLostTakes = false;
  readonly ordersTransfers = true;
  readonly insertSignaller = null;
  readonly #client: WorkerClient;
  readonly #time: SteadyTime;

  constructor(client: WorkerClient, time: SteadyTime) {
    this.#client = client;
    this.#time = time;
  }

  now(): number {
    return this.#time.now();
  }

  declare(queues: readonly QueueKey[], options?: QueueOptions | null): Promise<void> {
    const text = options === undefined ? null : JSON.stringify(options);
    return this.#client.call('declare', () => [queues.map(nameOf), text], nothing);
  }

  queues(ns: string): Promise<string[]> {
    return this.#client.call('queues', () => [ns], same);
  }

  insert(
    queue: QueueKey,
    elements: readonly NewElement[],
    { onRepeat = null, request = null }: InsertOptions = {},
  ): Promise<ElementId[]> {
    const write = (bodies: BodyWriter): Parameters<Operations['insert']> => {
      const fields: Fields = [];
      const now = this.#time.now();
      for (const element of elements) this.#writeElement(element, now, bodies, fields);
      return [nameOf(queue), fields, request && [request.key, request.fingerprint]];
    };
    if (onRepeat === null) return this.#client.call('insert', write, ([, ids]) => ids);
    // Not where the reply is read: what the caller's function throws is the caller's alone.
    return this.#client.call('insert', write, same).then(([repeats, ids]) => {
      for (let at = 0; repeats !== null && at < repeats.length; at += 2) {
        onRepeat(repeats[at] ?? 0, repeats[at + 1] === 1);
      }
      return ids;
    });
  }

  take(queue: QueueKey, options: TakeOptions): Promise<TakeResult> {
    const { group, count, ids, leaseMs, owner, tids, maxBytes } = options;
    return this.#client.call(
      'take',
      () => {
        const holders = leaseMs === null ? '' : holderTexts(owner, tids);
        const number = ownerNumber(owner);
        return [nameOf(queue), group, count, ids ?? null, leaseMs, number, holders, maxBytes ?? null];
      },
      (taken, bodies) => ({
        deliveries: readTaken(taken, group, bodies),
        nextDueAt: taken[0],
        isCut: taken[4],
      }),
      ({ deliveries }) => this.#returnLate(queue, deliveries),
    );
  }

  /** The taker was answered `outcome-unknown`: what it would have had regains its place. */
  #returnLate(queue: QueueKey, deliveries: readonly Delivery[]): void {
    const failure = 'elements of a take whose reply came too late could not be returned to their queue';
    const popped = deliveries.filter(({ lease }) => lease === null);
    const reserved = deliveries.filter(({ lease }) => lease !== null);
    if (popped.length > 0) {
      this.#client.run('undoTake', (bodies) => this.#undone(queue, popped, bodies), failure);
    }
    const write = (): [needs: number, items: Fields, details: SettleDetails[]] => {
      const items = reserved.flatMap(({ id, group, lease }) => {
        return [nameOf(queue), id, group, 0, lease?.token ?? null, 0, 'release'];
      });
      return [0, items, reserved.map(() => [0, null, 0, null, 0])];
    };
    if (reserved.length > 0) this.#client.run('settle', write, failure);
  }

  settle(items: readonly SettleItem[]): Promise<SettleResult[]> {
    return this.#client.call(
      'settle',
      (bodies) => {
        let needs = 0;
        let last: QueueKey | null = null;
        let details: SettleDetails[] | null = null;
        const fields: Fields = [];
        const now = this.#time.now();
        for (let index = 0; index < items.length; index++) {
          const { queue, id, group, from, token, owner, action } = items[index] as SettleItem;
          const isWaiting = from === 'waiting';
          const user = token === null ? ownerNumber(owner) : 0;
          const name = queue === last ? null : nameOf(queue);
          last = queue;
          fields.push(name, id, group, isWaiting ? 1 : 0, token, user, action.kind);
          needs |= needsOf(action, isWaiting);
          const more = this.#detailsOf(action, now, bodies);
          if (more === null) continue;
          details ??= items.map(() => null);
          details[index] = more;
        }
        return [needs, fields, details];
      },
      (results) => items.map((_, index) => readSettled(results, index * 2)),
    );
  }

  undoTake(queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    return this.#client.call('undoTake', (bodies) => this.#undone(queue, deliveries, bodies), nothing);
  }

  /** The arguments of `undoTake`. */
  #undone(
    queue: QueueKey,
    deliveries: readonly Delivery[],
    bodies: BodyWriter,
  ): [queue: QueueName, deliveries: Fields] {
    const fields: Fields = [];
    for (const delivery of deliveries) {
      const { id, group, tries, matureAt, contentType, contentEncoding, headers, body } = delivery;
      const { expiresAt = null, reason = null } = delivery as Partial<Lost>;
      const more = toMore(contentEncoding, headers);
      fields.push(id, group, tries, matureAt, contentType, more, bodies.add(body), body.byteLength);
      fields.push(expiresAt, reason);
    }
    return [nameOf(queue), fields];
  }

  scan(queue: QueueKey, { group, states, ids, after, limit, bodies }: ScanOptions): Promise<ScanPage> {
    return this.#client.call(
      'scan',
      () => [nameOf(queue), group, states, ids ?? null, after, limit, bodies],
      (page, received) => ({
        deliveries: readScanned(page, group, received, ids !== undefined),
        next: page[0],
      }),
    );
  }

  purge(queue: QueueKey, states?: readonly DeliveryState[]): Promise<PurgeStep> {
    return this.#client.call(
      'purge',
      () => [nameOf(queue), states ?? null],
      ([removed, isDone]) => ({ removed, isDone }),
    );
  }

  drop(queue: QueueKey): Promise<boolean> {
    return this.#client.call('drop', () => [nameOf(queue)], same);
  }

  counts(queue: QueueKey, group?: GroupName): Promise<QueueCounts> {
    return this.#client.call('counts', () => [nameOf(queue), group ?? null], readCounts);
  }

  usage(ns: string): Promise<Usage> {
    return this.#client.call(
      'usage',
      () => [ns],
      ([elements, bytes]) => ({ elements, bytes }),
    );
  }

  sweep(): Promise<SweepResult> {
    return this.#client.call(
      'sweep',
      () => [],
      ([nextAt, names]) => {
        const affected: QueueKey[] = [];
        for (let at = 0; at < names.length; at += 2) {
          affected.push({ ns: names[at] ?? '', name: names[at + 1] ?? '' });
        }
        return { affected, nextAt };
      },
    );
  }

  #detailsOf(action: SettleAction, now: number, bodies: BodyWriter): SettleDetails {
    switch (action.kind) {
      case 'finish': {
        if (action.inserts === undefined || action.inserts.length === 0) return null;
        const fields: Fields = [];
        for (const { queue, element } of action.inserts) {
          fields.push(nameOf(queue));
          this.#writeElement(element, now, bodies, fields);
        }
        return fields;
      }
      case 'release': {
        const dueAt = action.dueAt ?? null;
        const moment = dueAt === null ? null : this.#time.fromWall(dueAt);
        const isDefault = action.countTry && action.isDefaultDelay === true;
        return [action.delayMs, moment, action.countTry ? 1 : 0, cutReason(action.reason), isDefault ? 1 : 0];
      }
      case 'extend':
        return [action.leaseMs];
      case 'dead-letter':
        return [action.countTry ? 1 : 0, cutReason(action.reason)];
      case 'move':
        return [nameOf(action.to), joined(action.groups), action.tries, ...action.headers];
    }
  }

  /** Writes {@link ELEMENT_FIELDS}. */
  #writeElement(element: NewElement, now: number, bodies: BodyWriter, fields: Fields): void {
    const { contentType, contentEncoding, headers, body, matureAt, delayMs, tries, groups, dedupKey } =
      element;
    const dueAt = matureAt === null ? now + delayMs : this.#time.fromWall(matureAt);
    const expiresAt = element.expiresAt ?? null;
    let more: string | null = null;
    if (dedupKey !== null || expiresAt !== null) {
      const extra: Extra = {
        ...(dedupKey !== null && { key: dedupKey, fingerprint: element.fingerprint ?? null }),
        ...(expiresAt !== null && { expiresAt: this.#time.fromWall(expiresAt) }),
      };
      more = JSON.stringify(extra);
    }
    fields.push(contentType, toMore(contentEncoding, headers), bodies.add(body), body.byteLength);
    fields.push(dueAt, tries, joined(groups), more);
  }
}

function nothing(): void {}

function same<T>(result: T): T {
  return result;
}

function joined(groups: readonly GroupName[]): string {
  return groups.length > 1 ? [...new Set(groups)].join(',') : (groups[0] ?? '');
}

function cutReason(reason: string | null | undefined): string | null {
  return reason == null ? null : cutText(reason, MAX_REASON_BYTES);
}

/**
 * What only moves leases needs no fsync before it is acknowledged: if a power loss takes it back, a lease ends early or
 * an undelivered element stays reserved until its lease ends, and neither loses an element.
 */
function needsOf(action: SettleAction, isWaiting: boolean): number {
  if (action.kind === 'extend') return 0;
  if (action.kind === 'release') {
    const isReturned =
      !isWaiting && !action.countTry && action.delayMs === 0 && (action.dueAt ?? null) === null;
    return isReturned ? 0 : SETTLE_NEEDS.sync;
  }
  const inserts = action.kind === 'finish' ? (action.inserts?.length ?? 0) : 0;
  const takesSpace = action.kind === 'move' || inserts > 0;
  return takesSpace ? SETTLE_NEEDS.sync | SETTLE_NEEDS.space : SETTLE_NEEDS.sync;
}

function readTaken([, until, lost, fields]: Taken, group: GroupName, bodies: PackedBodies): Delivery[] {
  const deliveries: Delivery[] = [];
  for (let at = 0; at < fields.length; at += TAKEN_FIELDS) {
    const { contentEncoding, headers } = fromMore(fields[at + 4] as string | null);
    const token = fields[at + 7] as string | null;
    deliveries.push({
      id: fields[at] as string,
      group,
      tries: fields[at + 1] as number,
      matureAt: fields[at + 2] as number,
      contentType: fields[at + 3] as string | null,
      contentEncoding,
      headers,
      body: bodyAt(bodies, fields[at + 5] as number, fields[at + 6] as number),
      lease: token === null || until === null ? null : { token, until },
    });
  }
  for (let at = 0; lost !== null && at < lost.length; at += 3) {
    const more = { expiresAt: lost[at + 1] ?? null, reason: lost[at + 2] ?? null } as Lost;
    Object.assign(deliveries[lost[at] as number] ?? {}, more);
  }
  return deliveries;
}

function readScanned(
  [, fields]: Scanned,
  group: GroupName,
  bodies: PackedBodies,
  byIds: boolean,
): ScannedDelivery[] {
  const deliveries: ScannedDelivery[] = [];
  for (let at = 0; at < fields.length; at += SCANNED_FIELDS) {
    const { contentEncoding, headers } = fromMore(fields[at + 9] as string | null);
    const until = fields[at + 4] as number | null;
    const offset = fields[at + 10] as number | null;
    const bytes = fields[at + 11] as number;
    const id = fields[at] as string;
    const state = fields[at + 1] as DeliveryState;
    const moment = fields[at + 3] as number;
    const own = (fields[at + 12] as string | null) ?? id;
    deliveries.push({
      id,
      group,
      state,
      tries: fields[at + 2] as number,
      matureAt: moment,
      lease: until === null ? null : { token: '', until },
      insertedAt: fields[at + 5] as number,
      expiresAt: fields[at + 6] as number | null,
      reason: fields[at + 7] as string | null,
      contentType: fields[at + 8] as string | null,
      contentEncoding,
      headers,
      body: offset === null ? NO_BODY : bodyAt(bodies, offset, bytes),
      bytes,
      holder:
        until === null
          ? null
          : {
              ...readHolder(fields[at + 14] as string | null),
              since: (fields[at + 13] as number | null) ?? 0,
            },
      // As `worker/scan.ts` reads it.
      cursor: byIds ? null : `${state}.${until ?? moment}.${own}`,
    });
  }
  return deliveries;
}

function readSettled(results: Fields, at: number): SettleResult {
  const outcome = results[at] as SettleOutcome;
  const until = results[at + 1] as number | null;
  return until === null ? SETTLED[outcome] : { outcome, until };
}

/** Of the queue, then per group: name, counts. */
function readCounts(fields: Fields): QueueCounts {
  const groups = new Map<GroupName, GroupCounts>();
  for (let at = 5; at < fields.length; at += 5) groups.set(fields[at] as string, groupCounts(fields, at));
  return { ...groupCounts(fields, 0), groups };
}

function groupCounts(fields: Fields, at: number): GroupCounts {
  return {
    ready: fields[at + 1] as number,
    scheduled: fields[at + 2] as number,
    reserved: fields[at + 3] as number,
    nextMatureAt: fields[at + 4] as number | null,
  };
}
