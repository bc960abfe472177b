import type { Reply } from './client/connection.ts';

// What the library's `run` replies, and how it is decoded.

/** The result of one verb in a reply of the library. */
export interface Result {
  /** The queue's tag, with which its ids begin; zeros if the queue does not exist. */
  readonly tag: string;
  readonly text: Buffer;
  /** Stored values of elements, if the verb returns any. */
  readonly elements: readonly (Buffer | null)[];
}

/** The oldest outbox entries for one destination: see `library/outbox.lua`. */
interface Prefix {
  /** The full name of the destination, as `queueText` writes it. */
  readonly to: string;
  /** The number of the newest entry; zeros if there is none. */
  readonly last: Buffer;
  /** Empty also if the call did not wait for replicas: then the relay has to read them. */
  readonly entries: readonly Buffer[];
}

interface Died {
  /** The full name of the dead-letter queue. */
  readonly to: string;
  readonly counts: readonly (readonly [group: string, count: number])[];
}

/** A decoded reply of the library's `run`: see `library/session.lua`. */
export interface LibraryReply {
  /** The server's time when it executed the call. */
  readonly now: number;
  readonly tag: string;
  /** Before the call, the queue did not exist or never had an element. Of lists, this is only reported on a cluster. */
  readonly isNew: boolean;
  readonly results: readonly Result[];
  /** Deliveries that went to the dead-letter queue; null: none. */
  readonly died: Died | null;
  readonly outbox: readonly Prefix[];
  /** When the first of the elements that the call added to its queue expires or is past its retention; 0: none does. */
  readonly dueAt: number;
}

const NO_ELEMENTS: readonly (Buffer | null)[] = [];
const TAG_OF_NONE = '0'.repeat(12);

/** @throws Error if the reply does not have the form of `library/session.lua` */
export function readReply(reply: Reply): LibraryReply {
  const [now, tag, isNew, texts, elements, died, outbox, dueAt] = asArray(reply);
  const tagText = asBuffer(tag).toString('latin1');
  const resultTag = tagText === '' ? TAG_OF_NONE : tagText;
  const elementLists = asArray(elements);
  return {
    now: Number(now),
    tag: tagText,
    isNew: isNew === 1,
    results: asArray(texts).map((text, i) => ({
      tag: resultTag,
      text: asBuffer(text),
      elements: readElements(elementLists[i]),
    })),
    died: readDied(asArray(died)),
    outbox: asArray(outbox).map(readPrefix),
    dueAt: Number(dueAt),
  };
}

/**
 * Elements come as a list or, if they are small, packed (MessagePack): ioredis takes 0.7 µs for each item of a list.
 */
function readElements(elements: Reply | undefined): readonly (Buffer | null)[] {
  if (Array.isArray(elements)) return elements;
  if (!Buffer.isBuffer(elements)) return NO_ELEMENTS;
  const values: (Buffer | null)[] = [];
  let at = ARRAY_HEADS.get(elements[0] as number) ?? 1;
  while (at < elements.length) {
    const form = elements[at++] as number;
    if (form === FALSE) {
      values.push(null);
      continue;
    }
    let size = form & 0x1f;
    const width = STRING_WIDTHS.get(form) ?? 0;
    if (width > 0) size = elements.readUIntBE(at, width);
    at += width;
    values.push(elements.subarray(at, at + size));
    at += size;
  }
  return values;
}

/**
 * MessagePack: the first byte of a long array and the length of its head; false; the first byte of a string and the
 * number of bytes of its length. A string of up to 31 bytes has its length in the first byte.
 */
const ARRAY_HEADS: ReadonlyMap<number, number> = new Map([
  [0xdc, 3],
  [0xdd, 5],
]);
const FALSE = 0xc2;
const STRING_WIDTHS: ReadonlyMap<number, number> = new Map([
  [0xd9, 1],
  [0xda, 2],
  [0xdb, 4],
]);

function readDied([to, ...flat]: readonly Reply[]): Died | null {
  if (to === undefined) return null;
  const counts: [string, number][] = [];
  for (let i = 0; i < flat.length; i += 2) counts.push([asBuffer(flat[i]).toString(), Number(flat[i + 1])]);
  return { to: asBuffer(to).toString(), counts };
}

function readPrefix(prefix: Reply): Prefix {
  const [to, last, ...entries] = asArray(prefix).map(asBuffer);
  return { to: asBuffer(to).toString(), last: asBuffer(last), entries };
}

function asArray(reply: Reply | undefined): readonly Reply[] {
  if (Array.isArray(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}

function asBuffer(reply: Reply | undefined): Buffer {
  if (Buffer.isBuffer(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}
