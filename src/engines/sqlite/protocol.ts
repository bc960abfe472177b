import type { StoredDefinition } from '../../engine/definitions.ts';
import type { Counters } from '../../engine/stats.ts';
import type {
  FinishAction,
  PurgeStep,
  QueueCounts,
  ScannedDelivery,
  SettleAction,
  SettleOutcome,
  Usage,
} from '../../engine/storage.ts';
import type { GroupName } from '../../model/element.ts';
import type { ErrorCode } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';

/**
 * A value in a message between the threads. Elements are sent as flat arrays of primitives: for batches of 64 small
 * elements, structured clone took 5 to 7 µs per element as objects with a Uint8Array each, and about 2 µs, both threads
 * together, as flat fields.
 */
type Field = string | number | null;
export type Fields = Field[];

/** Namespace and name of a queue as one string. */
export type QueueName = string;

export function nameOf({ ns, name }: QueueKey): QueueName {
  return `${ns}\0${name}`;
}

export function keyOf(queue: QueueName): QueueKey {
  const at = queue.indexOf('\0');
  return { ns: queue.slice(0, at), name: queue.slice(at + 1) };
}

/**
 * The operations of the worker, with their arguments and results. A body is an offset and a length within the batch
 * ({@link BodyWriter}). The tuples `…Fields` below define the contents of flat arrays.
 */
export interface Operations {
  /** @param options JSON; the string 'null' removes stored options, null leaves them unchanged */
  declare(queues: readonly QueueName[], options: string | null): void;
  queues(ns: string): string[];
  /**
   * Returns repeats (index, then 1 for the same content or 0, …) or null, and the ids. If all elements are new and have
   * consecutive ids, it returns the first id alone (see `idsFrom`): the arrays of a single id take half a microsecond,
   * both threads together.
   * @param elements {@link ElementFields} or {@link SimilarFields} of each element
   * @param request the idempotency key of the whole call
   */
  insert(
    queue: QueueName,
    elements: Fields,
    request: readonly [key: string, fingerprint: string] | null,
  ): Inserted | string;
  take(
    queue: QueueName,
    group: string,
    count: number,
    leaseMs: number | null,
    /** Holders of the reservations: one string for all, or one for each. */
    holders: string | readonly string[],
    maxBytes: number | null,
    isTransient: boolean,
  ): Taken;
  /**
   * Returns outcome and lease end of each item; for a single item without lease end, the outcome alone.
   * @param items {@link SettleFields} of each item
   * @param actions of each item, null if it finishes its delivery; null if all do
   */
  settle(
    items: Fields,
    actions: readonly (OtherAction | null)[] | null,
    inserts?: SettleInserts,
  ): Fields | SettleOutcome;
  undoTake(queue: QueueName, deliveries: readonly UndoneDelivery[]): void;
  scan(
    queue: QueueName,
    group: string,
    states: readonly string[],
    ids: readonly string[] | null,
    after: string | null,
    limit: number,
    bodies: boolean,
  ): Scanned;
  purge(queue: QueueName, states: readonly string[] | null): PurgeStep;
  drop(queue: QueueName): boolean;
  /** `isPart`: another call counts more of the elements of several groups, see {@link SharedCounts}. */
  counts(queue: QueueName, group: string | null): [counts: QueueCounts, isPart: boolean];
  usage(ns: string): Usage;
  /** Returns when to sweep again; null: when something changes. */
  sweep(): number | null;
  definitionGet(kind: string, key: string): StoredDefinition | null;
  definitionList(kind: string): StoredDefinition[];
  /** `expected` as in the port. Returns the new version; null if the stored version is another one. */
  definitionPut(kind: string, key: string, value: string, expected: string | null): string | null;
  /** Returns whether the definition existed; null if its version is another one. */
  definitionDelete(kind: string, key: string, expected: string): boolean | null;
  statsAdd(entries: readonly CounterEntry[]): void;
  statsRead(queue: QueueName): StoredCounters[];
  ping(): void;
}

export type Operation = keyof Operations;

/** Read-only operations, which are never rejected with `outcome-unknown`. */
export const READS: ReadonlySet<Operation> = new Set([
  'queues',
  'scan',
  'counts',
  'usage',
  'definitionGet',
  'definitionList',
  'statsRead',
  'ping',
]);

/** The counters of one group. */
export type StoredCounters = Counters & { readonly grp: string };

/** Numbers to add to counters, in the order of `COUNTER_NAMES`. */
export type CounterEntry = readonly [queue: QueueName, group: string, ...counts: number[]];

/** A body within its batch, as the arguments of {@link bodyAt}. */
type BodyFields = [offset: number, length: number];

/** A new element; `more` by `encodeMetadata`, `groups` joined by commas, `rare` {@link RareFields} as JSON. */
export type ElementFields = [
  type: string | null,
  more: string | null,
  ...BodyFields,
  dueAt: number,
  tries: number,
  groups: string,
  rare: string | null,
];

export const ELEMENT_FIELDS: ElementFields['length'] = 8;

