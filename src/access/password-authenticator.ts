import { hash, randomBytes } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import type { Clock } from '../model/clock.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Account } from './account.ts';
import { addressBlock } from './address.ts';
import { HEADER_BYTES, readBasic } from './basic.ts';
import { FailureLimit } from './failure-limit.ts';
import { Gate } from './gate.ts';
import { decoyHash, PASSWORD_BYTES, passwordMatches, type StoredPassword } from './password.ts';
import { type Argon2Hash, DEFAULT_COST } from './phc.ts';
import type { Authenticator, User } from './user.ts';

export interface AuthenticatorOptions {
  readonly accounts: ReadonlyMap<string, Account>;
  readonly clock: Clock;
  readonly log: AccessLog;
}

/** What an operator should know of logins (reliability, S19). */
export interface AccessLog {
  warn(fields: object, message: string): void;
}

/** Counts since the start, for metrics. */
export interface LoginCounts {
  accepted: number;
  failed: number;
  /** Turned away unchecked, for too many failures before. */
  limited: number;
}

/** How long a header that was accepted is remembered after its last use, and how many are. */
const REMEMBER_MS = 5 * 60_000;
const REMEMBER_HEADERS = 10_000;

const HASHES_AT_ONCE = 2;
const HASHES_WAITING = 64;

/** Failures: one more each 5 s, for an address block after 10 at once, for a user name after 20. */
const REFILL_MS = 5_000;
const LIMITED_KEYS = 10_000;

interface Attempt {
  readonly name: string;
  readonly password: string;
  readonly address: string;
  /** Under which a success is remembered; null: it is not. */
  readonly header: string | null;
}

interface Remembered {
  user: User;
  until: number;
}

/** Users with passwords from the configuration (reliability, S1 to S5). */
export class PasswordAuthenticator implements Authenticator {
  readonly counts: LoginCounts = { accepted: 0, failed: 0, limited: 0 };
  readonly #clock: Clock;
  readonly #log: AccessLog;
  readonly #gate = new Gate(HASHES_AT_ONCE, HASHES_WAITING);
  readonly #byAddress: FailureLimit;
  readonly #byName: FailureLimit;
  /** Keys are digests with this secret, so that the map holds no password and lookup time tells nothing. */
  readonly #secret = randomBytes(32).toString('base64url');
  readonly #remembered = new Map<string, Remembered>();
  /** Checks that run or wait; the same credentials from the same block share one. */
  readonly #checks = new Map<string, Promise<User>>();
  /** Of every user that somebody may still be logged in as. */
  readonly #passwords = new WeakMap<User, StoredPassword>();
  #accounts: ReadonlyMap<string, Account>;
  #decoy: Argon2Hash;

  constructor({ accounts, clock, log }: AuthenticatorOptions) {
    this.#clock = clock;
    this.#log = log;
    this.#accounts = accounts;
    this.#decoy = decoyFor(accounts);
    this.#keepPasswords();
    this.#byAddress = new FailureLimit({ clock, burst: 10, refillMs: REFILL_MS, keys: LIMITED_KEYS });
    this.#byName = new FailureLimit({ clock, burst: 20, refillMs: REFILL_MS, keys: LIMITED_KEYS });
  }

  /**
   * From now on these are the users. Who is remembered stays so under the new rights, or failures of others would
   * lock them out; only where the password changed, or the user is gone, the header proves nothing any more.
   * Answers who those of before are now, as `renew` does, by their names.
   */
  replaceAccounts(accounts: ReadonlyMap<string, Account>): (name: string) => User | null {
    const before = this.#accounts;
    this.#accounts = accounts;
    this.#decoy = decoyFor(accounts);
    this.#checks.clear();
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

  /**
   * Who somebody that logged in before the users were replaced is now; null where there is no such user any more,
   * or it has another password.
   */
  renew(user: User): User | null {
    const account = this.#accounts.get(user.name);
    if (account === undefined) return null;
    return isDeepStrictEqual(account.password, this.#passwords.get(user)) ? account.user : null;
  }

  recall(authorization: string): User | null {
    if (authorization.length > HEADER_BYTES) return null;
    return this.#recallKey(this.#digest(authorization));
  }

  async loginBasic(authorization: string, address: string): Promise<User> {
    const credentials = readBasic(authorization);
    if (credentials === null) throw unauthorized();
    return this.#login({ ...credentials, address, header: this.#digest(authorization) });
  }

  login(name: string, password: string, address: string): Promise<User> {
    return this.#login({ name, password, address, header: null });
  }

  #keepPasswords(): void {
    for (const { user, password } of this.#accounts.values()) this.#passwords.set(user, password);
  }

  async #login(attempt: Attempt): Promise<User> {
    const { name, password, address, header } = attempt;
    if (Buffer.byteLength(password) > PASSWORD_BYTES || Buffer.byteLength(name) > PASSWORD_BYTES) {
      throw unauthorized();
    }
    const block = addressBlock(address);
    this.#refuseIfLimited(name, block);
    const accounts = this.#accounts;
    const user = await this.#once(this.#digest(JSON.stringify([name, password, block])), () =>
      // Its turn may come after another block's clients have shown the same header.
      this.#gate.run(async () => this.#recallKey(header) ?? this.#check(attempt, block)),
    );
    // Users that were replaced while the hash ran are asked once more, by the new definitions.
    return accounts === this.#accounts ? user : this.#login(attempt);
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

  async #check({ name, password, address, header }: Attempt, block: string): Promise<User> {
    this.#refuseIfLimited(name, block);
    this.#byAddress.take(block);
    this.#byName.take(name);
    const accounts = this.#accounts;
    const account = accounts.get(name) ?? null;
    const matches = await passwordMatches(Buffer.from(password), account?.password ?? null, this.#decoy);
    if (matches && account !== null) {
      this.#byAddress.giveBack(block);
      this.#byName.giveBack(name);
      this.counts.accepted += 1;
      if (header !== null && accounts === this.#accounts) this.#remember(header, account.user);
      return account.user;
    }
    this.counts.failed += 1;
    // A name that is nobody's may be a password in the wrong field: it is not logged.
    this.#log.warn({ event: 'login-failed', user: account?.user.name ?? null, address }, 'a login failed');
    throw unauthorized();
  }

  #refuseIfLimited(name: string, block: string): void {
    const waitMs = Math.max(this.#byAddress.waitMs(block), this.#byName.waitMs(name));
    if (waitMs === 0) return;
    this.counts.limited += 1;
    throw new QuaysideError('too-many-attempts', 'Too many logins failed; wait before the next one.', {
      retryAfterMs: waitMs,
    });
  }

  #recallKey(key: string | null): User | null {
    const remembered = key === null ? undefined : this.#remembered.get(key);
    if (key === null || remembered === undefined) return null;
    const now = this.#clock.monotonic();
    if (now >= remembered.until) {
      this.#remembered.delete(key);
      return null;
    }
    remembered.until = now + REMEMBER_MS;
    return remembered.user;
  }

  #remember(key: string, user: User): void {
    this.#remembered.set(key, { user, until: this.#clock.monotonic() + REMEMBER_MS });
    if (this.#remembered.size <= REMEMBER_HEADERS) return;
    for (const oldest of this.#remembered.keys()) {
      this.#remembered.delete(oldest);
      return;
    }
  }

  #digest(text: string): string {
    return hash('sha256', this.#secret + text, 'base64');
  }
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
  return new QuaysideError('unauthorized', 'The user name or the password is wrong.');
}
