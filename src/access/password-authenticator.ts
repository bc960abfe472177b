import { isUtf8 } from 'node:buffer';
import { hash, randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { overloaded, QuaysideError } from '../model/errors.ts';
import { CONTROL } from '../model/names.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { FrontEndLog } from '../util/log.ts';
import { putLast } from '../util/put-last.ts';
import type { Account } from './account.ts';
import type { ApiTokens } from './api-tokens.ts';
import type { KnownLogins } from './known-logins.ts';
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

interface AuthenticatorOptions {
  readonly accounts: ReadonlyMap<string, Account>;
  readonly clock: Clock;
  /** Log for login events (docs/operate/log-events.md, "Logins and rights"). */
  readonly log: Pick<FrontEndLog, 'debug' | 'warn'>;
  /** Recent logins; defaults to none. */
  readonly known?: RecentLogins;
  /** API tokens; by default, none is accepted. */
  readonly tokens?: TokenLogins;
  /** Verifies passwords; replaced in tests. */
  readonly verify?: typeof passwordMatches;
}

type RecentLogins = Pick<KnownLogins, 'has' | 'add'>;
type TokenLogins = Pick<ApiTokens, 'login' | 'refresh' | 'recall'>;

/** What a reload of the users changed, apart from rights. */
interface AccountChanges {
  /** Names of new users. */
  readonly added: readonly string[];
  /** The former accounts of users that are gone, and of those that have another password. */
  readonly removed: readonly Account[];
  readonly changed: readonly Account[];
}

/** Counts since the process started, for metrics. */
interface LoginCounts {
  accepted: number;
  failed: number;
  /** Rejected without a check because of too many failed logins. */
  limited: number;
}

/** How long correct credentials are accepted without another hash after their last use. */
const RECALL_MS = 5 * 60_000;
/** How long correct credentials are exempt from the limits on failures after their last use: they are not a guess. */
const PROVEN_MS = 30 * 24 * 3_600_000;
/** Maximum wrong credentials that are remembered. They remain wrong until the users change. */
const MAX_WRONG = 10_000;
/** Minimum interval between log entries about the same wrong credentials. */
const WRONG_LOG_INTERVAL_MS = 60_000;

const MAX_CONCURRENT_HASHES = 2;
/** Maximum waiting checks for clients with a recent login, and the same for all others. */
const MAX_WAITING_HASHES = 64;

interface AcceptedCredentials {
  user: User;
  usedAt: number;
}

interface WrongCredentials {
  loggedAt: number;
  /** Attempts since the last log entry. */
  repeats: number;
}

/** Authenticates users by the passwords of the configuration and by API tokens (docs/operate/security.md). */
export class PasswordAuthenticator implements Authenticator {
  readonly counts: LoginCounts = { accepted: 0, failed: 0, limited: 0 };
  readonly #options: Required<AuthenticatorOptions>;
  /**
   * Hashing a password occupies one of libuv's four threads for tens of milliseconds, and the rest of the process needs
   * the others. Clients with a recent login have one key and all others another, so that clients without one, from
   * however many networks, do not lock out a user with a recent login.
   */
  readonly #hashes = new ConcurrencyLimit({
    perKey: MAX_CONCURRENT_HASHES,
    total: MAX_CONCURRENT_HASHES,
    maxWaiting: MAX_WAITING_HASHES,
    rejection: () => overloaded('Too many logins are waiting to be checked; try again soon.'),
  });
  readonly #limits: LoginLimits;
  /** Keys are digests with this secret, so that the maps contain no password and lookup time reveals nothing. */
  readonly #secret = randomBytes(32).toString('base64url');
  /** Correct credentials; at most one entry per user. */
  readonly #accepted = new Map<string, AcceptedCredentials>();
  /** Wrong credentials, so that retries with a stale password cost no hash and use up no limit. Last used last. */
  readonly #wrong = new Map<string, WrongCredentials>();
  /** Running and waiting checks; identical credentials from the same network share one. */
  readonly #checks = new Map<string, Promise<User>>();
  /** Passwords by user object, including objects from before a reload, whose users may still be logged in. */
  readonly #passwords = new WeakMap<User, StoredPassword>();
  #accounts: ReadonlyMap<string, Account>;
  #decoy: Argon2Hash;

  constructor(options: AuthenticatorOptions) {
    this.#options = { known: NO_RECENT_LOGINS, tokens: NO_TOKENS, verify: passwordMatches, ...options };
    this.#accounts = options.accounts;
    this.#decoy = decoyFor(options.accounts);
    this.#limits = new LoginLimits(options.clock);
    this.#recordPasswords();
  }

  /**
   * Replaces the users. Logged-in users remain logged in, with their new rights; if they had to log in again, failed
   * logins of others could lock them out. Only a changed password or the removal of the user invalidates credentials.
   */
  replaceAccounts(accounts: ReadonlyMap<string, Account>): AccountChanges {
    const before = [...this.#accounts.values()];
    const added = [...accounts.keys()].filter((name) => !this.#accounts.has(name));
    this.#accounts = accounts;
    this.#decoy = decoyFor(accounts);
    this.#checks.clear();
    this.#wrong.clear();
    this.#recordPasswords();
    for (const [key, accepted] of this.#accepted) {
      const user = this.renew(accepted.user);
      if (user === null) this.#accepted.delete(key);
      else accepted.user = user;
    }
    return {
      added,
      removed: before.filter(({ user }) => !accounts.has(user.name)),
      changed: before.filter(({ user }) => accounts.has(user.name) && this.renew(user) === null),
    };
  }

  renew(user: User): User | null {
    // A token's rights follow its owner's rights, and the owner's password does not affect it.
    const { token } = user;
    if (token !== undefined) return token.owner === null ? null : user;
    const account = this.#accounts.get(user.name);
    if (account === undefined || account.user === user) return account?.user ?? null;
    return isDeepStrictEqual(account.password, this.#passwords.get(user)) ? account.user : null;
  }

  /** The configured user of this name, logged in or not, or null. */
  userNamed(name: string): User | null {
    return this.accountNamed(name)?.user ?? null;
  }

  /** The configured account of this name, or null. */
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
    return token === null ? null : this.#options.tokens.recall(token);
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

  /**
   * Looks up tokens before any limit: they cannot be guessed, and floods of wrong ones must not lock out valid ones.
   */
  #loginByToken(key: string, { name, password }: BasicCredentials, address: string): User | null {
    try {
      return this.#options.tokens.login(password, name === BEARER ? null : name);
    } catch (error) {
      this.#noteFailed(key, name, address);
      throw error;
    }
  }

  /** Also rejects unknown tokens, as passwords of a nonexistent user, so that they count toward the same limits. */
  async #loginByPassword(key: string, credentials: BasicCredentials, address: string): Promise<User> {
    for (;;) {
      const accounts = this.#accounts;
      const user = await this.#login(key, credentials, address);
      // If the users were replaced during the check, check again with the new ones.
      if (accounts === this.#accounts) return user;
    }
  }

  #recordPasswords(): void {
    for (const { user, password } of this.#accounts.values()) this.#passwords.set(user, password);
  }

  async #login(key: string, credentials: BasicCredentials, address: string): Promise<User> {
    const user = this.#recallKey(key);
    if (user !== null) return user;
    this.#rejectIfWrong(key, credentials.name, address);
    const network = addressBlock(address);
    // Null for credentials that were correct before: they are not a guess, so no limit applies.
    const origin = this.#accepted.has(key)
      ? null
      : { name: credentials.name, network, isKnown: this.#options.known.has(credentials.name, network) };
    return this.#sharedCheck(`${key} ${network}`, async () => {
      if (origin !== null) await this.#countingLimited(() => this.#limits.admit(origin));
      let isChecked = false;
      try {
        // Refresh only after the limits: a flood of wrong tokens must not make the engines list all tokens.
        const isRefreshed = await this.#options.tokens.refresh(credentials.password);
        const byToken = isRefreshed ? this.#loginByToken(key, credentials, address) : null;
        if (byToken !== null) return byToken;
        return await this.#hashes.run(origin?.isKnown === false ? 'new' : 'known', async () => {
          // While this check waited, another network may have sent the same credentials and been accepted.
          const recalled = this.#recallKey(key);
          if (recalled !== null) return recalled;
          if (origin !== null) await this.#countingLimited(() => this.#limits.spend(origin));
          isChecked = true;
          return this.#check(key, credentials, { address, network, origin });
        });
      } finally {
        if (origin !== null && !isChecked) this.#limits.release(origin);
      }
    });
  }

  async #sharedCheck(key: string, check: () => Promise<User>): Promise<User> {
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
    const matches = await this.#options.verify(Buffer.from(password), account?.password ?? null, this.#decoy);
    if (matches && account !== null) {
      if (from.origin !== null) this.#limits.refund(from.origin);
      this.#noteAccepted(account.user, from.address);
      this.#options.known.add(name, from.network);
      if (accounts === this.#accounts)
        this.#accepted.set(key, { user: account.user, usedAt: this.#options.clock.monotonic() });
      return account.user;
    }
    this.counts.failed += 1;
    if (accounts === this.#accounts) this.#rememberWrong(key);
    this.#logFailure(name, from.address);
    throw unauthorized();
  }

  async #countingLimited<T>(begin: () => T | Promise<T>): Promise<T> {
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
    this.#options.log.debug({ event: 'login', user, address }, 'a login was accepted');
  }

  /** Counts a failed login, and logs it unless the same credentials were logged within the last minute. */
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
    const now = this.#options.clock.monotonic();
    if (now - wrong.loggedAt < WRONG_LOG_INTERVAL_MS) return;
    this.#logFailure(name, address, wrong.repeats);
    wrong.loggedAt = now;
    wrong.repeats = 0;
  }

  /** @param repeats attempts with the same credentials since the last log entry */
  #logFailure(name: string, address: string, repeats?: number): void {
    // Never log an unknown user name: it may be a password in the wrong field.
    const user = this.#accounts.get(name)?.user.name ?? null;
    const fields = { event: 'login-failed', user, address, ...(repeats !== undefined && { repeats }) };
    this.#options.log.warn(fields, 'a login failed');
  }

  #recallKey(key: string): User | null {
    const accepted = this.#accepted.get(key);
    if (accepted === undefined) return null;
    const now = this.#options.clock.monotonic();
    const unusedMs = now - accepted.usedAt;
    if (unusedMs >= PROVEN_MS) this.#accepted.delete(key);
    if (unusedMs >= RECALL_MS) return null;
    accepted.usedAt = now;
    return accepted.user;
  }

  #rememberWrong(key: string): void {
    putLast(this.#wrong, key, { loggedAt: this.#options.clock.monotonic(), repeats: 0 }, MAX_WRONG);
  }

  #digest(text: string): string {
    return hash('sha256', this.#secret + text, 'base64');
  }
}