/** A new element that differs from the one before it only in its body, like most elements of one call. */
export type SimilarFields = [mark: typeof SIMILAR, ...BodyFields];
export const SIMILAR = 0;
export const SIMILAR_FIELDS: SimilarFields['length'] = 3;

/** Few elements have any of these: as fields of their own they made inserts in batches of 64 4 % slower. */
export type RareFields = [expiresAt: number | null, key: string | null, fingerprint: string | null];

/** A popped delivery to return undelivered; `type` and `more` as in {@link ElementFields}. */
export interface UndoneDelivery {
  readonly id: string;
  readonly group: string;
  readonly tries: number;
  readonly dueAt: number;
  readonly expiresAt: number | null;
  readonly reason: string | null;
  readonly type: string | null;
  readonly more: string | null;
  readonly body: BodyFields;
}

export type Inserted = [repeats: number[] | null, ids: string[]];

/**
 * A taken delivery. If its mark is {@link NOT_SIMILAR}, {@link SharedTakenFields} follow. If it is {@link SIMILAR},
 * those of the delivery before it apply to it, too.
 */
export type TakenFields = [mark: number, id: string, dueAt: number, ...BodyFields, token: string | null];
export const TAKEN_FIELDS: TakenFields['length'] = 6;
export const NOT_SIMILAR = 1;

/** In these, deliveries of one take rarely differ. */
export type SharedTakenFields = [
  tries: number,
  expiresAt: number | null,
  reason: string | null,
  type: string | null,
  more: string | null,
];
export const SHARED_TAKEN_FIELDS: SharedTakenFields['length'] = 5;

export type Taken = [
  nextDueAt: number | null,
  until: number | null,
  /** {@link TakenFields} of each. */
  deliveries: Fields,
  isCut: boolean,
  isLeft: boolean,
];

/** A delivery that a scan returns; `more` as in {@link ElementFields}, `holder` as in `holderStrings`. */
type ScannedFields = Omit<
  ScannedDelivery,
  'group' | 'contentEncoding' | 'headers' | 'body' | 'lease' | 'holder'
> & {
  readonly more: string | null;
  /** Of the body, see {@link bodyAt}; null: it was not read. */
  readonly offset: number | null;
  readonly leaseUntil: number | null;
  readonly reservedAt: number | null;
  readonly holder: string | null;
};
export type Scanned = [next: string | null, deliveries: ScannedFields[]];

export type SettleFields = [
  /** Null: the same as in the previous item. */
  queue: QueueName | null,
  id: string,
  group: string,
  /** 1 if the delivery must be waiting, 0 if it must be reserved. */
  isWaiting: number,
  token: string | null,
  /** The user; null: not checked. */
  owner: string | null,
  kind: SettleAction['kind'],
];
export const SETTLE_FIELDS: SettleFields['length'] = 7;

/** An action that does not just finish its delivery. */
export type OtherAction = Exclude<SettleAction, FinishAction>;

/**
 * The elements that a call of `settle` inserts, as {@link ElementFields} or {@link SimilarFields}, and their places. An
 * element that an item inserts into several queues is sent once.
 */
export type SettleInserts = readonly [elements: Fields, queues: readonly QueueInserts[]];

/** What is inserted into one queue, in order: indices of the items that do so, and of their elements. */
export type QueueInserts = readonly [queue: QueueName, items: number[], elements: number[]];

/** Joined by commas, which no name contains; '' on a plain queue. */
export function joinGroups(groups: readonly GroupName[]): string {
  return groups.length > 1 ? [...new Set(groups)].join(',') : (groups[0] ?? '');
}

/** Calls that are sent together, and the time of the main thread's `SteadyTime` when they are. */
export interface Batch {
  readonly now: number;
  readonly calls: readonly Call[];
  readonly bodies: PackedBodies;
  /** Bytes that the bodies take in the file: each counts once for every element that has it. */
  readonly bytes: number;
}

/** Messages to the worker. */
export type ToWorker =
  | ({ readonly kind: 'batch' } & Batch)
  /** The file must not exist. */
  | { readonly kind: 'backup'; readonly file: string }
  | { readonly kind: 'close' };

export type Call = readonly [operation: Operation, ...args: unknown[]];

/** A call of one operation. */
export type CallOf<O extends Operation> = readonly [operation: O, ...args: Parameters<Operations[O]>];

/** Results of calls of one batch, with their bodies. */
export interface Reply {
  /** The result of each call; undefined: another message has it. */
  readonly results: readonly unknown[];
  /** Rejected calls, by the index of the call in its batch. */
  readonly rejections: ReadonlyMap<number, Rejection> | null;
  readonly bodies: PackedBodies;
}

/** Why a call was rejected, with an error code of the port. Nothing of the call was applied. */
export interface Rejection {
  readonly code: ErrorCode;
  readonly message: string;
}

/**
 * Why a file cannot be opened now although a later start may succeed: another connection has it open, its disk is full,
 * or its file system is mounted read-only.
 */
export type PassingState = 'in-use' | 'full' | 'read-only';

