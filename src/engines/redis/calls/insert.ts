import { type ElementId, type NewElement, PLAIN_GROUP } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { Arg } from '../client/connection.ts';
import { encodeContent } from '../content.ts';
import { elementId } from '../ids.ts';
import type { Verb } from './task.ts';

/** Elements of one call, as arguments. */
export interface InsertCall {
  readonly count: number;
  readonly columns: string;
  readonly windowMs: number;
  readonly args: readonly Arg[];
  readonly bytes: number;
}

/** Which optional columns the elements need: `g` for groups, `d` for dedup keys. */
function columnsOf(elements: readonly NewElement[]): string {
  const groups = elements.some((element) => groupsText(element) !== '');
  const keys = elements.some(({ dedupKey }) => dedupKey !== null);
  return `${groups ? 'g' : ''}${keys ? 'd' : ''}`;
}

export function insertCall(elements: readonly NewElement[], windowMs: number): InsertCall {
  const columns = columnsOf(elements);
  const args: Arg[] = [];
  let bytes = 0;
  for (const element of elements) {
    const content = encodeContent(element);
    bytes += content.length;
    args.push(encodeTiming(element), content);
    if (columns.includes('g')) args.push(groupsText(element));
    if (columns.includes('d')) args.push(element.dedupKey ?? '');
  }
  return { count: elements.length, columns, windowMs, args, bytes };
}

/** Names joined by commas, which no name has; '' on a plain queue. */
export function groupsText({ groups }: Pick<NewElement, 'groups'>): string {
  return groups.length === 1 && groups[0] === PLAIN_GROUP ? '' : groups.join(',');
}

const NOW = Buffer.alloc(0);

/** See `library/insert.lua`. Fractions of a millisecond round up: never early. */
export function encodeTiming({ matureAt, delayMs, tries }: NewElement): Buffer {
  if (matureAt === null && delayMs <= 0 && tries === 0) return NOW;
  const timing = Buffer.allocUnsafe(16);
  timing.writeUIntBE(matureAt === null ? 0 : Math.max(0, Math.ceil(matureAt)) + 1, 0, 6);
  timing.writeUIntBE(Math.max(0, Math.ceil(delayMs)), 6, 6);
  timing.writeUInt32BE(tries, 12);
  return timing;
}

export const tooManyGroups = (): QuaysideError =>
  new QuaysideError('storage-full', 'The queue has 65,535 consumer groups, which is as many as fit.');

export const INSERT: Verb<InsertCall, ElementId[]> = {
  name: 'insert',
  encode(calls) {
    const count = calls.reduce((sum, call) => sum + call.count, 0);
    const [first] = calls;
    return [count, first?.columns ?? '', first?.windowMs ?? 0, ...calls.flatMap(({ args }) => args)];
  },
  decode({ tag, text }, calls) {
    if (text[0] === 0x21 && text.length === 1) return calls.map(tooManyGroups);
    const first = text.readUIntBE(0, 6);
    let index = 0;
    return calls.map(({ count }) =>
      Array.from({ length: count }, () => {
        const at = 6 + 6 * index;
        const number = text.length === 6 ? first + index : text.readUIntBE(at, 6);
        index++;
        return elementId(tag, number);
      }),
    );
  },
};
