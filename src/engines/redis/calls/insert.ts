import { type ElementId, type NewElement, PLAIN_GROUP } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { Arg } from '../client/connection.ts';
import { encodeContent } from '../content.ts';
import { elementId } from '../ids.ts';
import type { Verb } from './task.ts';

/** The elements of one call, ready to be sent. */
export interface InsertCall {
  readonly elements: readonly EncodedElement[];
  readonly windowMs: number;
  readonly bytes: number;
}

interface EncodedElement {
  readonly timing: Buffer;
  readonly content: Buffer;
  readonly groups: string;
  readonly dedupKey: string;
}

export function insertCall(elements: readonly NewElement[], windowMs: number): InsertCall {
  let bytes = 0;
  const encoded = elements.map((element) => {
    const content = encodeContent(element);
    bytes += content.length;
    const groups = groupsText(element);
    return { timing: encodeTiming(element), content, groups, dedupKey: element.dedupKey ?? '' };
  });
  return { elements: encoded, windowMs, bytes };
}

/** The columns that are sent beside the content, as `library/insert.lua` names them: those that any element needs. */
function columnsOf(elements: readonly EncodedElement[]): { letters: string; of: (keyof EncodedElement)[] } {
  const needed = COLUMNS.filter(({ of }) => elements.some((element) => element[of].length > 0));
  return { letters: needed.map(({ letter }) => letter).join(''), of: needed.map(({ of }) => of) };
}

const COLUMNS = [
  { letter: 't', of: 'timing' },
  { letter: 'g', of: 'groups' },
  { letter: 'd', of: 'dedupKey' },
] as const;

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
    const elements = calls.length === 1 ? (calls[0]?.elements ?? []) : calls.flatMap((call) => call.elements);
    const columns = columnsOf(elements);
    const args: Arg[] = [elements.length, columns.letters, calls[0]?.windowMs ?? 0];
    for (const element of elements) {
      args.push(element.content);
      for (const column of columns.of) args.push(element[column]);
    }
    return args;
  },
  decode({ tag, text }, calls) {
    if (text[0] === 0x21 && text.length === 1) return calls.map(tooManyGroups);
    const first = text.readUIntBE(0, 6);
    let index = 0;
    return calls.map(({ elements }) =>
      elements.map(() => {
        const at = 6 + 6 * index;
        const number = text.length === 6 ? first + index : text.readUIntBE(at, 6);
        index++;
        return elementId(tag, number);
      }),
    );
  },
};