/** Messages of the worker. Batches are replied to in their order. `rejected`: the file cannot be opened. */
export type FromWorker =
  | { readonly kind: 'opened' }
  | { readonly kind: 'rejected'; readonly message: string; readonly state: PassingState | null }
  | {
      readonly kind: 'replies';
      readonly replies: readonly Reply[];
      /** Queues that gained eligible elements without a call whose caller knows of them. */
      readonly affected: readonly QueueName[];
    }
  /** Replies to calls that do not need the fsync of their transaction; `replies` follows, for the others. */
  | { readonly kind: 'earlyReplies'; readonly replies: readonly Reply[] }
  | { readonly kind: 'backedUp'; readonly bytes: number }
  | ({ readonly kind: 'backupFailed' } & Rejection)
  | { readonly kind: 'warn'; readonly fields: object; readonly message: string }
  | {
      readonly kind: 'failed';
      readonly message: string;
      /** How many batches without a reply, from the first, may have become durable. */
      readonly uncertain: number;
    };

/**
 * Bodies of at least this size are sent in memory of their own. They are not copied twice, and a receiver that retains
 * a small body does not retain the memory of large ones.
 */
const LARGE_BYTES = 16 * 1024;

const NO_BYTES = new Uint8Array(0);

/**
 * Small bodies in one buffer, and large ones. Views of Node's pooled Buffers are never posted: structured clone would
 * copy the whole pool.
 */
export interface PackedBodies {
  readonly small: Uint8Array<ArrayBuffer>;
  readonly large: readonly Uint8Array<ArrayBuffer>[];
}

/** State of a {@link BodyWriter}: numbers of small and large bodies, their bytes, and those of repeated ones. */
type Mark = readonly [
  small: number,
  large: number,
  smallBytes: number,
  largeBytes: number,
  repeatedBytes: number,
];

/** Collects the bodies of a batch. They are copied only when it is packed. */
export class BodyWriter {
  readonly #small: Uint8Array[] = [];
  readonly #large: Uint8Array[] = [];
  #smallBytes = 0;
  #largeBytes = 0;
  #repeatedBytes = 0;

  /** Bytes of all bodies so far; repeated ones are counted again. */
  get byteLength(): number {
    return this.#smallBytes + this.#largeBytes + this.#repeatedBytes;
  }

  /** Adds a body. Returns its offset for {@link bodyAt}, which is negative for a large one. */
  add(body: Uint8Array): number {
    const length = body.byteLength;
    if (length >= LARGE_BYTES) {
      this.#largeBytes += length;
      return -this.#large.push(body);
    }
    const offset = this.#smallBytes;
    if (length > 0) this.#small.push(body);
    this.#smallBytes += length;
    return offset;
  }

  /** Counts a body that was added before once more, since another element has it, too. */
  repeat({ byteLength }: Uint8Array): void {
    this.#repeatedBytes += byteLength;
  }

  mark(): Mark {
    const { length } = this.#small;
    return [length, this.#large.length, this.#smallBytes, this.#largeBytes, this.#repeatedBytes];
  }

  /** Drops the bodies added since a mark; without a mark, all of them. */
  truncate([small, large, smallBytes, largeBytes, repeatedBytes]: Mark = [0, 0, 0, 0, 0]): void {
    this.#small.length = small;
    this.#large.length = large;
    this.#smallBytes = smallBytes;
    this.#largeBytes = largeBytes;
    this.#repeatedBytes = repeatedBytes;
  }

  /**
   * @param isOwned whether the bodies' memory may be transferred, after which this side cannot use it
   * @param transfer receives the buffers to transfer
   */
  pack(isOwned: boolean, transfer: ArrayBuffer[]): PackedBodies {
    // Copies of one element to several queues share one body, on the other side as well.
    const packed = new Map<Uint8Array, Uint8Array<ArrayBuffer>>();
    for (const body of this.#large) {
      if (packed.has(body)) continue;
      const sent = isOwned && fillsItsMemory(body) ? body : new Uint8Array(body);
      packed.set(body, sent);
      transfer.push(sent.buffer);
    }
    const small = this.#packSmall();
    if (small.byteLength > 0) transfer.push(small.buffer);
    return { small, large: this.#large.map((body) => packed.get(body) ?? NO_BYTES) };
  }

  #packSmall(): Uint8Array<ArrayBuffer> {
    if (this.#smallBytes === 0) return NO_BYTES;
    const bytes = new Uint8Array(this.#smallBytes);
    let at = 0;
    for (const body of this.#small) {
      bytes.set(body, at);
      at += body.byteLength;
    }
    return bytes;
  }
}

export function bodyAt({ small, large }: PackedBodies, offset: number, length: number): Uint8Array {
  return offset < 0 ? (large[-offset - 1] ?? NO_BYTES) : small.subarray(offset, offset + length);
}

function fillsItsMemory(body: Uint8Array): body is Uint8Array<ArrayBuffer> {
  return body.buffer instanceof ArrayBuffer && body.byteLength === body.buffer.byteLength;
}
