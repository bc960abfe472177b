import type { OnRepeat, RequestKey } from '../../../engine/storage.ts';
import { type ElementId, type NewElement, PLAIN_GROUP } from '../../../model/element.ts';
import type { Arg } from '../client/connection.ts';
import { elementId, encodeContent } from '../encoding.ts';
import { type GroupRoom, groupsRejected } from '../policies.ts';
import type { Verb } from './verb.ts';

/** The elements of one call, ready to be sent. */
interface InsertCall {
  readonly elements: readonly EncodedElement[];
  readonly windowMs: number;
  readonly room: GroupRoom;
  readonly bytes: number;
  readonly onRepeat: OnRepeat | null;
  /** The key of the whole call with its fingerprint, as a {@link keyText}; '' for none. */
  readonly request: string;
}

interface EncodedElement {
  readonly timing: Buffer;
  readonly content: Buffer;
  readonly groups: string;
  readonly dedupKey: string;
}

export function encodeElement(element: NewElement): EncodedElement {
  const { dedupKey, fingerprint } = element;
  return {
    timing: encodeTiming(element),
    content: encodeContent(element),
    groups: groupsText(element.groups),
    dedupKey: dedupKey === null ? '' : keyText(dedupKey, fingerprint),
  };
}

/** A key with its fingerprint behind a zero byte, which no key has. */
function keyText(key: string, fingerprint: string | null | undefined): string {
  return fingerprint ? `${key}\0${fingerprint}` : key;
}

export function insertCall(
  elements: readonly NewElement[],
  { request, ...rest }: Pick<InsertCall, 'windowMs' | 'room' | 'onRepeat'> & { request: RequestKey | null },
): InsertCall {
  let bytes = 0;
  const encoded = elements.map((element) => {
    const each = encodeElement(element);
    bytes += each.content.length;
    return each;
  });
  return {
    ...rest,
    elements: encoded,
    bytes,
    request: request === null ? '' : keyText(request.key, request.fingerprint),
  };
}

const COLUMNS = [
  { code: 't', of: 'timing' },
  { code: 'g', of: 'groups' },
  { code: 'd', of: 'dedupKey' },
] as const;

/** Names joined by commas, which no name has; '' on a plain queue. */
export function groupsText(groups: readonly string[]): string {
  return groups.length === 1 && groups[0] === PLAIN_GROUP ? '' : groups.join(',');
}

const READY = Buffer.alloc(0);

/** See `library/insert.lua`. Fractions of a millisecond round up: never early. */
function encodeTiming({ matureAt, delayMs, tries, expiresAt = null }: NewElement): Buffer {
  if (matureAt === null && delayMs <= 0 && tries === 0 && expiresAt === null) return READY;
  const timing = Buffer.allocUnsafe(22);
  timing.writeUIntBE(matureAt === null ? 0 : Math.max(0, Math.ceil(matureAt)) + 1, 0, 6);
  timing.writeUIntBE(Math.max(0, Math.ceil(delayMs)), 6, 6);
  timing.writeUInt32BE(tries, 12);
  // 0 stands for never. An expiry in 1970 has passed as well a millisecond later.
  timing.writeUIntBE(expiresAt === null ? 0 : Math.max(1, Math.ceil(expiresAt)), 16, 6);
  return timing;
}

/** What `library/insert.lua` returns of an element; a third value is a key that came with other content. */
const STORED = 0x30;
const REPEATED = 0x31;
const MISMATCHED = 0x32;

export const INSERT: Verb<InsertCall, ElementId[]> = {
  name: 'insert',
  encode(calls) {
    const elements = calls.length === 1 ? (calls[0]?.elements ?? []) : calls.flatMap((call) => call.elements);
    // The columns that are sent in addition to the content: those that any element needs.
    const columns = COLUMNS.filter(({ of }) => elements.some((element) => element[of].length > 0));
    const hasRequests = calls.some(({ request }) => request !== '');
    const codes = `${columns.map(({ code }) => code).join('')}${hasRequests ? 'r' : ''}`;
    const args: Arg[] = [elements.length, codes, calls[0]?.windowMs ?? 0];
    if (columns.some(({ of }) => of === 'groups')) args.push(calls[0]?.room.text ?? '');
    if (hasRequests || columns.some(({ of }) => of !== 'timing')) {
      args.push(calls.map((call) => call.elements.length).join(','));
    }
    if (hasRequests) for (const { request } of calls) args.push(request);
    for (const element of elements) {
      args.push(element.content);
      for (const { of } of columns) args.push(element[of]);
    }
    return args;
  },
  decode({ tag, text }, calls) {
    const first = text.readUIntBE(0, 6);
    let index = 0;
    return calls.map(({ elements, room, onRepeat, request }) => {
      if (request !== '') {
        const at = 6 + 7 * index;
        index++;
        const number = text.readUIntBE(at, 6);
        const what = text.readUInt8(at + 6);
        if (elements.length === 0 || what === MISMATCHED) {
          if (what !== STORED) onRepeat?.(0, what === REPEATED);
          return [];
        }
        if (number === 0) return groupsRejected(room);
        // Numbers of one call are consecutive.
        return elements.map((_, place) => {
          if (what === REPEATED) onRepeat?.(place, true);
          return elementId(tag, number + place);
        });
      }
      let isMismatched = false;
      const ids = elements.map((_, place) => {
        const at = 6 + 7 * index;
        const number = text.length === 6 ? first + index : text.readUIntBE(at, 6);
        const what = text.length === 6 ? STORED : text.readUInt8(at + 6);
        if (what !== STORED) onRepeat?.(place, what === REPEATED);
        isMismatched ||= what === MISMATCHED;
        index++;
        return number === 0 ? null : elementId(tag, number);
      });
      if (isMismatched) return [];
      return ids.includes(null) ? groupsRejected(room) : (ids as ElementId[]);
    });
  },
};

/** Creates groups, all or none. */
export const ROOM: Verb<{ readonly room: GroupRoom; readonly groups: string }, undefined> = {
  name: 'room',
  encode: ([call]) => (call === undefined ? [] : [call.room.text, call.groups]),
  decode: ({ text }, calls) => calls.map(({ room }) => (text.length > 0 ? groupsRejected(room) : undefined)),
};
