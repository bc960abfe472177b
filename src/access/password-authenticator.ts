import { hash, randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { Account } from './account.ts';
import { bearerToken } from './api-tokens.ts';
import { type BasicCredentials, credentialsPart, readBasic } from './basic.ts';
import { LoginLimits, type Origin } from './login-limits.ts';
import { addressBlock } from './networks.ts';
import {
  type Argon2Hash,
  DEFAULT_COST,
  decoyHash,
  PASSWORD_BYTES,
  passwordMatches,
  type StoredPassword,
} from './password.ts';
import type { Authenticator, User } from './user.ts';

export interface AuthenticatorOptions {
  readonly accounts: ReadonlyMap<string, Account>;
  readonly clock: Clock;
  readonly log: AccessLog;
  /** Which names logged in from which networks lately; none if it is not given. */
  readonly known?: KnownPairs;
  /** Not given: no token is accepted. */
  readonly tokens?: TokenLogins;
  /** How passwords are checked, for tests of what is done about the outcome. */
  readonly verify?: typeof passwordMatches;
}

/** Names that logged in from a network lately, see `KnownLogins`. */
export interface KnownPairs {
  has(name: string, network: string): boolean;
  add(name: string, network: string): void;
}

/** Credentials that stand for a user, see `ApiTokens`. */
interface TokenLogins {
  login(secret: string, name: string | null): User | null;
  recall(secret: string): User | null;
  isToken(user: User): boolean;
  isLive(user: User): boolean;
}

/** What an operator should know of logins (reliability, S19). */
export interface AccessLog {
  debug(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** Counts since the start, for metrics. */
export interface LoginCounts {
  accepted: number;
  failed: number;
  /** Rejected unchecked, for too many failures before. */
  limited: number;
}

/** How long credentials that were right are accepted without a hash after their last use, and how many are. */
const RECALL_MS = 5 * 60_000;
/** How long they pass the limits on failures: who sends them does not guess. */
const PROVEN_MS = 30 * 24 * 3_600_000;
const MAX_REMEMBERED = 10_000;
/** A use renews an entry after this long: not with each request. */
const RENEW_MS = 10_000;
/** Credentials that were wrong are wrong until the users change; so many are remembered. */
const MAX_WRONG = 10_000;
/** How often the log says that the same wrong credentials still come. */
const WRONG_LOG_MS = 60_000;

const HASHES_AT_ONCE = 2;
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

/** Users with passwords from the configuration (reliability, S1 to S5). */
export class PasswordAuthenticator implements Authenticator {
  readonly counts: LoginCounts = { accepted: 0, failed: 0, limited: 0 };
  readonly #clock: Clock;
  readonly #log: AccessLog;
  readonly #known: KnownPairs;
  /**
   * Hashing a password fills one of libuv's four threads for tens of milliseconds; the rest of the process needs the
   * others (reliability, S2).
   */
  readonly #hashes = new ConcurrencyLimit({
    perKey: HASHES_AT_ONCE,
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
  /** One entry for each (name, password) that was right; the one used longest ago first. */
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
   * @returns who a user of before is now, as `renew` does, by name
   */
  replaceAccounts(accounts: ReadonlyMap<string, Account>): (name: string) => User | null {
    const before = this.#accounts;
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
    return (name) => {
      const account = before.get(name);
      return account === undefined ? null : this.renew(account.user);
    };
  }

  /** The users by name. */
  get accounts(): ReadonlyMap<string, Account> {
    return this.#accounts;
  }

  /**
   * Who a user that logged in before the users were replaced is now; null if there is no such user any more,
   * or it has another password.
   */
  renew(user: User): User | null {
    // Its rights follow those of its owner by themselves; another password of the owner changes nothing about it.
    if (this.#tokens.isToken(user)) return this.#tokens.isLive(user) ? user : null;
    const account = this.#accounts.get(user.name);
    if (account === undefined) return null;
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
    // BasicCredentials that were right are no guess: no limit applies to them.
    const origin = this.#remembered.has(key)
      ? null
      : { name: credentials.name, network, isKnown: this.#known.has(credentials.name, network) };
    return this.#once(`${key} ${network}`, async () => {
      if (origin !== null) await this.#limited(() => this.#limits.approach(origin));
      let isChecked = false;
      try {
        return await this.#hashes.run('', async () => {
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
    putLast(this.#remembered, key, { user, usedAt: this.#clock.monotonic() }, MAX_REMEMBERED);
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
  recall: () => null,
  isToken: () => false,
  isLive: () => false,
};

const NONE_KNOWN: KnownPairs = { has: () => false, add: () => {} };

/** Puts an entry last in a map of a bounded size: the first one makes room. */
function putLast<V>(map: Map<string, V>, key: string, value: V, max: number): void {
  map.delete(key);
  map.set(key, value);
  if (map.size <= max) return;
  const [first = ''] = map.keys();
  map.delete(first);
}

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
