import type { Clock } from '../model/clock.ts';

export interface FailureLimitOptions {
  readonly clock: Clock;
  /** Failures allowed at once. */
  readonly burst: number;
  /** One more is allowed after each of these. */
  readonly refillMs: number;
  /** Keys remembered at most; the one that failed longest ago is forgotten first. */
  readonly keys: number;
}

interface Bucket {
  tokens: number;
  refilledAt: number;
}

/**
 * A token bucket per key. A check of a password takes a token when it begins and gives it back when the
 * password was right, so that only failures count, also when many run at once.
 */
export class FailureLimit {
  readonly #options: FailureLimitOptions;
  readonly #buckets = new Map<string, Bucket>();

  constructor(options: FailureLimitOptions) {
    this.#options = options;
  }

  /** 0 where a check may begin; otherwise how long until one may. */
  waitMs(key: string): number {
    const bucket = this.#refilled(key);
    if (bucket === undefined || bucket.tokens >= 1) return 0;
    const { clock, refillMs } = this.#options;
    return Math.max(1, Math.ceil(bucket.refilledAt + refillMs - clock.monotonic()));
  }

  take(key: string): void {
    const bucket = this.#refilled(key) ?? {
      tokens: this.#options.burst,
      refilledAt: this.#options.clock.monotonic(),
    };
    bucket.tokens -= 1;
    this.#buckets.delete(key);
    this.#buckets.set(key, bucket);
    if (this.#buckets.size <= this.#options.keys) return;
    for (const oldest of this.#buckets.keys()) {
      this.#buckets.delete(oldest);
      return;
    }
  }

  giveBack(key: string): void {
    const bucket = this.#refilled(key);
    if (bucket === undefined) return;
    bucket.tokens += 1;
    if (bucket.tokens >= this.#options.burst) this.#buckets.delete(key);
  }

  /** Undefined where the bucket is full, and so not kept. */
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
