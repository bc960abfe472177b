import { hash, randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { FrontEndLog } from '../util/log.ts';
import { putLast } from '../util/put-last.ts';
import type { Account } from './account.ts';
import { bearerToken } from './api-tokens.ts';
import { addressBlock } from './networks.ts';
import {
  type Argon2Hash,
  CONTROL,
  DEFAULT_COST,
  decoyHash,
  PASSWORD_BYTES,
  passwordMatches,
  type StoredPassword,
} from './password.ts';
import type { Authenticator, User } from './user.ts';

interface AuthenticatorOptions {
  readonly accounts: ReadonlyMap<string, Account>;
  readonly clock: Clock;
  /** For what an operator should know of logins (docs/operate/log-events.md, "Logins and rights"). */
  readonly log: Pick<FrontEndLog, 'debug' | 'warn'>;
  /** Which names logged in from which networks lately; none if it is not given. */
  readonly known?: KnownPairs;
  /** Not given: no token is accepted. */
  readonly tokens?: TokenLogins;
  /** How passwords are checked, for tests of what is done about the outcome. */
  readonly verify?: typeof passwordMatches;
}

/** Names that logged in from a network lately, see `KnownLogins`. */
interface KnownPairs {
  has(name: string, network: string): boolean;
  add(name: string, network: string): void;
}

/** Credentials that stand for a user, see `ApiTokens`. */
interface TokenLogins {
  login(secret: string, name: string | null): User | null;
  refresh(secret: string): Promise<boolean>;
  recall(secret: string): User | null;
  isToken(user: User): boolean;
  isLive(user: User): boolean;
}

/** Counts since the start, for metrics. */
interface LoginCounts {
  accepted: number;
  failed: number;
  /** Rejected unchecked, for too many failures before. */
  limited: number;
}

/** How long credentials that were right are accepted without a hash after their last use. */
const RECALL_MS = 5 * 60_000;
/** How long they pass the limits on failures: who sends them does not guess. */
const PROVEN_MS = 30 * 24 * 3_600_000;
/** A use renews an entry after this long: not with each request. */
const RENEW_MS = 10_000;
/** Credentials that were wrong are wrong until the users change; so many are remembered. */
const MAX_WRONG = 10_000;
/** How often the log says that the same wrong credentials still come. */
const WRONG_LOG_MS = 60_000;

const HASHES_AT_ONCE = 2;
/** Checks that wait: of clients that were right before, and of all others. */
const HASHES_WAITING = 64;

interface Remembered {
  user: User;
  usedAt: number;
}

interface Wrong {
  loggedAt: number;
  /** Times that they came since they were logged. */
  repeats: number;
}

/** Users with passwords from the configuration (docs/operate/security.md). */
export class PasswordAuthenticator implements Authenticator {
  readonly counts: LoginCounts = { accepted: 0, failed: 0, limited: 0 };
  readonly #clock: Clock;
  readonly #log: Pick<FrontEndLog, 'debug' | 'warn'>;
  readonly #known: KnownPairs;
  /**
   * Hashing a password fills one of libuv's four threads for tens of milliseconds; the rest of the process needs the
   * others. Clients that were right before are one key and all others another, so that clients that were not, however
   * many networks they come from, keep no user out who logged in lately.
   */
  readonly #hashes = new ConcurrencyLimit({
    perKey: HASHES_AT_ONCE,
    total: HASHES_AT_ONCE,
    maxWaiting: HASHES_WAITING,
    rejection: () =>
      new QuaysideError('overloaded', 'Too many logins wait to be checked; try again soon.', {
        retryAfterMs: 1000,
      }),
  });
  readonly #limits: LoginLimits;
  readonly #tokens: TokenLogins;
  readonly #verify: typeof passwordMatches;
  /** Keys are digests with this secret, so that the maps hold no password and lookup time reveals nothing. */
  readonly #secret = randomBytes(32).toString('base64url');
  /** One entry for each (name, password) that was right: no more than there are users. */
  readonly #remembered = new Map<string, Remembered>();
  /** A client that retries with a stale password costs no hash and uses up no limit. The last one used is last. */
  readonly #wrong = new Map<string, Wrong>();
  /** Checks that run or wait; the same credentials from the same network share one. */
  readonly #checks = new Map<string, Promise<User>>();
  /** Of every user who may still be logged in. */
  readonly #passwords = new WeakMap<User, StoredPassword>();
  #accounts: ReadonlyMap<string, Account>;
  #decoy: Argon2Hash;

  constructor({
    accounts,
    clock,
    log,
    known = NONE_KNOWN,
    tokens = NO_TOKENS,
    verify = passwordMatches,
  }: AuthenticatorOptions) {
    this.#tokens = tokens;
    this.#verify = verify;
    this.#clock = clock;
    this.#log = log;
    this.#known = known;
    this.#accounts = accounts;
    this.#decoy = decoyFor(accounts);
    this.#limits = new LoginLimits(clock);
    this.#keepPasswords();
  }

  /**
   * From now on these are the users. Logged-in users stay so under their new rights, or failures of others would
   * lock them out; only if the password changed, or the user is gone, their credentials prove nothing any more.
   */
  replaceAccounts(accounts: ReadonlyMap<string, Account>): void {
    this.#accounts = accounts;
    this.#decoy = decoyFor(accounts);
    this.#checks.clear();
    this.#wrong.clear();
    this.#keepPasswords();
    for (const [key, remembered] of this.#remembered) {
      const user = this.renew(remembered.user);
      if (user === null) this.#remembered.delete(key);
      else remembered.user = user;
    }
  }

  /** The users by name. */
  get accounts(): ReadonlyMap<string, Account> {
    return this.#accounts;
  }

  /** As {@link RenewUser}. */
  renew(user: User): User | null {
    // Its rights follow those of its owner by themselves; another password of the owner changes nothing about it.
    if (this.#tokens.isToken(user)) return this.#tokens.isLive(user) ? user : null;
    const account = this.#accounts.get(user.name);
    if (account === undefined || account.user === user) return account?.user ?? null;
    return isDeepStrictEqual(account.password, this.#passwords.get(user)) ? account.user : null;
  }

  /** The user of a name, whether logged in or not; null if there is none. */
  userNamed(name: string): User | null {
    return this.#accounts.get(name)?.user ?? null;
  }

  /** The account of a name; null if there is no such user. */
  accountNamed(name: string): Account | null {
    return this.#accounts.get(name) ?? null;
  }

  loginWithoutPassword(name: string | null, address: string): User | null {
    const user = name === null ? null : this.userNamed(name);
    if (user !== null) this.#noteAccepted(user, address);
    else {
      const key = this.#digest(JSON.stringify(['no password', name, addressBlock(address)]));
      this.#noteFailed(key, name ?? '', address);
    }
    return user;
  }

  recall(authorization: string): User | null {
    const part = credentialsPart(authorization);
    if (part !== null) return this.#recallKey(this.#digest(part));
    const token = bearerToken(authorization);
    return token === null ? null : this.#tokens.recall(token);
  }

  async login(authorization: string, address: string): Promise<User> {
    const token = bearerToken(authorization);
    const credentials = token === null ? readBasic(authorization) : { name: BEARER, password: token };
    if (credentials === null || Buffer.byteLength(credentials.password) > PASSWORD_BYTES)
      throw unauthorized();
    if (Buffer.byteLength(credentials.name) > PASSWORD_BYTES) throw unauthorized();
    const key = this.#digest(credentialsPart(authorization) ?? authorization);
    const user = this.#loginByToken(key, credentials, address);
    if (user !== null) return user;
    return this.#loginByPassword(key, credentials, address);
  }

  /** Tokens are looked up before any limit: nobody guesses one, and a flood of wrong ones keeps no right one out. */
  #loginByToken(key: string, { name, password }: BasicCredentials, address: string): User | null {
    try {
      return this.#tokens.login(password, name === BEARER ? null : name);
    } catch (error) {
      this.#noteFailed(key, name, address);
      throw error;
    }
  }

  /** Unknown tokens come here as well, as the password of nobody, so that they have the limits of wrong passwords. */
  async #loginByPassword(key: string, credentials: BasicCredentials, address: string): Promise<User> {
    for (;;) {
      const accounts = this.#accounts;
      const user = await this.#login(key, credentials, address);
      // If users were replaced while the hash ran, the new definitions decide.
      if (accounts === this.#accounts) return user;
    }
  }

  #keepPasswords(): void {
    for (const { user, password } of this.#accounts.values()) this.#passwords.set(user, password);
  }

  async #login(key: string, credentials: BasicCredentials, address: string): Promise<User> {
    const user = this.#recallKey(key);
    if (user !== null) return user;
    this.#rejectIfWrong(key, credentials.name, address);
    const network = addressBlock(address);
    // Credentials that were right are no guess: no limit applies to them.
    const origin = this.#remembered.has(key)
      ? null
      : { name: credentials.name, network, isKnown: this.#known.has(credentials.name, network) };
    return this.#once(`${key} ${network}`, async () => {
      if (origin !== null) await this.#limited(() => this.#limits.approach(origin));
      let isChecked = false;
      try {
        // Behind the limits: a flood of wrong tokens must not make the engines list theirs.
        const isRefreshed = await this.#tokens.refresh(credentials.password);
        const byToken = isRefreshed ? this.#loginByToken(key, credentials, address) : null;
        if (byToken !== null) return byToken;
        return await this.#hashes.run(origin?.isKnown === false ? 'new' : 'known', async () => {
          // The turn may come after clients from another network sent the same credentials.
          const recalled = this.#recallKey(key);
          if (recalled !== null) return recalled;
          if (origin !== null) await this.#limited(() => this.#limits.spend(origin));
          isChecked = true;
          return this.#check(key, credentials, { address, network, origin });
        });
      } finally {
        if (origin !== null && !isChecked) this.#limits.release(origin);
      }
    });
  }

  async #once(key: string, check: () => Promise<User>): Promise<User> {
    const running = this.#checks.get(key) ?? check();
    this.#checks.set(key, running);
    try {
      return await running;
    } finally {
      if (this.#checks.get(key) === running) this.#checks.delete(key);
    }
  }

  async #check(
    key: string,
    { name, password }: BasicCredentials,
    from: { readonly address: string; readonly network: string; readonly origin: Origin | null },
  ): Promise<User> {
    const accounts = this.#accounts;
    const account = accounts.get(name) ?? null;
    const matches = await this.#verify(Buffer.from(password), account?.password ?? null, this.#decoy);
    if (matches && account !== null) {
      if (from.origin !== null) this.#limits.refund(from.origin);
      this.#noteAccepted(account.user, from.address);
      this.#known.add(name, from.network);
      if (accounts === this.#accounts) this.#remember(key, account.user);
      return account.user;
    }
    this.counts.failed += 1;
    if (accounts === this.#accounts) this.#rememberWrong(key);
    this.#logFailure(name, from.address);
    throw unauthorized();
  }

  async #limited<T>(begin: () => T | Promise<T>): Promise<T> {
    try {
      return await begin();
    } catch (error) {
      this.counts.limited += 1;
      throw error;
    }
  }

  #rejectIfWrong(key: string, name: string, address: string): void {
    if (!this.#wrong.has(key)) return;
    this.#noteFailed(key, name, address);
    throw unauthorized();
  }

  #noteAccepted({ name: user }: User, address: string): void {
    this.counts.accepted += 1;
    this.#log.debug({ event: 'login', user, address }, 'a login was accepted');
  }

  /** Counts a failed login, and logs it if the same one has not been logged lately. */
  #noteFailed(key: string, name: string, address: string): void {
    this.counts.failed += 1;
    const wrong = this.#wrong.get(key);
    if (wrong === undefined) {
      this.#rememberWrong(key);
      this.#logFailure(name, address);
      return;
    }
    this.#wrong.delete(key);
    this.#wrong.set(key, wrong);
    wrong.repeats += 1;
    const now = this.#clock.monotonic();
    if (now - wrong.loggedAt < WRONG_LOG_MS) return;
    this.#logFailure(name, address, wrong.repeats);
    wrong.loggedAt = now;
    wrong.repeats = 0;
  }

  /** @param repeats how often the same credentials came since the last line */
  #logFailure(name: string, address: string, repeats?: number): void {
    // A name that is no user's may be a password in the wrong field: it is not logged.
    const user = this.#accounts.get(name)?.user.name ?? null;
    const fields = { event: 'login-failed', user, address, ...(repeats !== undefined && { repeats }) };
    this.#log.warn(fields, 'a login failed');
  }

  #recallKey(key: string): User | null {
    const remembered = this.#remembered.get(key);
    if (remembered === undefined) return null;
    const unusedMs = this.#clock.monotonic() - remembered.usedAt;
    if (unusedMs < RENEW_MS) return remembered.user;
    if (unusedMs >= PROVEN_MS) this.#remembered.delete(key);
    if (unusedMs >= RECALL_MS) return null;
    this.#remember(key, remembered.user);
    return remembered.user;
  }

  #remember(key: string, user: User): void {
    this.#remembered.set(key, { user, usedAt: this.#clock.monotonic() });
  }

  #rememberWrong(key: string): void {
    putLast(this.#wrong, key, { loggedAt: this.#clock.monotonic(), repeats: 0 }, MAX_WRONG);
  }

  #digest(text: string): string {
    return hash('sha256', this.#secret + text, 'base64');
  }
}

