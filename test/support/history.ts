import { hash } from 'node:crypto';

/**
 * What clients of a queue saw, one record per operation, for the checker in `history-check.ts`.
 *
 * Two clocks on purpose: `…At` is monotonic (`performance.now()`) and decides what came before what;
 * `…WallAt` is wall time, comparable with maturities and lease ends, which are the server's.
 */
export type Operation = InsertOperation | TakeOperation | SettleOperation | CrashOperation | OutageOperation;

/**
 * `ok`: answered yes. `fail`: answered no, or never sent: nothing happened. `unknown`: sent, and no answer
 * or one that does not say (a reset, a timeout, a 5xx that is not a refusal).
 */
export type Outcome = 'ok' | 'fail' | 'unknown';

interface Timed {
  readonly client: string;
  /** Rises with every operation of a client. */
  readonly seq: number;
  /** Namespace and queue as one string. */
  readonly queue: string;
  readonly invokedAt: number;
  readonly endedAt: number;
  readonly invokedWallAt: number;
  readonly endedWallAt: number;
  readonly outcome: Outcome;
  /**
   * What `outcome` was concluded from: the status of the reply, with its body if it is an error, or why there was none.
   */
  readonly reply?: string;
}

export interface InsertOperation extends Timed {
  readonly kind: 'insert';
  /** Unique in the history, but for repeats of one insert under one idempotency key. */
  readonly value: string;
  readonly id: string | null;
  /** The earliest wall moment at which the element may be handed out. */
  readonly eligibleWallAt: number;
  readonly tries: number;
  /** Groups that must get it; `['']` on a plain queue. */
  readonly groups: readonly string[];
  readonly content: Content;
}

export interface TakeOperation extends Timed {
  readonly kind: 'pop' | 'reserve';
  readonly group: string;
  /** What was handed out; null where nothing was, or nobody knows. */
  readonly delivery: Handed | null;
}

export interface Handed {
  /** Null where the value could not be read from what came. */
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
  /** The token that was sent; null where the settle was by id alone. */
  readonly token: string | null;
  /** Rollback: the earliest wall moment at which the element may be handed out again. */
  readonly eligibleWallAt: number;
}

/** The server was killed; `endedAt` is when it was seen to be gone. */
export interface CrashOperation extends Timed {
  readonly kind: 'crash';
}

/**
 * A node could not reach the engine, or its replies were lost. What it reserved then nobody received, and the lease may
 * end, which counts a try, before that node can undo it.
 */
export interface OutageOperation extends Timed {
  readonly kind: 'outage';
}

/** What a consumer must get back, in a form that compares cheaply. */
export interface Content {
  readonly bytes: number;
  /** Of the body. */
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

/** Gathers operations of all clients, in the order in which they ended. */
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
