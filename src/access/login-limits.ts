import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { putLast } from '../util/put-last.ts';

/** The user name and network of a login attempt. */
export interface Origin {
  readonly name: string;
  /** The block of addresses, see `addressBlock`. */
  readonly network: string;
  /** Whether this name has a recent login from this network, see `KnownLogins`. */
  readonly isKnown: boolean;
}

/** Maximum delay of an attempt; if it had to wait longer, it is rejected. */
const MAX_DELAY_MS = 5_000;
/** Maximum keys of a limit; beyond this, the key with the oldest failure is evicted. */
const MAX_KEYS = 10_000;

/** Failures of one name from one network, caused by guessing or by a program with a wrong password. */
const PAIR = { burst: 10, refillMs: 5_000 };
/** The same for a pair with a recent login. Its attempts wait before they are rejected, so it refills faster. */
const KNOWN_PAIR = { burst: 10, refillMs: 2_000 };
/** Maximum distinct names that fail in one network. */
const MAX_NAMES = 30;
/** How long a name counts after its last failure. */
const NAME_MS = 5 * 60_000;
/** Beyond this, the network with the oldest failure is evicted. */
const MAX_NETWORKS = 2_000;
/** Failures of one name from all networks together. */
const NAME = { burst: 100, refillMs: 1_000 };

/**
 * Limits how often passwords may be guessed (docs/adr/0008-failed-logins.md), without locking out the real user:
 * - Each (name, network) has its own limit: failures elsewhere, or of other names, do not count.
 * - A pair with a recent login is exempt from the limits that others can exhaust, those of its name and of its network.
 *   Its own limit delays attempts before it rejects them.
 * - The limit of a name alone is much higher, and delays attempts before it rejects them.
 */
