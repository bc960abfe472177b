import { NO_COUNTS } from '../../../engine/storage.ts';
import { DELIVERY_STATES, PLAIN_GROUP } from '../../../model/element.ts';
import { bodyAt, type Fields, type QueueName, UNDONE_FIELDS } from '../protocol.ts';
import type { Queue, Subscription } from './names.ts';
import type { Bodies } from './operations.ts';
import type { Store } from './store.ts';

/** Deliveries that one step of a purge removes, about: 10 ms. */
const PURGED_A_STEP = 2000;

export function declare(
  { names, now }: Store,
  _: Bodies,
  queues: readonly QueueName[],
  options: string | null,
): null {
  for (const name of queues) {
    const queue = names.use(name, now);
    if (options !== null) names.setOptions(queue, options === 'null' ? null : options);
  }
  return null;
}

/** A step may be of several groups, and is done once it found less than it may remove. */
export function purge(
  { names, rows, now }: Store,
  _: Bodies,
  name: QueueName,
  given: readonly string[] | null,
): [removed: number, isDone: boolean] {
  const states = DELIVERY_STATES.filter((state) => given === null || given.includes(state));
  let removed = 0;
  for (const subscription of names.find(name)?.subscriptions.values() ?? []) {
    for (const state of states) {
      const found = rows.inState(subscription, state, now, PURGED_A_STEP - removed);
      for (const row of found) rows.remove(subscription, row);
      removed += found.length;
      if (removed === PURGED_A_STEP) return [removed, false];
    }
  }
  return [removed, true];
}

/**
 * The element keeps its number, so it regains its place. If another group still has it, only the delivery
 * is made again. Its age for the retention starts again with its row: the pop forgot it.
 */
export function undoTake(
  { names, ids, rows, upkeep, now }: Store,
  { received }: Bodies,
  name: QueueName,
  deliveries: Fields,
): null {
  const queue = names.use(name, now);
  for (let at = 0; at < deliveries.length; at += UNDONE_FIELDS) {
    const [id, group, tries, dueAt, type, more, offset, length, expiresAt, reason] = deliveries.slice(
      at,
      at + UNDONE_FIELDS,
    ) as [
      string,
      string,
      number,
      number,
      string | null,
      string | null,
      number,
      number,
      number | null,
      string | null,
    ];
    const element = ids.parse(id);
    if (element === null) throw new Error(`undo of the take of an element that this engine never had: ${id}`);
    const subscription = names.subscription(queue, group);
    if (rows.find(subscription, element) !== null) continue;
    const content = { type, more, body: bodyAt(received, offset, length) };
    const facts = { dueAt, tries, expiresAt, reason };
    if (group === PLAIN_GROUP) {
      rows.addPlain(subscription, element, content, facts, now);
      continue;
    }
    if (rows.hasElement(element)) rows.markShared(element);
    else rows.addElement(queue, element, 1, content, now);
    // The insert drew a number for each group behind the element's: any that is free is in the same place.
    let seq = element + 1;
    while (rows.bySeq(seq) !== null) seq++;
    rows.addShared(subscription, seq, element, facts, now);
    upkeep.releasedInto(queue);
  }
  return null;
}

interface Counts {
  ready: number;
  scheduled: number;
  reserved: number;
  nextMatureAt: number | null;
}

/** Of one group, or of the queue, with its groups behind it. */
export function counts(store: Store, _: Bodies, name: QueueName, group: string | null): Fields {
  const queue = store.names.find(name);
  if (queue === null || group !== null) {
    const subscription = queue?.subscriptions.get(group ?? '');
    return flat(null, subscription === undefined ? NO_COUNTS : countsOf(store, subscription));
  }
  const groups: [string, Counts][] = [];
  for (const subscription of queue.subscriptions.values()) {
    groups.push([subscription.group, countsOf(store, subscription)]);
  }
  const shown = groups.filter(([name, of]) => name !== '' && of.ready + of.scheduled + of.reserved > 0);
  return [
    ...flat(null, elementCounts(store, queue, groups)),
    ...shown.flatMap(([name, of]) => flat(name, of)),
  ];
}

function countsOf({ rows, now }: Store, subscription: Subscription): Counts {
  const { ready, scheduled, reserved } = rows.count(subscription, now);
  const nextMatureAt = ready + scheduled === 0 ? null : rows.firstDueAt(subscription);
  return { ready, scheduled, reserved, nextMatureAt };
}

/**
 * Elements, each once. The sum over the groups counts an element of several groups several times, so those
 * are read from the table and put right; a queue without them, such as every plain one, costs no scan.
 */
function elementCounts({ rows, now }: Store, queue: Queue, groups: readonly [string, Counts][]): Counts {
  const total: Counts = { ...NO_COUNTS };
  for (const [, { ready, scheduled, reserved, nextMatureAt }] of groups) {
    total.ready += ready;
    total.scheduled += scheduled;
    total.reserved += reserved;
    if (nextMatureAt !== null && nextMatureAt < (total.nextMatureAt ?? Number.POSITIVE_INFINITY)) {
      total.nextMatureAt = nextMatureAt;
    }
  }
  if (groups.length < 2) return total;
  for (const { ready, scheduled, reserved } of rows.sharedStates(queue, now)) {
    total.ready -= ready;
    total.scheduled -= scheduled;
    total.reserved -= reserved;
    if (ready > 0) total.ready++;
    else if (scheduled > 0) total.scheduled++;
    else total.reserved++;
  }
  return total;
}

function flat(name: string | null, { ready, scheduled, reserved, nextMatureAt }: Counts): Fields {
  return [name, ready, scheduled, reserved, nextMatureAt];
}
