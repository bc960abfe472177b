export interface UserLimits {
  /** Of all users together. */
  readonly total: number;
  readonly perUser: number;
  /** What one user is allowed although others have reached `total`; defaults to a thousandth of it. */
  readonly guaranteed?: number;
}

/**
 * Counts what users have that lasts, such as blocked calls or connections, and rejects more than the limits allow.
 * Whatever others have, a user who has none may have one, and all that is guaranteed. The user null is the
 * node itself, which is not counted.
 */
export class UserLimit {
  readonly #limits: UserLimits;
  readonly #rejection: (limits: UserLimits) => Error;
  readonly #byUser = new Map<string, number>();
  #total = 0;
  /** Makes the error of every rejection from now on; null: it is open. */
  #closed: (() => Error) | null = null;

  constructor(limits: UserLimits, rejection: (limits: UserLimits) => Error) {
    this.#limits = limits;
    this.#rejection = rejection;
  }

  get total(): number {
    return this.#total;
  }

  /** @throws the rejection, or what `close` was given */
  enter(user: string | null, count = 1): void {
    if (this.#closed !== null) throw this.#closed();
    if (user === null) return;
    const own = this.#byUser.get(user) ?? 0;
    const { total, perUser, guaranteed = total / 1000 } = this.#limits;
    const isGuaranteed = own === 0 || own + count <= guaranteed;
    if ((this.#total + count > total && !isGuaranteed) || own + count > perUser) {
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

  /** From now on everybody is rejected, the node itself as well. */
  close(error: () => Error): void {
    this.#closed = error;
  }
}
