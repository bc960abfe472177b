import type { QuaysideError } from '../../../model/errors.ts';
import type { Arg, Reply } from '../client/connection.ts';

/** One verb's part of a reply of the library. */
export interface Result {
  /** The queue's tag, with which its ids begin; empty if the queue does not exist. */
  readonly tag: string;
  readonly text: Buffer;
  /** Stored values of elements, if the verb returns any. */
  readonly elements: readonly (Buffer | null)[];
}

/**
 * A verb of the library (`library/*.lua`): how calls of it become arguments, and its result theirs. Calls that
 * follow each other with the same `join` are executed as one.
 */
export interface Verb<Call, Value> {
  readonly name: string;
  /** Keys in addition to those of the queue. */
  keys?(calls: readonly Call[]): readonly string[];
  encode(calls: readonly Call[]): readonly Arg[];
  /** One value per call, in their order; an error for a call that was rejected. */
  decode(result: Result, calls: readonly Call[]): readonly (Value | QuaysideError)[];
}

/** Entries of an outbox for one destination, the oldest first: see `library/outbox.lua`. */
export interface Prefix {
  /** The full name of the destination, as `queueText` writes it. */
  readonly to: string;
  /** The number of the newest entry; zeros if there is none. */
  readonly last: Buffer;
  /** None also if the call did not wait for replicas: then they are to be read again. */
  readonly entries: readonly Buffer[];
}

interface Died {
  /** The full name of the dead-letter queue. */
  readonly to: string;
  readonly counts: readonly (readonly [group: string, count: number])[];
}

/** A reply of the library's `run`, taken apart: see `library/session.lua`. */
export interface LibraryReply {
  /** The server's time of the call. */
  readonly now: number;
  readonly tag: string;
  /** The call created the queue. */
  readonly isNew: boolean;
  readonly results: readonly Result[];
  /** Deliveries that went to the dead-letter queue; null: none. */
  readonly died: Died | null;
  readonly outbox: readonly Prefix[];
  /** The retention that the queue has by options of its own, 0 for none; null if it has no options. */
  readonly retentionMs: number | null;
}

const NO_ELEMENTS: readonly (Buffer | null)[] = [];

export function readReply(reply: Reply): LibraryReply {
  const [now, tag, isNew, texts, elements, died, outbox, options] = list(reply);
  const tagText = bytes(tag).toString('latin1');
  const elementLists = list(elements);
  const [retentionMs] = list(options);
  return {
    now: Number(now),
    tag: tagText,
    isNew: isNew === 1,
    results: list(texts).map((text, i) => ({
      tag: tagText,
      text: bytes(text),
      elements: Array.isArray(elementLists[i]) ? (elementLists[i] as (Buffer | null)[]) : NO_ELEMENTS,
    })),
    died: readDied(list(died)),
    outbox: list(outbox).map(readPrefix),
    retentionMs: retentionMs === undefined ? null : Number(retentionMs),
  };
}

function readDied([to, ...flat]: readonly Reply[]): Died | null {
  if (to === undefined) return null;
  const counts: [string, number][] = [];
  for (let i = 0; i < flat.length; i += 2) counts.push([bytes(flat[i]).toString(), Number(flat[i + 1])]);
  return { to: bytes(to).toString(), counts };
}

function readPrefix(prefix: Reply): Prefix {
  const [to, last, ...entries] = list(prefix).map(bytes);
  return { to: bytes(to).toString(), last: bytes(last), entries };
}

function list(reply: Reply | undefined): readonly Reply[] {
  if (Array.isArray(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}

function bytes(reply: Reply | undefined): Buffer {
  if (Buffer.isBuffer(reply)) return reply;
  throw new Error('a reply of the library has the wrong form');
}