/** The name under which a bearer token without a user name is checked. No user can have it: names contain no colon. */
const BEARER = 'bearer:';

const NO_TOKENS: TokenLogins = {
  login: () => null,
  refresh: async () => false,
  recall: () => null,
};

const NO_RECENT_LOGINS: RecentLogins = { has: () => false, add: () => {} };

/** A decoy hash with the highest cost among all users, so that unknown users take as long to check as real ones. */
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

/** Longer `Authorization` headers are rejected before decoding. */
const HEADER_BYTES = 1024;

interface BasicCredentials {
  readonly name: string;
  readonly password: string;
}

const BASIC = /^basic +([A-Za-z0-9+/]+={0,2})$/i;

/**
 * Parses the user name and password of a Basic header (RFC 7617). Returns null for another scheme, non-canonical
 * base64, invalid UTF-8, control characters, or a missing colon.
 */
export function readBasic(authorization: string): BasicCredentials | null {
  if (authorization.length > HEADER_BYTES) return null;
  const encoded = BASIC.exec(authorization)?.[1];
  if (encoded === undefined) return null;
  const bytes = Buffer.from(encoded, 'base64');
  // Accept only canonical base64: other spellings of the same credentials would be remembered separately.
  if (bytes.toString('base64') !== encoded) return null;
  if (!isUtf8(bytes)) return null;
  const text = bytes.toString('utf8');
  const colon = text.indexOf(':');
  if (colon < 1 || CONTROL.test(text)) return null;
  const password = text.slice(colon + 1);
  if (Buffer.byteLength(password) > PASSWORD_BYTES) return null;
  return { name: text.slice(0, colon), password };
}

/**
 * The base64 part of a Basic header, independent of the case of the scheme and the number of spaces after it. Null if
 * the header is too long or has another scheme. Unlike `readBasic`, it does not validate the part.
 */
function credentialsPart(authorization: string): string | null {
  if (authorization.length > HEADER_BYTES) return null;
  // Fast path for the spelling of nearly all clients: this runs for each request, and the pattern takes 0.4 µs.
  if (authorization.startsWith('Basic ') && authorization.charCodeAt(6) !== SPACE)
    return authorization.slice(6);
  return BASIC.exec(authorization)?.[1] ?? null;
}

const SPACE = 0x20;

const BEARER_PATTERN = /^bearer +(\S+)$/i;

/** The token of an `Authorization` header, or null if the scheme is not Bearer. */
export function bearerToken(authorization: string): string | null {
  return BEARER_PATTERN.exec(authorization)?.[1] ?? null;
}
