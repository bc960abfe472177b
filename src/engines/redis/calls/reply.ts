import type { Reply } from '../client/connection.ts';
import type { Parcel } from './parcels.ts';
import type { Answer } from './task.ts';

/** A reply of the library's `run`, taken apart: see `library/call.lua`. */
export interface LibraryReply {
  /** The server's time of the call. */
  readonly now: number;
  /** Numbers of the queues that the call made. */
  readonly made: readonly number[];
  readonly answers: readonly Answer[];
  /** Group and number of deliveries that went to the dead-letter queue. */
  readonly died: readonly (readonly [group: string, count: number])[];
  readonly parcels: readonly Parcel[];
}

export function readReply(reply: Reply): LibraryReply {
  const [now, tag, made, texts, elements, died, parcels] = list(reply);
  const tagText = bytes(tag).toString('latin1');
  const elementLists = list(elements);
  return {
    now: Number(now),
    made: list(made).map(Number),
    answers: list(texts).map((text, i) => ({
      tag: tagText,
      text: bytes(text),
      elements: elementsOf(elementLists[i]),
    })),
    died: pairs(list(died)),
    parcels: list(parcels).map(readParcel),
  };
}

function elementsOf(elements: Reply | undefined): readonly (Buffer | null)[] {
  return Array.isArray(elements) ? (elements as readonly (Buffer | null)[]) : [];
}

function pairs(flat: readonly Reply[]): [string, number][] {
  return Array.from({ length: flat.length / 2 }, (_, i) => [
    bytes(flat[2 * i]).toString(),
    Number(flat[2 * i + 1]),
  ]);
}

function readParcel(parcel: Reply): Parcel {
  const [id, to, packed] = list(parcel);
  return { id: bytes(id), to: bytes(to).toString(), packed: bytes(packed) };
}

function list(reply: Reply | undefined): readonly Reply[] {
  if (Array.isArray(reply)) return reply;
  throw new Error('a reply of the library is not what it should be');
}

function bytes(reply: Reply | undefined): Buffer {
  if (Buffer.isBuffer(reply)) return reply;
  throw new Error('a reply of the library is not what it should be');
}
