import { invalid, jsonIn, QuaysideError, quoted, TimeoutError, textOf } from './errors.ts';
import type { CallOptions, InsertOptions } from './options.ts';
import { after, nextTurn, randomName, unlessAborted } from './time.ts';
import type { ClientRequest, ClientResponse, Transport } from './transport.ts';

/** Identifies an element under a lease in a settlement. */
export interface Receipt {
  readonly id: string;
  readonly token: string;
  readonly group: string | undefined;
}

export type SettleAction =
  | { readonly action: 'commit' | 'release' }
  | { readonly action: 'rollback'; readonly delay: number | undefined; readonly reason: string | undefined }
  | { readonly action: 'extend'; readonly lease: number | undefined }
  | { readonly action: 'bury'; readonly reason: string };

export type SettleRequest = {
  readonly receipt: Receipt;
  /** Whether the settlement was sent. If its caller gives up after that, the outcome is unknown. */
  isSent?: boolean;
} & SettleAction;

/** The server's result of one settlement. */
interface SettleResponse {
  readonly outcome: 'done' | 'dead-lettered' | 'not-found' | 'not-reserved' | 'lease-lost' | 'token-required';
  /** For an extension: the new end of the lease. */
  readonly until?: string;
  /** Whether an earlier attempt may have settled the element. */
  readonly isRepeat: boolean;
}

/** The stored element of an insert. */
export interface Inserted {
  readonly id: string;
  /** Whether `idempotencyKey` was used before, so that this insert stored nothing. */
  readonly isRepeat: boolean;
}

/** The stored elements of an insert of many. */
export interface InsertedMany {
  readonly ids: string[];
  /** The places in `ids`, from 0, of elements whose keys were used before: this insert did not store them. */
  readonly repeated: number[];
}

/** Items of one request: far below the server's limit, so that a batch does not occupy an engine for long. */
const MAX_ITEMS = 1_000;
/** Maximum sum of the items' sizes. A larger item is sent alone. */
const MAX_SIZE = 262_144;
/** Maximum size of an id, a token and a group. */
const RECEIPT_SIZE = 256;
/** The server cuts a reason to 1 KiB. */
const MAX_REASON_LENGTH = 1_000;
const NDJSON = 'application/x-ndjson';

/**
 * Kind of idempotency key. `own`: the caller's, one per line. `random`: the client's, one per request. `none`: requests
 * are not repeated.
 */
type KeyKind = 'own' | 'random' | 'none';

/** The requests of one queue, shared by all `Queue` objects of a client for that queue. */
export class QueueWire {
  /** Path of the queue, from the server's root. */
  readonly path: string;
  readonly transport: Transport;
  /** One batcher per kind of key, because either a request has a key or its lines have. */
  readonly #inserts: { [K in KeyKind]?: RequestBatcher<string, Inserted> } = {};
  readonly #settlements: RequestBatcher<SettleRequest, SettleResponse>;

  constructor(transport: Transport, path: string) {
    this.path = path;
    this.transport = transport;
    this.#settlements = new RequestBatcher((items) => this.#settleEach(items));
  }

