import type { MessageReader, MessageWriter } from '../../message.ts';
import type { Lane, Queue } from '../names.ts';
import type { Store } from '../store.ts';

interface Sizes {
  ready: number;
  scheduled: number;
  reserved: number;
  nextMatureAt: number | null;
}

/** queue, group or null -> sizes, count, then per group: name, sizes */
export function sizes(store: Store, call: MessageReader, reply: MessageWriter): void {
  const queue = store.names.find(call.number());
  const group = call.textOrNull();
  if (queue === null || group !== null) {
    const lane = queue?.lanes.get(group ?? '');
    writeSizes(lane === undefined ? noSizes() : laneSizes(store, lane), [], reply);
    return;
  }
  const lanes: [string, Sizes][] = [];
  for (const lane of queue.lanes.values()) lanes.push([lane.group, laneSizes(store, lane)]);
  const groups = lanes.filter(([name, of]) => name !== '' && !isEmpty(of));
  writeSizes(elementSizes(store, queue, lanes), groups, reply);
}

function laneSizes(store: Store, lane: Lane): Sizes {
  const { ready, scheduled, reserved } = store.counts.read(lane, store.now);
  const nextMatureAt = ready + scheduled === 0 ? null : store.counts.firstDueAt(lane);
  return { ready, scheduled, reserved, nextMatureAt };
}

/**
 * Elements, each once. The sum over the groups counts an element of several groups several times, so those
 * are read from the table and put right; a queue without them, such as every plain one, costs no scan.
 */
function elementSizes(store: Store, queue: Queue, groups: readonly [string, Sizes][]): Sizes {
  const total = noSizes();
  for (const [, of] of groups) {
    total.ready += of.ready;
    total.scheduled += of.scheduled;
    total.reserved += of.reserved;
    total.nextMatureAt = earliest(total.nextMatureAt, of.nextMatureAt);
  }
  if (groups.length < 2) return total;
  for (const { ready, scheduled, reserved } of store.shared.states(queue, store.now)) {
    total.ready -= ready;
    total.scheduled -= scheduled;
    total.reserved -= reserved;
    if (ready > 0) total.ready++;
    else if (scheduled > 0) total.scheduled++;
    else total.reserved++;
  }
  return total;
}

function noSizes(): Sizes {
  return { ready: 0, scheduled: 0, reserved: 0, nextMatureAt: null };
}

function isEmpty({ ready, scheduled, reserved }: Sizes): boolean {
  return ready + scheduled + reserved === 0;
}

function earliest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b < a) ? b : a;
}

function writeSizes(total: Sizes, groups: readonly [string, Sizes][], reply: MessageWriter): void {
  writeOne(total, reply);
  reply.value(groups.length);
  for (const [name, of] of groups) {
    reply.value(name);
    writeOne(of, reply);
  }
}

function writeOne(of: Sizes, reply: MessageWriter): void {
  reply.value(of.ready);
  reply.value(of.scheduled);
  reply.value(of.reserved);
  reply.value(of.nextMatureAt);
}
