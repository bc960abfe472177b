import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { FailedNames } from './failed-names.ts';
import { FailureLimit } from './failure-limit.ts';

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
 * - A pair that was right lately is not subject to what strangers can use up, the limits of its name and of its
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