  /** Sends a line in a request with others. If only this line is invalid, only it fails. */
  async insert(line: string, options: InsertOptions): Promise<Inserted> {
    const kind = kindOfKey(options);
    this.#inserts[kind] ??= new RequestBatcher(async (lines) => {
      const { ids, repeated } = await this.insertAll(lines, kind);
      return ids.map((id, place) => ({ id, isRepeat: repeated.includes(place) }));
    });
    try {
      return await this.#inserts[kind].add(line, line.length, options);
    } catch (error) {
      // Callers insert single elements, so a line number would mean nothing to them.
      if (error instanceof QuaysideError) error.message = error.message.replace(/^Line \d+: /, '');
      throw error;
    }
  }

  /** Stores all lines or none. */
  async insertAll(lines: readonly string[], kind: KeyKind, options?: CallOptions): Promise<InsertedMany> {
    const idempotencyKey = kind === 'random' && randomName();
    const { text } = await this.transport.send({
      method: 'POST',
      path: `${this.path}/elements`,
      body: lines.join(''),
      contentType: NDJSON,
      idempotencyKey,
      isRepeatable: kind !== 'none',
      options,
    });
    const { ids, repeated = [] } = jsonIn<{ ids: string[]; repeated?: number[] }>(text, 'ids');
    // With a random key, only this request itself can have been sent before.
    return { ids, repeated: idempotencyKey ? [] : repeated };
  }

  settle(item: SettleRequest, options: CallOptions = {}): Promise<SettleResponse> {
    const size = RECEIPT_SIZE + ('reason' in item ? MAX_REASON_LENGTH : 0);
    return this.transport.during(() => this.#settlements.add(item, size, options));
  }

  post(
    path: string,
    body: object,
    isRepeatable: boolean,
    options?: CallOptions,
    more?: Pick<ClientRequest, 'waitMs' | 'accepted'>,
  ): Promise<ClientResponse> {
    return this.transport.send({
      method: 'POST',
      path: `${this.path}${path}`,
      body: JSON.stringify(body),
      isRepeatable,
      options,
      ...more,
    });
  }

  /**
   * @param waitMs how long the server waits for an element. The response's code tells if there was none, or if the call
   * was cancelled
   */
  take(body: object, waitMs: number, isRepeatable: boolean, options: CallOptions): Promise<ClientResponse> {
    const accepted = ['pop-timeout', 'pop-cancelled'];
    return this.post('/take', { ...body, to: waitMs }, isRepeatable, options, { waitMs, accepted });
  }

  /** Cancels the waiting takes of a consumer. */
  async cancel(consumer: string, options: CallOptions): Promise<void> {
    await this.transport.send({
      method: 'DELETE',
      path: `${this.path}/consumer/${encodeURIComponent(consumer)}`,
      isRepeatable: true,
      options,
    });
  }

  get(path: string, options?: CallOptions): Promise<ClientResponse> {
    return this.transport.send({ method: 'GET', path: `${this.path}${path}`, isRepeatable: true, options });
  }

  async #settleEach(items: readonly SettleRequest[]): Promise<SettleResponse[]> {
    const indexes: Record<string, number[]> = {};
    const body: Record<string, object[]> = {};
    items.forEach((item, index) => {
      const { action } = item;
      indexes[action] ??= [];
      indexes[action].push(index);
      body[action] ??= [];
      body[action].push(itemOf(item));
      item.isSent = true;
    });
    const { text, isRepeat } = await this.post('/settle', body, true);
    const { results } = jsonIn<{ results: Pick<SettleResponse, 'outcome' | 'until'>[] }>(text, 'results');
    const responses: SettleResponse[] = [];
    // The results are in the order of the body: action by action.
    Object.values(indexes)
      .flat()
      .forEach((index, at) => {
        responses[index] = { ...(results[at] as SettleResponse), isRepeat };
      });
    return responses;
  }
}

/**
 * @throws ValidationError for a key of another type, such as a number: it could not be sent, and a repeated insert
 * would store the element twice
 */
export function kindOfKey({ idempotencyKey: key }: InsertOptions): KeyKind {
  if (key === false) return 'none';
  if (key == null) return 'random';
  if (typeof key === 'string') return 'own';
  throw invalid(`idempotencyKey is ${quoted(key)}. Allowed: a string, or false.`);
}

function itemOf({ receipt, action, isSent, ...rest }: SettleRequest): object {
  const item: Receipt & { reason?: unknown } = { ...receipt, ...rest };
  // A reason of the wrong type must not make the server reject the whole batch.
  if (item.reason) item.reason = textOf(item.reason).slice(0, MAX_REASON_LENGTH).toWellFormed();
  return item;
}

