import type { GroupName } from '../../../../model/element.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import type { StoredContent } from '../elements.ts';
import type { Queue } from '../names.ts';
import { makeRoom } from '../room.ts';
import type { Store } from '../store.ts';

/** queue, count, then per element as {@link readNewElement} -> ids @throws Refusal */
export function insert(store: Store, call: MessageReader, reply: MessageWriter): void {
  const handle = call.number();
  if (store.names.limitOf(handle) !== null) {
    insertLimited(store, handle, call, reply);
    return;
  }
  const queue = store.names.make(handle);
  for (let left = call.number(); left > 0; left--) {
    reply.value(store.ids.text(insertOne(store, queue, readNewElement(call))));
  }
}

/** Where groups are bounded, all elements are read before the first is stored. */
function insertLimited(store: Store, handle: number, call: MessageReader, reply: MessageWriter): void {
  const elements: IncomingElement[] = [];
  for (let left = call.number(); left > 0; left--) elements.push(readNewElement(call));
  makeRoom(store, handle, elements);
  const queue = store.names.make(handle);
  for (const element of elements) reply.value(store.ids.text(insertOne(store, queue, element)));
}

export interface IncomingElement extends StoredContent {
  readonly dueAt: number;
  readonly tries: number;
  /** Group names joined by commas, which no name has; '' on a plain queue. */
  readonly groups: string;
  readonly dedupKey: string | null;
}

/** type, more, body, due, tries, groups, dedup key */
export function readNewElement(call: MessageReader): IncomingElement {
  return {
    type: call.textOrNull(),
    more: call.textOrNull(),
    body: call.body(),
    dueAt: call.number(),
    tries: call.number(),
    groups: call.text(),
    dedupKey: call.textOrNull(),
  };
}

/** Stores one element, or finds the one that its dedup key already made. Answers its number. */
export function insertOne(store: Store, queue: Queue, element: IncomingElement): number {
  const { dedupKey } = element;
  if (dedupKey !== null) {
    const earlier = store.dedup.find(queue, dedupKey, store.now);
    if (earlier !== null) return earlier;
  }
  const seq = store.ids.next();
  if (element.groups === '') {
    store.elements.insert(seq, queue.id, 0, store.now, element);
    addDelivery(store, queue, '', seq, element);
  } else {
    const groups = element.groups.split(',');
    store.elements.insert(seq, queue.id, groups.length, store.now, element);
    for (const group of groups) addDelivery(store, queue, group, seq, element);
    store.retention.added(queue, store.now);
  }
  if (dedupKey !== null) store.dedup.remember(queue, dedupKey, seq, store.now);
  return seq;
}

function addDelivery(
  store: Store,
  queue: Queue,
  group: GroupName,
  seq: number,
  element: IncomingElement,
): void {
  const lane = store.names.makeLane(queue, group);
  store.deliveries.add(lane, seq, element.dueAt, element.tries, store.now);
}
