import type { DeliveryRef, GroupSizes, OnRepeat, QueueSizes } from '../../engine/old-port.ts';
import type { Delivery, ElementId, GroupName, NewElement } from '../../model/element.ts';
import { ownerNumber } from '../../model/owner.ts';
import { fromMore, toMore } from './content.ts';
import type { MessageReader, MessageWriter } from './message.ts';
import { INSERTED, OUTCOMES } from './operations.ts';

/** type, more, body, due, tries, groups, dedup key, and if there is a key the fingerprint */
export function writeNewElement(call: MessageWriter, element: NewElement, dueAt: number): void {
  const { contentType, contentEncoding, headers, body, groups } = element;
  call.value(contentType);
  call.value(toMore(contentEncoding, headers));
  call.body(body);
  call.value(dueAt);
  call.value(element.tries);
  call.value(groups.length > 1 ? [...new Set(groups)].join(',') : (groups[0] ?? ''));
  call.value(element.dedupKey);
  if (element.dedupKey !== null) call.value(element.fingerprint ?? null);
}

/** Per element: id, and if it has a dedup key what {@link INSERTED} says of it. */
export function readInserted(
  reply: MessageReader,
  elements: readonly NewElement[],
  onRepeat: OnRepeat | null,
): ElementId[] {
  return elements.map(({ dedupKey }, index) => {
    const id = reply.text();
    const what = dedupKey === null ? INSERTED.stored : reply.number();
    if (what !== INSERTED.stored) onRepeat?.(index, what === INSERTED.repeated);
    return id;
  });
}

/** id, group, token, and without one the owner */
export function writeRef(call: MessageWriter, { id, group, token, owner }: DeliveryRef): void {
  call.value(id);
  call.value(group);
  call.value(token);
  if (token === null) call.value(ownerNumber(owner));
}

/** id, group, tries, due, type, more, body */
export function writeDeliveryBack(call: MessageWriter, delivery: Delivery): void {
  call.value(delivery.id);
  call.value(delivery.group);
  call.value(delivery.tries);
  call.value(delivery.matureAt);
  call.value(delivery.contentType);
  call.value(toMore(delivery.contentEncoding, delivery.headers));
  call.body(delivery.body);
}

/** Per delivery: id, tries, due, type, more, body, token and end of the lease or null; at the end null. */
export function readDeliveries(reply: MessageReader, group: GroupName): Delivery[] {
  const deliveries: Delivery[] = [];
  for (let id = reply.textOrNull(); id !== null; id = reply.textOrNull()) {
    deliveries.push(readDelivery(reply, id, group));
  }
  return deliveries;
}

function readDelivery(reply: MessageReader, id: string, group: GroupName): Delivery {
  const tries = reply.number();
  const matureAt = reply.number();
  const contentType = reply.textOrNull();
  const { contentEncoding, headers } = fromMore(reply.textOrNull());
  const body = reply.body();
  const token = reply.textOrNull();
  const lease = token === null ? null : { token, until: reply.number() };
  return { id, group, tries, matureAt, contentType, contentEncoding, headers, body, lease };
}

export function readOutcomes<T extends (typeof OUTCOMES)[number]>(reply: MessageReader, count: number): T[] {
  return Array.from({ length: count }, () => OUTCOMES[reply.number()] as T);
}

/** sizes, count, then per group: name, sizes */
export function readSizes(reply: MessageReader): QueueSizes {
  const total = readGroupSizes(reply);
  const groups = new Map<GroupName, GroupSizes>();
  for (let left = reply.number(); left > 0; left--) groups.set(reply.text(), readGroupSizes(reply));
  return { ...total, groups };
}

function readGroupSizes(reply: MessageReader): GroupSizes {
  return {
    ready: reply.number(),
    scheduled: reply.number(),
    reserved: reply.number(),
    nextMatureAt: reply.numberOrNull(),
  };
}