export class LoginLimits {
  readonly #clock: Clock;
  readonly #pairs: FailureLimit;
  readonly #knownPairs: FailureLimit;
  readonly #names: FailureLimit;
  readonly #networks: FailedNameLimit;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#pairs = new FailureLimit(clock, PAIR);
    this.#knownPairs = new FailureLimit(clock, KNOWN_PAIR);
    this.#names = new FailureLimit(clock, NAME);
    this.#networks = new FailedNameLimit(clock);
  }

  /**
   * Delays the attempt if necessary, and resolves when it may request a check. The attempt counts toward the delaying
   * limit until `release`, so that concurrent attempts are limited as well.
   * @throws QuaysideError `too-many-attempts`
   */
  async admit(origin: Origin): Promise<void> {
    this.#rejectLimited(origin);
    const { limit, key } = this.#delayingLimit(origin);
    const waitMs = limit.waitMs(key);
    rejectAbove(MAX_DELAY_MS, waitMs);
    limit.spend(key);
    if (waitMs > 0) await new Promise<void>((resolve) => this.#clock.after(waitMs, resolve));
  }

  /** Undoes `admit` for an attempt that needs no check. */
  release(origin: Origin): void {
    const { limit, key } = this.#delayingLimit(origin);
    limit.refund(key);
  }

  /**
   * Counts a starting check as a failure until `refund`. Tests the limits again, because other attempts may have failed
   * while this one waited.
   * @throws QuaysideError `too-many-attempts`
   */
  spend(origin: Origin): void {
    this.#rejectLimited(origin);
    if (origin.isKnown) return;
    this.#pairs.spend(pairOf(origin));
    this.#networks.add(origin.network, origin.name);
  }

  /** Undoes `admit` and `spend` after a correct password. */
  refund(origin: Origin): void {
    this.release(origin);
    if (origin.isKnown) return;
    this.#pairs.refund(pairOf(origin));
    this.#networks.remove(origin.network, origin.name);
  }

  #rejectLimited(origin: Origin): void {
    const { isKnown, network, name } = origin;
    if (isKnown) return;
    rejectAbove(0, this.#pairs.waitMs(pairOf(origin)));
    rejectAbove(0, this.#networks.waitMs(network, name));
  }

  /** The limit that delays the attempt before it rejects it. */
  #delayingLimit(origin: Origin): { limit: FailureLimit; key: string } {
    if (origin.isKnown) return { limit: this.#knownPairs, key: pairOf(origin) };
    return { limit: this.#names, key: origin.name };
  }
}

function pairOf({ name, network }: Origin): string {
  return JSON.stringify([name, network]);
}

function rejectAbove(maxMs: number, waitMs: number): void {
  if (waitMs <= maxMs) return;
  throw new QuaysideError('too-many-attempts', 'Too many logins failed; wait before the next one.', {
    retryAfterMs: waitMs,
  });
}

interface Bucket {
  /** Negative while checks wait, by one for each. */
  tokens: number;
  refilledAt: number;
}

/**
 * A token bucket per key. A password check spends a token when it starts and refunds it if the password is correct, so
 * that only failures count, even with concurrent checks.
 */
class FailureLimit {
  readonly #clock: Clock;
  readonly #burst: number;
  readonly #refillMs: number;
  readonly #buckets = new Map<string, Bucket>();

  /** @param bounds the maximum failures in a burst, and the interval after which one more is allowed */
  constructor(clock: Clock, { burst, refillMs }: { readonly burst: number; readonly refillMs: number }) {
    this.#clock = clock;
    this.#burst = burst;
    this.#refillMs = refillMs;
  }

  /** Milliseconds until another check may start, after those already waiting; 0: now. */
  waitMs(key: string): number {
    const bucket = this.#refilled(key);
    if (bucket === undefined || bucket.tokens >= 1) return 0;
    const readyAt = bucket.refilledAt + this.#refillMs * (1 - bucket.tokens);
    return Math.max(1, Math.ceil(readyAt - this.#clock.monotonic()));
  }

  spend(key: string): void {
    const bucket = this.#refilled(key) ?? { tokens: this.#burst, refilledAt: this.#clock.monotonic() };
    bucket.tokens -= 1;
    putLast(this.#buckets, key, bucket, MAX_KEYS);
  }

  refund(key: string): void {
    const bucket = this.#refilled(key);
    if (bucket === undefined) return;
    bucket.tokens += 1;
    if (bucket.tokens >= this.#burst) this.#buckets.delete(key);
  }

  /** Undefined if the bucket is full; full buckets are not stored. */
  #refilled(key: string): Bucket | undefined {
    const bucket = this.#buckets.get(key);
    if (bucket === undefined) return undefined;
    const refilled = Math.floor((this.#clock.monotonic() - bucket.refilledAt) / this.#refillMs);
    if (refilled > 0) {
      bucket.tokens += refilled;
      bucket.refilledAt += refilled * this.#refillMs;
    }
    if (bucket.tokens < this.#burst) return bucket;
    this.#buckets.delete(key);
    return undefined;
  }
}

/**
 * Counts the distinct names that recently failed in each network. A program that retries with a stale password remains
 * one name, whereas an attacker who tries one password with many names is counted many times.
 */
class FailedNameLimit {
  readonly #clock: Clock;
  /** Last failure by network and name, monotonic ms. Both maps are ordered, oldest first. */
  readonly #networks = new Map<string, Map<string, number>>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** 0 if an attempt of the name is allowed, otherwise milliseconds until one more name may fail in this network. */
  waitMs(network: string, name: string): number {
    const names = this.#recent(network);
    if (names === undefined || names.size < MAX_NAMES || names.has(name)) return 0;
    const [oldest = 0] = names.values();
    return Math.max(1, Math.ceil(oldest + NAME_MS - this.#clock.monotonic()));
  }

  add(network: string, name: string): void {
    const names = this.#recent(network) ?? new Map<string, number>();
    names.delete(name);
    names.set(name, this.#clock.monotonic());
    putLast(this.#networks, network, names, MAX_NETWORKS);
  }

  remove(network: string, name: string): void {
    const names = this.#networks.get(network);
    names?.delete(name);
    if (names?.size === 0) this.#networks.delete(network);
  }

  #recent(network: string): Map<string, number> | undefined {
    const names = this.#networks.get(network);
    if (names === undefined) return undefined;
    const since = this.#clock.monotonic() - NAME_MS;
    for (const [name, at] of names) {
      if (at > since) return names;
      names.delete(name);
    }
    this.#networks.delete(network);
    return undefined;
  }
}
