import type { GroupName } from '../../../../model/element.ts';
import { isSameContent } from '../../../../model/fingerprint.ts';
import type { MessageReader, MessageWriter } from '../../message.ts';
import { INSERTED } from '../../operations.ts';
import type { StoredContent } from '../elements.ts';
import type { Queue } from '../names.ts';
import { makeRoom } from '../room.ts';
import type { Store } from '../store.ts';

/** queue, count, then per element as {@link readNewElement} -> per element as {@link writeInserted} @throws Refusal */
export function insert(store: Store, call: MessageReader, reply: MessageWriter): void {
  const handle = call.number();
  if (store.names.limitOf(handle) !== null) {
    insertLimited(store, handle, call, reply);
    return;
  }
  const queue = store.names.make(handle);
  store.names.use(queue, store.now);
  for (let left = call.number(); left > 0; left--) {
    writeInserted(store, queue, readNewElement(call), reply);
  }
}

/** Where groups are bounded, all elements are read before the first is stored. */
function insertLimited(store: Store, handle: number, call: MessageReader, reply: MessageWriter): void {
  const elements: IncomingElement[] = [];
  for (let left = call.number(); left > 0; left--) elements.push(readNewElement(call));
  makeRoom(store, handle, elements);
  const queue = store.names.make(handle);
  store.names.use(queue, store.now);
  for (const element of elements) writeInserted(store, queue, element, reply);
}

/** Inserts; writes the id, and if there is a dedup key what became of the element. */
function writeInserted(store: Store, queue: Queue, element: IncomingElement, reply: MessageWriter): void {
  const { dedupKey, fingerprint } = element;
  if (dedupKey === null) {
    reply.value(store.ids.text(insertOne(store, queue, element)));
    return;
  }
  const seen = store.dedup.find(queue, dedupKey, store.now);
  reply.value(store.ids.text(seen?.seq ?? insertNew(store, queue, element)));
  if (seen === null) reply.value(INSERTED.stored);
  else reply.value(isSameContent(fingerprint, seen.fingerprint) ? INSERTED.repeated : INSERTED.mismatched);
}

export interface IncomingElement extends StoredContent {
  readonly dueAt: number;
  readonly tries: number;
  /** Group names joined by commas, which no name has; '' on a plain queue. */
  readonly groups: string;
  readonly dedupKey: string | null;
  readonly fingerprint: string | null;
}

/** type, more, body, due, tries, groups, dedup key, and if there is a key the fingerprint */
export function readNewElement(call: MessageReader): IncomingElement {
  const element = {
    type: call.textOrNull(),
    more: call.textOrNull(),
    body: call.body(),
    dueAt: call.number(),
    tries: call.number(),
    groups: call.text(),
    dedupKey: call.textOrNull(),
    fingerprint: null,
  };
  return element.dedupKey === null ? element : { ...element, fingerprint: call.textOrNull() };
}

/** Stores one element, or finds the one that its dedup key already made. Returns its number. */
export function insertOne(store: Store, queue: Queue, element: IncomingElement): number {
  const { dedupKey } = element;
  const seen = dedupKey === null ? null : store.dedup.find(queue, dedupKey, store.now);
  return seen?.seq ?? insertNew(store, queue, element);
}

function insertNew(store: Store, queue: Queue, element: IncomingElement): number {
  const { dedupKey, fingerprint } = element;
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
  if (dedupKey !== null) store.dedup.remember(queue, dedupKey, { seq, fingerprint }, store.now);
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
