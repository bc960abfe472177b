export interface UserLimits {
  /** Maximum of all users together. */
  readonly total: number;
  readonly perUser: number;
  /** What one user may have even if others have reached `total`; defaults to a thousandth of it. */
  readonly guaranteed?: number;
}

/**
 * Counts resources that users hold, such as blocked calls or connections, and rejects those beyond the limits. However
 * much others hold, each user may have one, and up to `guaranteed`. The user null is the node itself, which is not
 * counted.
 */
export class UserLimit {
  readonly #limits: UserLimits;
  readonly #rejection: (limits: UserLimits) => Error;
  readonly #byUser = new Map<string, number>();
  #total = 0;
  /** Creates the error for all calls after `close`; null before. */
  #closed: (() => Error) | null = null;

  constructor(limits: UserLimits, rejection: (limits: UserLimits) => Error) {
    this.#limits = limits;
    this.#rejection = rejection;
  }

  get total(): number {
    return this.#total;
  }

  /** @throws the error of the rejection, or the one given to `close` */
  enter(user: string | null, count = 1): void {
    if (this.#closed !== null) throw this.#closed();
    if (user === null) return;
    const held = this.#byUser.get(user) ?? 0;
    const { total, perUser, guaranteed = total / 1000 } = this.#limits;
    const isGuaranteed = held === 0 || held + count <= guaranteed;
    if ((this.#total + count > total && !isGuaranteed) || held + count > perUser) {
      throw this.#rejection(this.#limits);
    }
    this.#total += count;
    this.#byUser.set(user, held + count);
  }

  exit(user: string | null, count = 1): void {
    if (user === null) return;
    this.#total -= count;
    const held = (this.#byUser.get(user) ?? 0) - count;
    if (held > 0) this.#byUser.set(user, held);
    else this.#byUser.delete(user);
  }

  /** Rejects all further calls, including those of the node itself. */
  close(error: () => Error): void {
    this.#closed = error;
  }
}
