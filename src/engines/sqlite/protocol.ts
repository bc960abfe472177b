import type { StoredDefinition } from '../../engine/definitions.ts';
import type { Counters } from '../../engine/stats.ts';
import type {
  PurgeStep,
  QueueCounts,
  SettleAction,
  SettleOutcome,
  SweepResult,
  Usage,
} from '../../engine/storage.ts';
import { type DeliveryState, type ElementHeaders, NO_HEADERS } from '../../model/element.ts';
import type { ErrorCode } from '../../model/errors.ts';
import type { QueueKey } from '../../model/names.ts';

/**
 * What crosses the thread border. Elements do so as flat arrays of primitives: 64 small ones as objects with
 * a Uint8Array each cost the structured clone 5 to 7 µs an element, flat fields about 2 µs on both sides together.
 */
export type Field = string | number | null;
export type Fields = Field[];

/** Namespace and name of a queue as one text. */
export type QueueName = string;

export function nameOf({ ns, name }: QueueKey): QueueName {
  return `${ns}\0${name}`;
}

export function keyOf(queue: QueueName): QueueKey {
  const at = queue.indexOf('\0');
  return { ns: queue.slice(0, at), name: queue.slice(at + 1) };
}

/**
 * The operations of the worker, with their arguments. A body is an
 * offset and a length within the batch ({@link BodyWriter}); the tuples `…Fields` below say what a flat array holds.
 */
export interface Operations {
  /** Options as JSON text, that of null if there are none any more; null: what is stored stays. */
  declare(queues: readonly QueueName[], options: string | null): void;
  queues(ns: string): string[];
  /**
   * Per element {@link ElementFields}. Returns repeats (index, 1 or 0 for the same content, …) or null, then ids.
   * Of one new element its id alone: the arrays take half a microsecond on both sides together.
   * @param request the key of the whole call
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
    ids: readonly string[] | null,
    leaseMs: number | null,
    owner: number,
    /** Of reservations: one text for all, or one by place. */
    holders: string | readonly string[],
    maxBytes: number | null,
  ): Taken;
  /**
   * Per item {@link SettleFields}, and its details if any item has some. Returns outcome and end of the lease of each;
   * of one item without such an end its outcome alone.
   * @param needs bits of {@link SETTLE_NEEDS}
   */
  settle(needs: number, items: Fields, details: readonly SettleDetails[] | null): Fields | SettleOutcome;
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
  /** `isPart`: another call reads more of the elements that are counted once for each of their groups. */
  counts(queue: QueueName, group: string | null): [counts: QueueCounts, isPart: boolean];
  usage(ns: string): Usage;
  sweep(): SweepResult;
  definitionGet(kind: string, key: string): StoredDefinition | null;
  definitionList(kind: string): StoredDefinition[];
  /** `expected` as in the port. Returns the new version; null: another write came first. */
  definitionPut(kind: string, key: string, value: string, expected: string | null): string | null;
  /** Returns whether there was one; null: another write came first. */
  definitionDelete(kind: string, key: string, expected: string): boolean | null;
  /** Per entry: queue, group, one number per counter. */
  statsAdd(entries: Fields): void;
  statsRead(queue: QueueName): StoredCounters[];
  ping(): void;
}

export type Operation = keyof Operations;

/** Operations that change nothing: if the worker fails, their callers lose only a reply. */
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

/** Those of one group. */
export type StoredCounters = Counters & { readonly grp: string };

/** Cuts a flat array into tuples of one length, which the compiler checks. */
export function tuplesOf<T extends readonly unknown[]>(fields: Fields, length: T['length']): T[] {
  const tuples: T[] = [];
  for (let at = 0; at < fields.length; at += length) {
    tuples.push(fields.slice(at, at + length) as readonly unknown[] as T);
  }
  return tuples;
}

/** Of a body within its batch, as {@link bodyAt} takes them. */
type BodyFields = [offset: number, length: number];

/** A new element; `more` as {@link toMore} makes it, groups joined by commas, {@link Extra} as JSON text. */
export type ElementFields = [
  type: string | null,
  more: string | null,
  ...BodyFields,
  dueAt: number,
  tries: number,
  groups: string,
  extra: string | null,
];

