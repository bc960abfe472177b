import type { SettleAction, SettleOutcome } from '../../../engine/storage.ts';
import {
  ELEMENT_FIELDS,
  type Fields,
  type PackedBodies,
  type QueueName,
  SETTLE_FIELDS,
  type SettleDetails,
} from '../protocol.ts';
import { elementAt, insertOne } from './insert.ts';
import { deadLetter, failTry, move, setAsideDamaged } from './moves.ts';
import type { Queue, Subscription } from './names.ts';
import type { Bodies } from './operations.ts';
import { type DeliveryRow, isWholeDelivery } from './rows.ts';
import type { Store } from './store.ts';

type Kind = SettleAction['kind'];

/** A delivery that an item names, by element, group, token and, without a token, the user; 0: the service itself. */
interface Reference {
  readonly element: number;
  readonly token: string | null;
  readonly owner: number;
}

/**
 * Applies one action to each delivery. What an item inserts stands in the call's transaction, so it happens wholly or not
 * at all.
 * @throws Rejected
 */
export function settle(
  store: Store,
  { received }: Bodies,
  _needs: number,
  items: Fields,
  details: readonly SettleDetails[] | null,
): Fields {
  if (details !== null) makeRoom(store, items, details);
  const results: Fields = [];
  let queue: Queue | null = null;
  for (let at = 0; at < items.length; at += SETTLE_FIELDS) {
    if (items[at] !== null) queue = store.names.find(items[at] as QueueName);
    const element = store.ids.parse(items[at + 1] as string);
    const group = items[at + 2] as string | null;
    const isWaiting = items[at + 3] === 1;
    const kind = items[at + 6] as Kind;
    const rest = details?.[at / SETTLE_FIELDS] ?? [];
    let outcome: SettleOutcome = 'not-found';
    if (queue !== null && element !== null) {
      store.names.noteUse(queue, store.now);
      const subscription = group === null ? undefined : queue.subscriptions.get(group);
      if (group === null) outcome = removeWaiting(store, queue.id, element);
      else if (subscription !== undefined && isWaiting) {
        outcome = settleWaiting(store, subscription, element, kind, rest);
      } else if (subscription !== undefined) {
        const reference = { element, token: items[at + 4] as string | null, owner: items[at + 5] as number };
        outcome = settleReserved(store, subscription, reference, kind, rest);
      }
    }
    if (outcome === 'done' && kind === 'finish') insertAll(store, received, rest);
    results.push(outcome, outcome === 'done' && kind === 'extend' ? store.now + Number(rest[0]) : null);
  }
  return results;
}

/** Groups of what is inserted: before anything of the call is changed. */
function makeRoom({ names }: Store, items: Fields, details: readonly SettleDetails[]): void {
  const targets = new Map<QueueName, string[]>();
  const add = (queue: QueueName, groups: string): void => {
    if (groups !== '') targets.set(queue, [...(targets.get(queue) ?? []), groups]);
  };
  for (const [index, rest] of details.entries()) {
    const kind = items[index * SETTLE_FIELDS + 6];
    if (rest === null) continue;
    if (kind === 'move') add(rest[0] as QueueName, rest[1] as string);
    if (kind !== 'finish') continue;
    for (let at = 0; at < rest.length; at += 1 + ELEMENT_FIELDS)
      add(rest[at] as QueueName, rest[at + 7] as string);
  }
  for (const [queue, groups] of targets) names.makeRoom(queue, groups);
}

function insertAll(store: Store, bodies: PackedBodies, inserts: Fields): void {
  for (let at = 0; at < inserts.length; at += 1 + ELEMENT_FIELDS) {
    const queue = store.names.use(inserts[at] as QueueName, store.now);
    insertOne(store, queue, elementAt(inserts, at + 1, bodies));
  }
}

/** Finishes an element for all groups, if none has it reserved. */
function removeWaiting({ rows, names }: Store, queue: number, element: number): SettleOutcome {
  const found: [Subscription, DeliveryRow][] = [];
  for (const row of rows.ofElement(element)) {
    const subscription = names.subscriptionById(row.subscription);
    if (subscription?.queue.id !== queue) return 'not-found';
    if (row.leaseUntil !== null) return 'reserved';
    found.push([subscription, row]);
  }
  for (const [subscription, row] of found) rows.remove(subscription, row);
  return found.length === 0 ? 'not-found' : 'done';
}