/** Stands for the name that comes with no token. No user has it: names have no colon. */
const BEARER = 'bearer:';

const NO_TOKENS: TokenLogins = {
  login: () => null,
  refresh: async () => false,
  recall: () => null,
  isToken: () => false,
  isLive: () => false,
};

const NONE_KNOWN: KnownPairs = { has: () => false, add: () => {} };

/** The decoy costs what checking a real user costs: the dearest one, where they differ. */
function decoyFor(accounts: ReadonlyMap<string, Account>): Argon2Hash {
  let cost = DEFAULT_COST;
  for (const { password } of accounts.values()) {
    if (password.kind !== 'hash') continue;
    const { memoryKiB, passes, parallelism } = password.argon2;
    if (memoryKiB * passes > cost.memoryKiB * cost.passes) cost = { memoryKiB, passes, parallelism };
  }
  return decoyHash(cost);
}

function unauthorized(): QuaysideError {
  return new QuaysideError('unauthorized', 'The user name, the password or the token is wrong.');
}

/** A longer `Authorization` header is rejected before anything is decoded. */
const HEADER_BYTES = 1024;

interface BasicCredentials {
  readonly name: string;
  readonly password: string;
}

const BASIC = /^basic +([A-Za-z0-9+/]+={0,2})$/i;
const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * The user name and password of a Basic header (RFC 7617), or null if it is anything else: another
 * scheme, base64 that is not canonical, bytes that are not UTF-8, control characters, no colon.
 */
