import { hash } from 'node:crypto';

/**
 * Operations of the clients of a queue as the clients saw them, for the checker in `history-check.ts`.
 *
 * There are two clocks: `…At` is monotonic (`performance.now()`) and decides the order of operations; `…WallAt` is wall
 * time, comparable with maturities and lease ends, which are the server's.
 */
export type Operation = InsertOperation | TakeOperation | SettleOperation | CrashOperation | OutageOperation;

/**
 * `ok`: acknowledged. `fail`: rejected, or never sent: nothing happened. `unknown`: sent, without a reply or with one
 * that leaves it open (a reset, a timeout, a 5xx that is not a rejection).
 */
export type Outcome = 'ok' | 'fail' | 'unknown';

interface Timed {
  readonly client: string;
  /** Number of the operation, increasing for each client. */
  readonly seq: number;
  /** Namespace and queue as one string. */
  readonly queue: string;
  readonly invokedAt: number;
  readonly endedAt: number;
  readonly invokedWallAt: number;
  readonly endedWallAt: number;
  readonly outcome: Outcome;
  /** The basis of `outcome`: the status of the reply, with its body if it is an error, or why there was none. */
  readonly reply?: string;
}

export interface InsertOperation extends Timed {
  readonly kind: 'insert';
  /** Unique in the history, except for repeats of one insert with its idempotency key. */
  readonly value: string;
  readonly id: string | null;
  /** The earliest wall time at which the element may be delivered. */
  readonly eligibleWallAt: number;
  readonly tries: number;
  /** Groups that must receive it; `['']` on a plain queue. */
  readonly groups: readonly string[];
  readonly content: Content;
}

export interface TakeOperation extends Timed {
  readonly kind: 'pop' | 'reserve';
  readonly group: string;
  /** The delivered element; null if there was none, or nobody knows. */
  readonly delivery: Handed | null;
}

export interface Handed {
  /** Null if the value could not be read from the response. */
  readonly value: string | null;
  readonly id: string;
  readonly tries: number;
  readonly content: Content;
  /** Null for a pop. */
  readonly token: string | null;
  readonly leaseUntilWallAt: number | null;
}

export interface SettleOperation extends Timed {
  readonly kind: 'commit' | 'rollback';
  readonly group: string;
  readonly value: string;
  /** The token that was sent; null if the settle named only the id. */
  readonly token: string | null;
  /** For a rollback: the earliest wall time at which the element may be delivered again. */
  readonly eligibleWallAt: number;
}

/** The server was killed; `endedAt` is when it was found to be gone. */
export interface CrashOperation extends Timed {
  readonly kind: 'crash';
}

/**
 * A node could not reach the engine, or its replies were lost. No client received what it reserved then, and the lease
 * may expire, which counts a try, before that node can undo the take.
 */
export interface OutageOperation extends Timed {
  readonly kind: 'outage';
}

/** The content that a consumer must receive, in a form that is cheap to compare. */
export interface Content {
  readonly bytes: number;
  /** Digest of the body. */
  readonly digest: string;
  readonly contentType: string;
  readonly contentEncoding: string | null;
  /** `name: value`, sorted. */
  readonly headers: readonly string[];
}

export function contentOf(
  body: Uint8Array,
  contentType: string | null,
  contentEncoding: string | null,
  headers: Iterable<readonly [string, string]>,
): Content {
  return {
    bytes: body.length,
    digest: hash('sha1', body),
    contentType: contentType ?? 'application/octet-stream',
    contentEncoding,
    headers: Array.from(headers, ([name, value]) => `${name}: ${value}`).sort(),
  };
}

/** Collects the operations of all clients, in the order in which they ended. */
export class History {
  readonly operations: Operation[] = [];
  readonly #seqs = new Map<string, number>();

  record(operation: Operation): void {
    this.operations.push(operation);
  }

  /** The next operation number of a client. */
  nextSeq(client: string): number {
    const seq = (this.#seqs.get(client) ?? 0) + 1;
    this.#seqs.set(client, seq);
    return seq;
  }
}