/** Two, so that the server processes one batch while the next one is built and sent. */
const MAX_IN_FLIGHT = 2;

interface PendingItem<I, R> {
  readonly item: I;
  readonly size: number;
  readonly resolve: (result: R) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Combines concurrent calls into one request: those of one turn of the event loop, and those made while earlier
 * requests are in flight. A single call is sent at the end of its turn.
 */
class RequestBatcher<I, R> {
  readonly #send: (items: readonly I[]) => Promise<readonly R[]>;
  readonly #pending = new Set<PendingItem<I, R>>();
  #inFlight = 0;
  #isScheduled = false;

  /**
   * @param send returns a result for each item, or throws if all failed. If `details.line` of the error is the number
   * of an item, from 1, the others are sent again without it
   */
  constructor(send: (items: readonly I[]) => Promise<readonly R[]>) {
    this.#send = send;
  }

  /** @throws the reason of the signal, or TimeoutError; the item is then not sent, or its outcome is unknown */
  async add(item: I, size: number, { signal, timeoutMs }: CallOptions = {}): Promise<R> {
    let entry!: PendingItem<I, R>;
    const result = new Promise<R>((resolve, reject) => {
      entry = { item, size, resolve, reject };
    });
    this.#pending.add(entry);
    this.#schedule();
    const cancel =
      timeoutMs !== undefined &&
      after(timeoutMs, () => {
        // A pending item is not sent any more.
        const outcome = this.#pending.has(entry) ? 'nothing-changed' : 'unknown';
        entry.reject(new TimeoutError(`No response within ${timeoutMs} ms.`, { outcome }));
      });
    try {
      return await unlessAborted([signal], () => result);
    } finally {
      this.#pending.delete(entry);
      if (cancel) cancel();
    }
  }

  #schedule(): void {
    if (this.#isScheduled || this.#pending.size === 0 || this.#inFlight >= MAX_IN_FLIGHT) return;
    this.#isScheduled = true;
    nextTurn(() => {
      this.#isScheduled = false;
      const batch = this.#nextBatch();
      if (batch.length > 0) void this.#run(batch);
      this.#schedule();
    });
  }

  #nextBatch(): PendingItem<I, R>[] {
    const batch: PendingItem<I, R>[] = [];
    let size = 0;
    for (const entry of this.#pending) {
      size += entry.size;
      if (batch.length === MAX_ITEMS || (batch.length > 0 && size > MAX_SIZE)) break;
      batch.push(entry);
      this.#pending.delete(entry);
    }
    return batch;
  }

  async #run(batch: readonly PendingItem<I, R>[]): Promise<void> {
    this.#inFlight += 1;
    await this.#settle(batch);
    this.#inFlight -= 1;
    this.#schedule();
  }

  async #settle(batch: readonly PendingItem<I, R>[]): Promise<void> {
    if (batch.length === 0) return;
    try {
      const results = await this.#send(batch.map(({ item }) => item));
      for (const [index, { resolve }] of batch.entries()) resolve(results[index] as R);
    } catch (error) {
      // The caller's `auth` function may throw anything.
      const { code, status, outcome, details } = Object(error) as Partial<QuaysideError>;
      const isTooLarge = batch.length > 1 && (code === 'too-many-groups' || status === 413);
      // An item that is too large may be accepted with fewer others. One that is invalid fails alone.
      const invalidItem = isTooLarge ? undefined : batch[Number(details?.line) - 1];
      // Do not split after an unknown outcome: the halves would be new requests, and the whole may have been executed.
      if (outcome === 'unknown' || !(isTooLarge || invalidItem)) {
        for (const { reject } of batch) reject(error);
        return;
      }
      invalidItem?.reject(error);
      const rest = batch.filter((entry) => entry !== invalidItem);
      // Halves: if many are invalid, the others would be sent again for each of them.
      await this.#settle(rest.slice(0, rest.length >> 1));
      await this.#settle(rest.slice(rest.length >> 1));
    }
  }
}
