import { RequestBatcher } from './batcher.ts';
import { invalid, jsonIn, QuaysideError, quoted, textOf } from './errors.ts';
import type { CallOptions, InsertOptions } from './options.ts';
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
export interface SettleResponse {
  readonly outcome: 'done' | 'dead-lettered' | 'not-found' | 'not-reserved' | 'lease-lost' | 'token-required';
  /** For an extension: the new end of the lease. */
  readonly until?: string;
  /** Whether an earlier attempt may have settled the element. */
  readonly isRepeat: boolean;
}

/** Far below the server's limits, so that a batch does not occupy an engine for long. */
const LIMITS = { maxItems: 1_000, maxSize: 262_144 };
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
  readonly #inserts: { [K in KeyKind]?: RequestBatcher<string, string> } = {};
  readonly #settlements: RequestBatcher<SettleRequest, SettleResponse>;

  constructor(transport: Transport, path: string) {
    this.path = path;
    this.transport = transport;
    this.#settlements = new RequestBatcher(LIMITS, (items) => this.#settleEach(items));
  }

  /** Sends a line in a request with others. Returns the element's id. If only this line is invalid, only it fails. */
  async insert(line: string, options: InsertOptions): Promise<string> {
    const kind = kindOfKey(options);
    this.#inserts[kind] ??= new RequestBatcher(LIMITS, (lines) => this.insertAll(lines, kind));
    try {
      return await this.#inserts[kind].add(line, line.length, options);
    } catch (error) {
      // Callers insert single elements, so a line number would mean nothing to them.
      if (error instanceof QuaysideError) error.message = error.message.replace(/^Line \d+: /, '');
      throw error;
    }
  }

  /** Stores all lines or none. Returns the ids in the same order. */
  async insertAll(
    lines: readonly string[],
    kind: KeyKind,
    options?: CallOptions,
  ): Promise<readonly string[]> {
    const { text } = await this.transport.send({
      method: 'POST',
      path: `${this.path}/elements`,
      body: lines.join(''),
      contentType: NDJSON,
      idempotencyKey: kind === 'random' && this.transport.nextKey(),
      isRepeatable: kind !== 'none',
      options,
    });
    return jsonIn<{ ids: string[] }>(text, 'ids').ids;
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