export function readBasic(authorization: string): BasicCredentials | null {
  if (authorization.length > HEADER_BYTES) return null;
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return null;
  const bytes = Buffer.from(encoded, 'base64');
  // One spelling per credentials: otherwise one password would have several, each remembered on its own.
  if (bytes.toString('base64') !== encoded) return null;
  const text = decodeUtf8(bytes);
  const colon = text?.indexOf(':') ?? -1;
  if (text === null || colon < 1 || CONTROL.test(text)) return null;
  const password = text.slice(colon + 1);
  if (Buffer.byteLength(password) > PASSWORD_BYTES) return null;
  return { name: text.slice(0, colon), password };
}

/**
 * The credentials part of a Basic header, the same text for all spellings of the scheme and the spaces after it; null
 * for a header that is longer than one may be, or has none. It is not checked: see `readBasic`.
 */
function credentialsPart(authorization: string): string | null {
  if (authorization.length > HEADER_BYTES) return null;
  // As nearly every client spells it; this is asked for each request.
  if (authorization.startsWith('Basic ') && authorization.charCodeAt(6) !== SPACE)
    return authorization.slice(6);
  return BASIC.exec(authorization)?.[1] ?? null;
}

const SPACE = 0x20;

function decodeUtf8(bytes: Buffer): string | null {
  try {
    return utf8.decode(bytes);
  } catch {
    return null;
  }
}

/** Where an attempt to log in comes from, and what is known of it. */
interface Origin {
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
 * How often passwords may be guessed (docs/adr/0008-failed-logins.md). Each limit leaves a way in for the user itself:
 * - (name, network) has a limit of its own: failures elsewhere, or of other names, do not count.
 * - A pair that was right lately is not subject to what anybody can use up, the limits of its name and of its
 *   network. Its own limit slows it down before it rejects.
 * - The limit of a name alone is far above, and slows down before it rejects.
 */
class LoginLimits {
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
    putLast(this.#buckets, key, bucket, this.#options.maxKeys);
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
    putLast(this.#networks, network, names, this.#options.maxNetworks);
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
