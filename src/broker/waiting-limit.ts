import { QuaysideError } from '../model/errors.ts';

export interface WaitingLimits {
  /** Blocked calls on this node. */
  readonly total: number;
  /** Blocked calls of one user on this node. */
  readonly perUser: number;
}

/**
 * Counts the blocked calls of this node, or others that last, and rejects more than the limits allow (reliability, S18).
 * The user null is an exchange.
 */
export class WaitingLimit {
  readonly #limits: WaitingLimits;
  readonly #rejection: (limits: WaitingLimits) => QuaysideError;
  readonly #byUser = new Map<string, number>();
  #total = 0;
  #closed = false;

  constructor(limits: WaitingLimits, rejection = tooManyCalls) {
    this.#limits = limits;
    this.#rejection = rejection;
  }

  get waiting(): number {
    return this.#total;
  }

  /**
   * @param count a call counts once for each queue on which it waits
   * @throws QuaysideError `shutting-down`, and that of the limit: `too-many-consumers` if no other was given
   */
  enter(user: string | null, count = 1): void {
    if (this.#closed) throw shuttingDown();
    if (user === null) return;
    const own = this.#byUser.get(user) ?? 0;
    if (this.#total + count > this.#limits.total || own + count > this.#limits.perUser) {
      throw this.#rejection(this.#limits);
    }
    this.#total += count;
    this.#byUser.set(user, own + count);
  }

  exit(user: string | null, count = 1): void {
    if (user === null) return;
    this.#total -= count;
    const own = (this.#byUser.get(user) ?? 0) - count;
    if (own > 0) this.#byUser.set(user, own);
    else this.#byUser.delete(user);
  }

  /** From now on every call is rejected. */
  close(): void {
    this.#closed = true;
  }
}

function tooManyCalls({ total, perUser }: WaitingLimits): QuaysideError {
  return new QuaysideError(
    'too-many-consumers',
    `Too many calls wait already: at most ${total} on this node and ${perUser} for one user.`,
    { retryAfterMs: 1000 },
  );
}

export function shuttingDown(): QuaysideError {
  return new QuaysideError(
    'shutting-down',
    'This node is stopping; ask another one, or this one again soon.',
    {
      retryAfterMs: 1000,
    },
  );
}
