import { RequestBatcher } from './batcher.ts';
import { invalid, jsonIn, QuaysideError, quoted, textOf } from './errors.ts';
import type { CallOptions, InsertOptions } from './options.ts';
import type { ClientRequest, ClientResponse, Transport } from './transport.ts';

/** An element under a lease, as settlements name it. */
export interface Receipt {
  readonly id: string;
  readonly token: string;
  readonly group?: string;
}

export type SettleAction =
  | { readonly action: 'commit' | 'release' }
  | { readonly action: 'rollback'; readonly delay: number | undefined; readonly reason: string | undefined }
  | { readonly action: 'extend'; readonly lease: number | undefined }
  | { readonly action: 'bury'; readonly reason: string };

export type SettleRequest = {
  readonly receipt: Receipt;
  /** Whether a request has it. If its caller gives up then, its outcome is unknown. */
  isSent?: boolean;
} & SettleAction;

/** How one settlement ended, in the server's words. */
export interface SettleResponse {
  readonly outcome: 'done' | 'dead-lettered' | 'not-found' | 'not-reserved' | 'lease-lost' | 'token-required';
  /** Of an extension: the new end of the lease. */
  readonly until?: string;
  /** The server's time when it answered; null if it does not say. */
  readonly serverTime: number | null;
  /** Whether an earlier attempt may have settled the element. */
  readonly isRepeat: boolean;
}

/** Far below what a server accepts, so that a batch keeps an engine busy for moments only. */
const LIMITS = { maxItems: 1_000, maxSize: 262_144 };
/** At most: an id, a token and a group. */
const RECEIPT_SIZE = 256;
/** The server cuts a reason to 1 KiB. */
const MAX_REASON_LENGTH = 1_000;
const NDJSON = 'application/x-ndjson';

/**
 * Idempotency keys that the caller gave, each in its line; one of the client for a request; or none, and nothing is
 * repeated.
 */
type KeyKind = 'own' | 'random' | 'none';

/** The requests of one queue; all objects of a client for that queue share them. */
export class QueueWire {
  /** From the server's root. */
  readonly path: string;
  readonly transport: Transport;
  /** A request has a key, or its lines have keys. */
  readonly #inserts: { [K in KeyKind]?: RequestBatcher<string, string> } = {};
  readonly #settlements: RequestBatcher<SettleRequest, SettleResponse>;

  constructor(transport: Transport, path: string) {
    this.path = path;
    this.transport = transport;
    this.#settlements = new RequestBatcher(LIMITS, (items) => this.#settleEach(items));
  }

  /** One line, in a request with others. Returns the element's id. */
  insert(line: string, options: InsertOptions): Promise<string> {
    const kind = kindOfKey(options);
    this.#inserts[kind] ??= new RequestBatcher(LIMITS, (lines) => this.#insertEach(lines, kind));
    return this.#inserts[kind].add(line, line.length, options);
  }

  /** Lines of which all are stored, or none. */
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
   * @param waitMs how long the server waits for an element. The response's code says if there was none, or the call was
   * cancelled
   */
  take(body: object, waitMs: number, isRepeatable: boolean, options: CallOptions): Promise<ClientResponse> {
    const accepted = ['pop-timeout', 'pop-cancelled'];
    return this.post('/take', { ...body, to: waitMs }, isRepeatable, options, { waitMs, accepted });
  }

  /** Ends the waiting takes of that consumer. */
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

  /**
   * The server stores all lines of a request or none. If it names the line that it rejects, that one fails, and the
   * others are sent again without it, as another request. A line that is one too many is not named: it may be sent with
   * fewer others.
   */
  async #insertEach(lines: readonly string[], kind: KeyKind): Promise<readonly (string | Error)[]> {
    if (!lines[0]) return [];
    try {
      return await this.insertAll(lines, kind);
    } catch (error) {
      if (!(error instanceof QuaysideError) || error.outcome === 'unknown') throw error;
      const at = Number(error.details.line) - 1;
      if (!lines[at] || (lines[1] && error.status === 413)) throw error;
      // Each caller inserts one element, and knows no lines.
      error.message = error.message.replace(/^Line \d+: /, '');
      const results = await this.#insertEach([...lines.slice(0, at), ...lines.slice(at + 1)], kind);
      return [...results.slice(0, at), error, ...results.slice(at)];
    }
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
    const { text, headers, isRepeat } = await this.post('/settle', body, true);
    const { results } = jsonIn<{ results: Pick<SettleResponse, 'outcome' | 'until'>[] }>(text, 'results');
    const serverTime = timeIn(headers);
    const responses: SettleResponse[] = [];
    // The server answers in the order of the body: action by action.
    Object.values(indexes)
      .flat()
      .forEach((index, at) => {
        responses[index] = { ...(results[at] as SettleResponse), serverTime, isRepeat };
      });
    return responses;
  }
}

/**
 * @throws ValidationError for a key of another type, such as a number: it could not be sent, and a repeat would store
 * the element twice
 */
export function kindOfKey({ idempotencyKey: key }: InsertOptions): KeyKind {
  if (key === false) return 'none';
  if (key == null) return 'random';
  if (typeof key === 'string') return 'own';
  throw invalid(`idempotencyKey is ${quoted(key)}. Allowed: a string, or false.`);
}

function itemOf({ receipt, action, isSent, ...rest }: SettleRequest): object {
  if (!('reason' in rest && rest.reason)) return { ...receipt, ...rest };
  // Of one item; a reason of any kind must not make the server reject all of them.
  const reason = textOf(rest.reason).slice(0, MAX_REASON_LENGTH).toWellFormed();
  return { ...receipt, ...rest, reason };
}

/** The server's time, to the second. */
export function timeIn(headers: Headers): number | null {
  return Date.parse(headers.get('date') ?? '') || null;
}
