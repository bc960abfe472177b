import type { Clock } from '../util/clock.ts';

export interface FailureLimitOptions {
  readonly clock: Clock;
  /** Failures allowed at once. */
  readonly burst: number;
  /** One more is allowed after each of these. */
  readonly refillMs: number;
  /** Keys remembered at most; the one that failed longest ago is forgotten first. */
  readonly maxKeys: number;
}

interface Bucket {
  /** Below 0 for each check that waits until it may begin. */
  tokens: number;
  refilledAt: number;
}

/**
 * A token bucket per key. A check of a password spends a token when it begins and refunds it if the
 * password is right, so that only failures count, even if many checks run at once.
 */
export class FailureLimit {
  readonly #options: FailureLimitOptions;
  readonly #buckets = new Map<string, Bucket>();

  constructor(options: FailureLimitOptions) {
    this.#options = options;
  }

  /** 0 if a check may begin; otherwise how long until one may, behind those that wait already. */
  waitMs(key: string): number {
    const bucket = this.#refilled(key);
    if (bucket === undefined || bucket.tokens >= 1) return 0;
    const { clock, refillMs } = this.#options;
    return Math.max(1, Math.ceil(bucket.refilledAt + refillMs * (1 - bucket.tokens) - clock.monotonic()));
  }

  spend(key: string): void {
    const bucket = this.#refilled(key) ?? {
      tokens: this.#options.burst,
      refilledAt: this.#options.clock.monotonic(),
    };
    bucket.tokens -= 1;
    this.#buckets.delete(key);
    this.#buckets.set(key, bucket);
    if (this.#buckets.size <= this.#options.maxKeys) return;
    for (const oldest of this.#buckets.keys()) {
      this.#buckets.delete(oldest);
      return;
    }
  }

  refund(key: string): void {
    const bucket = this.#refilled(key);
    if (bucket === undefined) return;
    bucket.tokens += 1;
    if (bucket.tokens >= this.#options.burst) this.#buckets.delete(key);
  }

  /** Undefined if the bucket is full; full buckets are not kept. */
  #refilled(key: string): Bucket | undefined {
    const bucket = this.#buckets.get(key);
    if (bucket === undefined) return undefined;
    const { clock, burst, refillMs } = this.#options;
    const gained = Math.floor((clock.monotonic() - bucket.refilledAt) / refillMs);
    if (gained > 0) {
      bucket.tokens += gained;
      bucket.refilledAt += gained * refillMs;
    }
    if (bucket.tokens < burst) return bucket;
    this.#buckets.delete(key);
    return undefined;
  }
}
