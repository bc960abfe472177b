import type { GroupLimit } from '../../../engine/group-limit.ts';
import type { OnRepeat } from '../../../engine/old-port.ts';
import { tooManyGroups } from '../../../engine/store-failures.ts';
import { type ElementId, type NewElement, PLAIN_GROUP } from '../../../model/element.ts';
import { QuaysideError } from '../../../model/errors.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Arg } from '../client/connection.ts';
import { encodeContent } from '../content.ts';
import { elementId } from '../ids.ts';
import type { Verb } from './task.ts';

/** The elements of one call, ready to be sent. */
export interface InsertCall {
  readonly elements: readonly EncodedElement[];
  readonly windowMs: number;
  /** The queue that they are for, and what bounds its groups. */
  readonly room: Room;
  readonly bytes: number;
  readonly onRepeat: OnRepeat | null;
}

/** What an insert must know of the bound on groups. */
export interface Room {
  readonly queue: QueueKey;
  readonly limit: GroupLimit | null;
  /** The limit as `library/lanes.lua` reads it. */
  readonly text: string;
}

interface EncodedElement {
  readonly timing: Buffer;
  readonly content: Buffer;
  readonly groups: string;
  readonly dedupKey: string;
}

/**
 * A key with its fingerprint behind a zero byte, which no key has; '' for an element without a key. See
 * `library/insert.lua`.
 */
export function dedupText({ dedupKey, fingerprint }: NewElement): string {
  if (dedupKey === null) return '';
  return fingerprint ? `${dedupKey}\0${fingerprint}` : dedupKey;
}

export function insertCall(
  elements: readonly NewElement[],
  windowMs: number,
  room: Room,
  onRepeat: OnRepeat | null,
): InsertCall {
  let bytes = 0;
  const encoded = elements.map((element) => {
    const content = encodeContent(element);
    bytes += content.length;
    const groups = groupsText(element);
    return { timing: encodeTiming(element), content, groups, dedupKey: dedupText(element) };
  });
  return { elements: encoded, windowMs, room, bytes, onRepeat };
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

/** No bound, but that of the numbers that lanes have. */
export const noLaneLeft = (): QuaysideError =>
  new QuaysideError('too-many-groups', 'The queue has 65,535 consumer groups, which is as many as fit.');

/** Why groups do not fit. */
export function refusedGroups({ queue, limit }: Room): QuaysideError {
  return limit === null ? noLaneLeft() : tooManyGroups(queue.name, limit.most);
}

/** What `library/insert.lua` says of an element; a third value is a key that came with other content. */
const STORED = 0x30;
const REPEATED = 0x31;

export const INSERT: Verb<InsertCall, ElementId[]> = {
  name: 'insert',
  encode(calls) {
    const elements = calls.length === 1 ? (calls[0]?.elements ?? []) : calls.flatMap((call) => call.elements);
    const columns = columnsOf(elements);
    const args: Arg[] = [elements.length, columns.letters, calls[0]?.windowMs ?? 0];
    if (columns.of.includes('groups')) args.push(calls[0]?.room.text ?? '', sizesOf(calls));
    for (const element of elements) {
      args.push(element.content);
      for (const column of columns.of) args.push(element[column]);
    }
    return args;
  },
  decode({ tag, text }, calls) {
    const first = text.readUIntBE(0, 6);
    let index = 0;
    return calls.map(({ elements, room, onRepeat }) => {
      const ids = elements.map((_, place) => {
        const at = 6 + 7 * index;
        const number = text.length === 6 ? first + index : text.readUIntBE(at, 6);
        const what = text.length === 6 ? STORED : text.readUInt8(at + 6);
        if (what !== STORED) onRepeat?.(place, what === REPEATED);
        index++;
        return number === 0 ? null : elementId(tag, number);
      });
      return ids.includes(null) ? refusedGroups(room) : (ids as ElementId[]);
    });
  },
};

function sizesOf(calls: readonly InsertCall[]): string {
  return calls.map(({ elements }) => elements.length).join(',');
}

/** Makes groups, or refuses them all. */
export const ROOM: Verb<{ readonly room: Room; readonly groups: string }, undefined> = {
  name: 'room',
  encode: ([call]) => (call === undefined ? [] : [call.room.text, call.groups]),
  decode: ({ text }, calls) => calls.map(({ room }) => (text.length > 0 ? refusedGroups(room) : undefined)),
};
