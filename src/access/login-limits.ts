import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';

/** Where an attempt to log in comes from, and what is known of it. */
export interface Origin {
  readonly name: string;
  /** The block of addresses, see `addressBlock`. */
  readonly network: string;
  /** Whether this name logged in from this network lately, see `KnownLogins`. */
  readonly isKnown: boolean;
}

/** The longest that an attempt is slowed down; one that would wait longer is rejected. */
const MAX_WAIT_MS = 5_000;
const MAX_KEYS = 10_000;

/** Failures of one name from one network: a guess, or a program with a wrong password. */
const PAIR = { burst: 10, refillMs: 5_000 };
/** The same for a pair that was right before. It waits for its turn, so its turn comes sooner. */
const KNOWN_PAIR = { burst: 10, refillMs: 2_000 };
/** Names that fail in one network. */
const NETWORK = { maxNames: 30, windowMs: 5 * 60_000, maxNetworks: 2_000 };
/** Failures of one name from all networks together. */
const NAME = { burst: 100, refillMs: 1_000 };

/**
 * How often passwords may be guessed (reliability, S4). Each limit leaves a way in for the user itself:
 * - (name, network) has a limit of its own: failures elsewhere, or of other names, do not count.
 * - A pair that was right lately is not subject to what anybody can use up, the limits of its name and of its
 *   network. Its own limit slows it down before it rejects.
 * - The limit of a name alone is far above, and slows down before it rejects.
 */
export class LoginLimits {
  readonly #clock: Clock;
  readonly #pairs: FailureLimit;
  readonly #knownPairs: FailureLimit;
  readonly #names: FailureLimit;
  readonly #networks: FailedNames;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#pairs = new FailureLimit({ clock, maxKeys: MAX_KEYS, ...PAIR });
    this.#knownPairs = new FailureLimit({ clock, maxKeys: MAX_KEYS, ...KNOWN_PAIR });
    this.#names = new FailureLimit({ clock, maxKeys: MAX_KEYS, ...NAME });
    this.#networks = new FailedNames({ clock, ...NETWORK });
  }

  /**
   * Resolves when the attempt may ask for a check, after a slow-down if it needs one. From then on it counts for the
   * limit that slows down, however many ask at once; `release` takes that back.
   * @throws QuaysideError `too-many-attempts`
   */
  async approach(origin: Origin): Promise<void> {
    this.#rejectLimited(origin);
    const { limit, key } = this.#slowLimit(origin);
    const waitMs = limit.waitMs(key);
    rejectAbove(MAX_WAIT_MS, waitMs);
    limit.spend(key);
    if (waitMs > 0) await new Promise<void>((resolve) => this.#clock.after(waitMs, resolve));
  }

  /** The attempt that approached is not checked. */
  release(origin: Origin): void {
    const { limit, key } = this.#slowLimit(origin);
    limit.refund(key);
  }

  /**
   * Counts a check, which begins now, as a failure until `refund`. Its turn may come late, and others may have failed
   * while it waited.
   * @throws QuaysideError `too-many-attempts`
   */
  spend(origin: Origin): void {
    this.#rejectLimited(origin);
    if (origin.isKnown) return;
    this.#pairs.spend(pairOf(origin));
    this.#networks.add(origin.network, origin.name);
  }

  /** The password was right. */
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

  /** The limit that slows an attempt down before it rejects it. */
  #slowLimit(origin: Origin): { limit: FailureLimit; key: string } {
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

interface FailureLimitOptions {
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
class FailureLimit {
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

interface FailedNamesOptions {
  readonly clock: Clock;
  /** How long a name counts after its last failure. */
  readonly windowMs: number;
  /** Names that may fail in one network within that time. */
  readonly maxNames: number;
  /** Networks remembered at most; the one that failed longest ago is forgotten first. */
  readonly maxNetworks: number;
}

/**
 * How many names failed lately in each network. Names are counted, not failures: a program that retries with a
 * stale password is one name for ever, and a guesser that tries one password with many names is many.
 */
class FailedNames {
  readonly #options: FailedNamesOptions;
  /** By network: moments of the last failure by name. Both maps have the oldest first. */
  readonly #networks = new Map<string, Map<string, number>>();

  constructor(options: FailedNamesOptions) {
    this.#options = options;
  }

  /** 0 if the name may fail in this network; otherwise how long until one more name may. */
  waitMs(network: string, name: string): number {
    const names = this.#recent(network);
    const { maxNames, windowMs, clock } = this.#options;
    if (names === undefined || names.size < maxNames || names.has(name)) return 0;
    const [oldest = 0] = names.values();
    return Math.max(1, Math.ceil(oldest + windowMs - clock.monotonic()));
  }

  add(network: string, name: string): void {
    const names = this.#recent(network) ?? new Map<string, number>();
    names.delete(name);
    names.set(name, this.#options.clock.monotonic());
    this.#networks.delete(network);
    this.#networks.set(network, names);
    if (this.#networks.size <= this.#options.maxNetworks) return;
    const [oldest = ''] = this.#networks.keys();
    this.#networks.delete(oldest);
  }

  remove(network: string, name: string): void {
    const names = this.#networks.get(network);
    names?.delete(name);
    if (names?.size === 0) this.#networks.delete(network);
  }

  #recent(network: string): Map<string, number> | undefined {
    const names = this.#networks.get(network);
    if (names === undefined) return undefined;
    const since = this.#options.clock.monotonic() - this.#options.windowMs;
    for (const [name, at] of names) {
      if (at > since) return names;
      names.delete(name);
    }
    this.#networks.delete(network);
    return undefined;
  }
}