function settleWaiting(
  store: Store,
  subscription: Subscription,
  element: number,
  kind: Kind,
  rest: Fields,
): SettleOutcome {
  const row = find(store, subscription, element, kind);
  if (row === null) return 'not-found';
  if (row.leaseUntil !== null) return 'reserved';
  if (kind === 'extend') return 'not-reserved';
  return apply(store, subscription, row, kind, rest);
}

function settleReserved(
  store: Store,
  subscription: Subscription,
  reference: Reference,
  kind: Kind,
  rest: Fields,
): SettleOutcome {
  const { element, token } = reference;
  const isCommit = kind === 'finish';
  // What nearly every commit is, in one statement: 1.5 µs less than to look first.
  if (isCommit && token !== null && store.rows.removeHeld(subscription, element, token)) return 'done';
  const row = find(store, subscription, element, kind);
  if (row === null) return 'not-found';
  const rejection = rejectionOf(row, reference, isCommit, store.now);
  return rejection ?? apply(store, subscription, row, kind, rest);
}

/** The delivery, with its content if that is copied. */
function find({ rows }: Store, subscription: Subscription, element: number, kind: Kind): DeliveryRow | null {
  const isCopied = kind === 'move' || kind === 'dead-letter';
  return isCopied ? rows.findWhole(subscription, element) : rows.find(subscription, element);
}

/** Why the caller may not settle the delivery; null: it may. A commit also succeeds if the lease ended and nobody has reserved since. */
function rejectionOf(
  row: DeliveryRow,
  { token, owner }: Reference,
  isCommit: boolean,
  now: number,
): SettleOutcome | null {
  const isHeld = isCommit ? row.leaseUntil !== null || row.token !== null : (row.leaseUntil ?? 0) > now;
  if (!isHeld) return token === null ? 'not-reserved' : 'lease-lost';
  if (token !== null) return token === row.token ? null : 'lease-lost';
  const isOfAnother = owner !== 0 && row.owner !== null && row.owner !== 0 && row.owner !== owner;
  return isOfAnother ? 'token-required' : null;
}

function apply(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  kind: Kind,
  rest: Fields,
): SettleOutcome {
  const { rows, now } = store;
  if (kind === 'finish') {
    rows.remove(subscription, row);
    return 'done';
  }
  if (kind === 'extend') {
    rows.extend(subscription, row.seq, now + Number(rest[0]));
    return 'done';
  }
  // A change that is computed from damaged fields would give them a sound checksum.
  if (!isWholeDelivery(row)) {
    setAsideDamaged(store, row.seq);
    return 'not-found';
  }
  if (kind === 'dead-letter') {
    const [countTry, reason] = rest;
    return deadLetter(store, subscription, row, row.tries + Number(countTry), reason as string | null);
  }
  if (kind === 'move') {
    const [to, groups, tries, ...headers] = rest;
    const target = store.names.use(to as QueueName, now);
    const copy = { groups: groups as string, tries: tries as number | null, headers: headers as string[] };
    return move(store, subscription, row, target, copy);
  }
  return release(store, subscription, row, rest as Release);
}

type Release = [
  delayMs: number,
  dueAt: number | null,
  countTry: number,
  reason: string | null,
  isDefault: number,
];

function release(
  store: Store,
  subscription: Subscription,
  row: DeliveryRow,
  [delayMs, dueAt, countTry, reason, isDefault]: Release,
): SettleOutcome {
  const isReturned = row.leaseUntil !== null && countTry === 0 && delayMs === 0;
  const moment = dueAt ?? (isReturned ? row.dueAt : store.now + delayMs);
  if (countTry === 1) {
    const retryFrom = isDefault === 1 ? store.now : null;
    return failTry(store, subscription, row, { dueAt: moment, retryFrom, token: null, reason });
  }
  store.rows.wait(
    subscription,
    row,
    { dueAt: moment, tries: row.tries, token: null, reason: row.reason },
    store.now,
  );
  store.upkeep.releasedInto(subscription.queue);
  return 'done';
}