export const ELEMENT_FIELDS: ElementFields['length'] = 8;

/** A new element that a settlement inserts. */
export type InsertedFields = [queue: QueueName, ...ElementFields];
export const INSERTED_FIELDS: InsertedFields['length'] = 9;

/** The rarer facts of a new element, null if it has none of them. */
export interface Extra {
  readonly key?: string;
  readonly fingerprint?: string | null;
  readonly expiresAt?: number | null;
}

/** A popped delivery that returns; `type` and `more` as of {@link ElementFields}. */
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

export type TakenFields = [
  id: string,
  tries: number,
  dueAt: number,
  type: string | null,
  more: string | null,
  ...BodyFields,
  token: string | null,
];
export const TAKEN_FIELDS: TakenFields['length'] = 8;
/** `lost`: index, expiry and reason of popped deliveries that have one of them: only an undone take needs these. */
export type Taken = [
  nextDueAt: number | null,
  until: number | null,
  lost: Fields | null,
  deliveries: Fields,
  isCut: boolean,
  isLeft: boolean,
];

export type ScannedFields = [
  id: string,
  state: DeliveryState,
  tries: number,
  dueAt: number,
  leaseUntil: number | null,
  insertedAt: number,
  expiresAt: number | null,
  reason: string | null,
  type: string | null,
  more: string | null,
  offset: number | null,
  bytes: number,
  /** The delivery's own id, if it has another one than its element. */
  own: string | null,
  reservedAt: number | null,
  holder: string | null,
];
export const SCANNED_FIELDS: ScannedFields['length'] = 15;
export type Scanned = [next: string | null, deliveries: Fields];

/** Whether a settle may take space on the disk, and whether it is acknowledged only after an fsync. */
export const SETTLE_NEEDS = { space: 1, sync: 2 } as const;

export type SettleFields = [
  /** Null: that of the item before. */
  queue: QueueName | null,
  id: string,
  group: string | null,
  /** 1 if it must be. */
  isWaiting: number,
  token: string | null,
  /** The number of the user; 0: nobody. */
  owner: number,
  kind: SettleAction['kind'],
];
export const SETTLE_FIELDS: SettleFields['length'] = 7;

/**
 * The rest of an action, null if it has none:
 * - `finish`: per insert {@link InsertedFields}
 * - `release`: delay, due at, 1 if the try counts, reason, 1 if the queue's retry delay goes before the delay
 * - `extend`: length of the lease
 * - `dead-letter`: 1 if the try counts, reason
 * - `move`: queue, groups joined by commas, tries, header names and values
 */
export type SettleDetails = Fields | null;

/**
 * The rarer fields of an element's content as one JSON text: `[content encoding, name, value, …]`, null
 * where there are none. So the usual element, a body and a content type, costs no JSON at all.
 */
export function toMore(contentEncoding: string | null, headers: ElementHeaders): string | null {
  if (contentEncoding === null && headers.length === 0) return null;
  return JSON.stringify([contentEncoding, ...headers]);
}

export function fromMore(more: string | null): { contentEncoding: string | null; headers: ElementHeaders } {
  if (more === null) return { contentEncoding: null, headers: NO_HEADERS };
  const [contentEncoding = null, ...headers] = JSON.parse(more) as [string | null, ...string[]];
  return { contentEncoding, headers };
}

/** What is posted to the worker. */
export type ToWorker =
  | {
      readonly kind: 'batch';
      /** By the main side's `SteadyTime`. */
      readonly now: number;
      /** Each an operation and its arguments. */
      readonly calls: readonly Call[];
      readonly bodies: PackedBodies;
    }
  /** The file does not exist yet. */
  | { readonly kind: 'backup'; readonly file: string }
  | { readonly kind: 'close' };

export type Call = readonly [operation: Operation, ...args: unknown[]];

/** A call of one operation. */
export type CallOf<O extends Operation> = readonly [operation: O, ...args: Parameters<Operations[O]>];

