import type {
  DeliveryRef,
  ExtendItem,
  ExtendOutcome,
  RemoveOutcome,
  RollbackItem,
  SettleOutcome,
} from '../../../engine/old-port.ts';
import type { Delivery, ElementId } from '../../../model/element.ts';
import type { Arg } from '../client/connection.ts';
import { encodeContent } from '../content.ts';
import { ID_BYTES, REFERENCE_BYTES, writeId, writeReference } from '../ids.ts';
import { noLaneLeft } from './insert.ts';
import type { Answer, Verb } from './task.ts';

/** The outcomes by the digits that `library/values.lua` gives them. */
const OUTCOMES = [
  'done',
  'dead-lettered',
  'not-found',
  'not-reserved',
  'lease-lost',
  'reserved',
  'token-required',
] as const;

export function outcomeAt(text: Buffer, at: number): (typeof OUTCOMES)[number] {
  const outcome = OUTCOMES[(text[at] ?? 0) - 0x30];
  if (outcome === undefined) throw new Error('an answer of the library is not what it should be');
  return outcome;
}

/** References with what each verb adds, and the list of their groups that they count in. */
function encodeItems<Item extends DeliveryRef>(
  calls: readonly (readonly Item[])[],
  extra: number,
  writeExtra: (item: Item, target: Buffer, at: number) => void,
): Arg[] {
  const items = calls.flat();
  const step = REFERENCE_BYTES + 2 + extra;
  const target = Buffer.allocUnsafe(items.length * step);
  const groups = new Map<string, number>();
  for (const [i, item] of items.entries()) {
    const group = groups.get(item.group) ?? groups.size + 1;
    groups.set(item.group, group);
    writeReference(item, target, i * step);
    target.writeUInt16BE(group, i * step + REFERENCE_BYTES);
    writeExtra(item, target, i * step + REFERENCE_BYTES + 2);
  }
  return [[...groups.keys()].map((group) => `${group},`).join(''), target];
}

/** As many results per call as it had items. */
function shareOut<Item, Result>(
  calls: readonly (readonly Item[])[],
  resultAt: (index: number) => Result,
): Result[][] {
  let index = 0;
  return calls.map((items) => items.map(() => resultAt(index++)));
}

function settleOutcomes({ text }: Answer, calls: readonly (readonly DeliveryRef[])[]): SettleOutcome[][] {
  return shareOut(calls, (index) => outcomeAt(text, index) as SettleOutcome);
}

export const COMMIT: Verb<readonly DeliveryRef[], SettleOutcome[]> = {
  name: 'commit',
  encode: (calls) => encodeItems(calls, 0, () => {}),
  decode: settleOutcomes,
};

export const ROLLBACK: Verb<readonly RollbackItem[], SettleOutcome[]> = {
  name: 'rollback',
  encode: (calls) =>
    encodeItems(calls, 7, ({ delayMs, countTry }, target, at) => {
      target.writeUIntBE(Math.max(0, Math.ceil(delayMs)), at, 6);
      target.writeUInt8(countTry ? 1 : 0, at + 6);
    }),
  decode: settleOutcomes,
};

export const EXTEND: Verb<readonly ExtendItem[], ExtendOutcome[]> = {
  name: 'extend',
  encode: (calls) =>
    encodeItems(calls, 6, ({ leaseMs }, target, at) => {
      target.writeUIntBE(Math.max(0, Math.ceil(leaseMs)), at, 6);
    }),
  decode: ({ text }, calls) =>
    shareOut(calls, (index): ExtendOutcome => {
      const outcome = outcomeAt(text, 7 * index);
      if (outcome === 'done') return { outcome, until: text.readUIntBE(7 * index + 1, 6) };
      return { outcome: outcome as Exclude<SettleOutcome, 'done' | 'dead-lettered'> };
    }),
};

export const REMOVE: Verb<readonly ElementId[], RemoveOutcome[]> = {
  name: 'remove',
  encode(calls) {
    const ids = calls.flat();
    const target = Buffer.allocUnsafe(ids.length * ID_BYTES);
    for (const [i, id] of ids.entries()) writeId(id, target, i * ID_BYTES);
    return [target];
  },
  decode: ({ text }, calls) => shareOut(calls, (index) => outcomeAt(text, index) as RemoveOutcome),
};

/** Deliveries that this process popped, as arguments. */
export function putBackArgs(deliveries: readonly Delivery[]): Arg[] {
  return deliveries.flatMap((delivery) => {
    const named = Buffer.allocUnsafe(ID_BYTES + 10);
    writeId(delivery.id, named, 0);
    named.writeUIntBE(delivery.matureAt, ID_BYTES, 6);
    named.writeUInt32BE(delivery.tries, ID_BYTES + 6);
    return [delivery.group, named, encodeContent(delivery)];
  });
}

export const PUT_BACK: Verb<readonly Arg[], undefined> = {
  name: 'back',
  encode: (calls) => [calls.flat().length / 3, ...calls.flat()],
  decode: ({ text }, calls) => calls.map(() => (text[0] === 0x21 ? noLaneLeft() : undefined)),
};