/** The results of calls of a batch, in their order, and the bodies that they name. */
export interface Reply {
  /** Which calls, if another message has those of the others; null: all. */
  readonly places: readonly number[] | null;
  /** Of those calls, in their order. */
  readonly results: readonly unknown[];
  /** By the place of the call: why it was rejected. */
  readonly rejections: ReadonlyMap<number, Rejection> | null;
  readonly bodies: PackedBodies;
}

/** Why a call was rejected, in the words of the port: nothing of it was applied. */
export interface Rejection {
  readonly code: ErrorCode;
  readonly message: string;
}

/** What the worker posts. Batches are replied to in their order. */
export type FromWorker =
  | { readonly kind: 'opened' }
  | { readonly kind: 'rejected'; readonly message: string }
  | { readonly kind: 'replies'; readonly replies: readonly Reply[] }
  /** To calls that need not wait for the sync of their transaction; `replies` follows, with those of the others. */
  | { readonly kind: 'earlyReplies'; readonly replies: readonly Reply[] }
  | { readonly kind: 'backedUp'; readonly bytes: number }
  | ({ readonly kind: 'backupFailed' } & Rejection)
  | { readonly kind: 'warn'; readonly fields: object; readonly message: string }
  | {
      readonly kind: 'failed';
      readonly message: string;
      /** How many batches, from the first that has no reply, may have become durable. */
      readonly uncertain: number;
    };

/**
 * Bodies of this size and up travel in their own memory. They need no second copy, and a receiver who keeps
 * a small body does not keep another one's megabyte alive with it.
 */
const LARGE = 16 * 1024;

const NO_BYTES = new Uint8Array(0);

/** Small bodies one after the other, and large ones. A Buffer view is never posted: its whole slab would be cloned. */
export interface PackedBodies {
  readonly small: Uint8Array<ArrayBuffer>;
  readonly large: readonly Uint8Array<ArrayBuffer>[];
}

/** How many bodies a writer had, small and large, and their bytes. */
type Mark = readonly [small: number, large: number, smallBytes: number, largeBytes: number];

/** Collects the bodies of a batch. They are copied when it is packed, not before. */
export class BodyWriter {
  readonly #small: Uint8Array[] = [];
  readonly #large: Uint8Array[] = [];
  #smallBytes = 0;
  #largeBytes = 0;

  /** Bytes of all bodies so far. */
  get byteLength(): number {
    return this.#smallBytes + this.#largeBytes;
  }

  /** Returns the offset by which {@link bodyAt} finds the body; a large one has a negative offset. */
  add(body: Uint8Array): number {
    const length = body.byteLength;
    if (length >= LARGE) {
      this.#largeBytes += length;
      return -this.#large.push(body);
    }
    const offset = this.#smallBytes;
    if (length > 0) this.#small.push(body);
    this.#smallBytes += length;
    return offset;
  }

  mark(): Mark {
    return [this.#small.length, this.#large.length, this.#smallBytes, this.#largeBytes];
  }

  /** Drops the bodies that were added since a mark. */
  cut([small, large, smallBytes, largeBytes]: Mark = [0, 0, 0, 0]): void {
    this.#small.length = small;
    this.#large.length = large;
    this.#smallBytes = smallBytes;
    this.#largeBytes = largeBytes;
  }

  /** @param isOwned whether the bodies' memory may be given away (it is gone on this side afterwards) */
  pack(isOwned: boolean, transfer: ArrayBuffer[]): PackedBodies {
    // Copies of one element to many queues share a body; so they do on the other side.
    const packed = new Map<Uint8Array, Uint8Array<ArrayBuffer>>();
    for (const body of this.#large) {
      if (packed.has(body)) continue;
      const own = isOwned && fillsItsMemory(body) ? body : new Uint8Array(body);
      packed.set(body, own);
      transfer.push(own.buffer);
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

export function byteLengthOf({ small, large }: PackedBodies): number {
  let bytes = small.byteLength;
  for (const body of large) bytes += body.byteLength;
  return bytes;
}

function fillsItsMemory(body: Uint8Array): body is Uint8Array<ArrayBuffer> {
  return body.buffer instanceof ArrayBuffer && body.byteLength === body.buffer.byteLength;
}
