import { hash, randomBytes } from 'node:crypto';
import type { Definition, Definitions } from '../engine/definitions.ts';
import { DefinitionsCaches } from '../engine/definitions-cache.ts';
import { overloaded, QuaysideError } from '../model/errors.ts';
import type { Right } from '../model/rights.ts';
import type { Clock } from '../util/clock.ts';
import { compareStrings } from '../util/compare-strings.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { EarliestTimer } from '../util/earliest-timer.ts';
import type { FrontEndLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { MAX_CHANGES, Retries } from '../util/retries.ts';
import { fitsSchema, orNull, type Schema, type Static, Type } from '../util/schema.ts';
import type { Service } from '../util/service.ts';
import { LimitedUser } from './account.ts';
import { loginLost, type User } from './user.ts';

/** Rights by namespace, as for a user; null: all rights of the owner. */
type TokenRights = Readonly<Record<string, readonly Right[]>> | null;

/** The public part of a token, without the secret. */
export interface TokenRecord {
  readonly id: string;
  readonly name: string;
  /** Name of the user whom the token represents. */
  readonly owner: string;
  readonly rights: TokenRights;
  /** ms since 1970. */
  readonly createdAt: number;
  /** ms since 1970; null: it does not expire. */
  readonly expiresAt: number | null;
  /** Last use on this node since it started, ms since 1970; null: not used. */
  readonly lastUsedAt: number | null;
}

/** The position of a token in a list, as a cursor for the next page. */
export type TokenPlace = Pick<TokenRecord, 'createdAt' | 'id'>;

export interface NewToken {
  readonly name: string;
  readonly rights: TokenRights;
  readonly expiresAt: number | null;
}

interface CreatedToken {
  readonly record: TokenRecord;
  readonly secret: string;
}

interface ApiTokensOptions {
  /** This node's namespaces with their engines' definition stores, in the order of the configuration. */
  readonly namespaces: readonly {
    readonly name: string;
    readonly definitions: Definitions;
    /** Store for new definitions. Differs from `definitions` while the namespace migrates to another engine. */
    readonly currentDefinitions: Definitions;
  }[];
  /** The currently configured user of this name, or null. */
  readonly ownerNamed: (name: string) => User | null;
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: Pick<FrontEndLog, 'debug' | 'warn'>;
}

/** The definition that is stored under the token's id. */
const StoredToken = Type.Object({
  name: Type.String(),
  owner: Type.String(),
  rights: orNull(Type.Record(Type.Array(Type.String() as Schema<Right>))),
  createdAt: Type.Number(),
  expiresAt: orNull(Type.Number()),
  digest: Type.String(),
});
type StoredToken = Static<typeof StoredToken>;

const SECRET_PREFIX = 'qs_';
const SECRET_BYTES = 32;
const ID_BYTES = 9;
const SECRET_PATTERN = /^qs_[A-Za-z0-9_-]{43}$/;
const ID_PATTERN = new RegExp(`^[0-9a-f]{${2 * ID_BYTES}}$`);
/** Maximum stored tokens per user. */
const MAX_PER_OWNER = 100;
const REVOKE_RETRY_MS = 1_000;
/** Maximum length of the expiry timer, so that it notices when the wall clock was set. */
const MAX_EXPIRY_WAIT_MS = 60_000;
/** The user name to send with a token where a protocol requires one; the owner's name is accepted as well. */
const ANY_OWNER = 'token';

/**
 * API tokens: random credentials that represent a user, with all or some of the user's rights. They are stored as
 * definitions, so all nodes that share an engine know them (ADR 19).
 */
export class ApiTokens implements Service {
  readonly #options: ApiTokensOptions;
  readonly #caches: DefinitionsCaches;
  readonly #byId = new Map<string, TokenUser>();
  readonly #byDigest = new Map<string, TokenUser>();
  readonly #revocations: Retries;
  /** Creates one token per user at a time: concurrent calls would all see a count below the limit. */
  readonly #creations = new ConcurrencyLimit({
    perKey: 1,
    maxWaiting: MAX_PER_OWNER,
    rejection: () => overloaded('Too many tokens of this user are being created; retry later.'),
  });
  #onEnded: (users: ReadonlySet<User>) => void = () => {};
  /** Tokens revoked in this turn of the event loop, reported together so that sessions are checked only once. */
  #revoked = new Set<User>();
  /** The last read of all tokens that was requested. */
  #lastRead: Promise<void> = Promise.resolve();
  /** The same, if it has not begun yet. */
  #nextRead: Promise<void> | null = null;
  readonly #expiry: EarliestTimer;
  #isStopped = false;

  constructor(options: ApiTokensOptions) {
    this.#options = options;
    this.#expiry = new EarliestTimer(options.clock, () => this.#reportExpired());
    this.#revocations = new Retries({
      clock: options.clock,
      delayMs: REVOKE_RETRY_MS,
      maxAtOnce: MAX_CHANGES,
      failed: (id, err) =>
        options.log.warn({ err, id }, 'a token of a removed user could not be revoked yet'),
    });
    this.#caches = new DefinitionsCaches({
      stores: options.namespaces.map(({ definitions }) => definitions),
      kind: 'token',
      clock: options.clock,
      random: options.random,
      onRead: (id, definition, hasChanged, definitions) => {
        if (!hasChanged) return;
        const stored = definition === null ? null : storedToken(definition);
        if (stored === null) this.#removeEntry(id);
        else this.#addEntry(id, definitions, stored);
      },
      onFailedRead: (id, error) =>
        options.log.warn({ err: error, id }, 'changed tokens could not be read yet'),
    });
  }

  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#expiry.cancel();
    this.#revocations.stop();
    await this.#caches.stop();
  }

  /**
   * Calls `run` with the users of tokens that were revoked or have expired, so that their sessions and subscriptions
   * can be closed. Tokens that were never used on this node are not reported: any user may create and revoke tokens in
   * a loop, and each report scans all sessions.
   */
  onEnded(run: (users: ReadonlySet<User>) => void): void {
    this.#onEnded = run;
  }

  /**
   * Creates and stores a token. The caller has checked its rights. Only a digest of the secret is stored.
   * @throws QuaysideError `too-many-tokens`, `overloaded`; `unauthorized` if the user is removed during the call; and
   * as `Definitions.put`
   */
  create(owner: User, token: NewToken): Promise<CreatedToken> {
    return this.#creations.run(owner.name, () => this.#create(owner, token));
  }

  async #create(owner: User, token: NewToken): Promise<CreatedToken> {
    const ownTokens = [...this.#byId].filter(([, { stored }]) => stored.owner === owner.name);
    const [expired] = ownTokens.find(([, { isExpired }]) => isExpired) ?? [];
    if (ownTokens.length >= MAX_PER_OWNER && expired !== undefined) await this.revoke(expired, owner);
    else if (ownTokens.length >= MAX_PER_OWNER) {
      throw new QuaysideError(
        'too-many-tokens',
        `User ${quote(owner.name)} has ${ownTokens.length} tokens, the limit is ${MAX_PER_OWNER}; revoke one that is not used.`,
      );
    }
    // Hex, because the command line would parse a base64url id with a leading `-` as an option.
    const id = randomBytes(ID_BYTES).toString('hex');
    const secret = SECRET_PREFIX + randomBytes(SECRET_BYTES).toString('base64url');
    const { name, rights, expiresAt } = token;
    const createdAt = this.#options.clock.now();
    const stored: StoredToken = {
      name,
      owner: owner.name,
      rights,
      createdAt,
      expiresAt,
      digest: digestOf(secret),
    };
    const definitions = this.#storeFor(rights);
    await this.#caches.of(definitions).put(id, stored, null);
    this.#addEntry(id, definitions, stored);
    if (this.#options.ownerNamed(owner.name) === null) {
      // The user was removed while the token was being stored, so `revokeOf` may have missed it.
      await this.revokeOf([owner.name]);
      throw loginLost();
    }
    return { record: recordOf(id, this.#byId.get(id) as TokenUser), secret };
  }

  /**
   * The tokens that a user may see, oldest first: administrators see all, other users their own.
   * @param after list only tokens after this position; defaults to all
   */
  list(caller: User, after: TokenPlace | null = null): TokenRecord[] {
    return [...this.#byId]
      .filter(([, token]) => isVisible(token, caller))
      .map(([id, token]) => recordOf(id, token))
      .filter((token) => after === null || comparePlaces(token, after) > 0)
      .sort(comparePlaces);
  }

  /** Deletes the token. @throws QuaysideError `token-not-found`, and as `Definitions.delete` */
  async revoke(id: string, caller: User): Promise<void> {
    // Another node may have created it, and its signal may not have arrived yet.
    if (!this.#byId.has(id) && ID_PATTERN.test(id)) await this.#caches.find(id);
    const token = this.#byId.get(id);
    if (token === undefined || !isVisible(token, caller)) {
      throw new QuaysideError('token-not-found', `There is no token ${quote(id)}.`, { parameter: 'id' });
    }
    await this.#delete(id, token);
  }

  async #delete(id: string, { definitions }: TokenUser): Promise<void> {
    await this.#caches.of(definitions).delete(id, 'any');
    this.#removeEntry(id);
  }

  /**
   * Revokes the tokens of removed users on all nodes, because other nodes may not have reloaded their users yet.
   * Resolves after the first attempt; failed deletions are retried in the background.
   */
  async revokeOf(owners: readonly string[]): Promise<void> {
    const removed = new Set(owners);
    const affected = [...this.#byId].filter(([, { stored }]) => removed.has(stored.owner));
    const engines = [...this.#caches].map(([definitions]) => definitions);
    await Promise.all(
      affected.map(([id, token]) => {
        const engine = String(engines.indexOf(token.definitions));
        return this.#revocations.do(id, () => this.#delete(id, token), engine);
      }),
    );
  }

  /**
   * The user of a token, or null if the token is unknown or its owner was removed.
   * @param name the user name sent with the token: the owner's or `token`; null if there was none
   * @throws QuaysideError `token-expired`
   */
  login(secret: string, name: string | null): User | null {
    if (!SECRET_PATTERN.test(secret)) return null;
    const token = this.#byDigest.get(digestOf(secret));
    if (token === undefined || !token.hasOwner) return null;
    if (name !== null && name !== ANY_OWNER && name !== token.stored.owner) return null;
    if (token.isExpired) {
      throw new QuaysideError(
        'token-expired',
        `Token ${quote(token.stored.name)} expired at ${new Date(token.stored.expiresAt ?? 0).toISOString()}. Use another one.`,
      );
    }
    token.lastUsedAt = this.#options.clock.now();
    return token;
  }

  /** As `login` without a name, but returns null for an expired token. */
  recall(secret: string): User | null {
    try {
      return this.login(secret, null);
    } catch {
      return null;
    }
  }

  /**
   * Rereads the tokens of all engines if the secret has the form of a token: another node may have created it, and its
   * signal may arrive after its first use. If an engine is unavailable, its known tokens are retained. Concurrent calls
   * share a read.
   * @returns whether the tokens were reread
   */
  async refresh(secret: string): Promise<boolean> {
    if (!SECRET_PATTERN.test(secret)) return false;
    this.#nextRead ??= this.#lastRead.then(() => {
      this.#nextRead = null;
      return this.#caches.reload().catch(() => {});
    });
    this.#lastRead = this.#nextRead;
    await this.#lastRead;
    return true;
  }

  #addEntry(id: string, definitions: Definitions, stored: StoredToken): void {
    // Tokens are immutable, and sessions hold a reference to the known entry.
    if (this.#byId.has(id)) return;
    const token = new TokenUser(stored, definitions, this.#options);
    this.#byId.set(id, token);
    this.#byDigest.set(stored.digest, token);
    this.#watchExpiry(token);
  }

  #removeEntry(id: string): void {
    const token = this.#byId.get(id);
    if (token === undefined) return;
    token.isRevoked = true;
    this.#byId.delete(id);
    this.#byDigest.delete(token.stored.digest);
    if (token.lastUsedAt === null) return;
    this.#revoked.add(token);
    // Runs before any request that a client sends after it learned of the revocation.
    if (this.#revoked.size === 1) setImmediate(() => this.#reportRevoked());
  }

  #reportRevoked(): void {
    const users = this.#revoked;
    this.#revoked = new Set();
    this.#onEnded(users);
  }

  /** Reports the tokens that have expired since the last call, and sets the timer for the next one. */
  #reportExpired(): void {
    const users = new Set<User>();
    for (const token of this.#byId.values()) {
      const { isExpired, wasExpired } = token;
      token.wasExpired = isExpired;
      if (!isExpired) this.#watchExpiry(token);
      else if (!wasExpired && token.lastUsedAt !== null) users.add(token);
    }
    if (users.size > 0) this.#onEnded(users);
  }

  #watchExpiry({ stored: { expiresAt } }: TokenUser): void {
    if (expiresAt === null || this.#isStopped) return;
    this.#expiry.within(Math.min(expiresAt - this.#options.clock.now(), MAX_EXPIRY_WAIT_MS));
  }

  /** Store of the first namespace in the token's rights, so that the nodes that serve it know the token. */
  #storeFor(rights: TokenRights): Definitions {
    const { namespaces } = this.#options;
    const found =
      namespaces.find(({ name }) => rights !== null && Object.hasOwn(rights, name)) ?? namespaces[0];
    if (found === undefined)
      throw new QuaysideError('not-supported', 'There is no namespace to store a token in.');
    return found.currentDefinitions;
  }
}

/**
 * A token known to this node, and the user who logs in with it. The rights are the intersection of the owner's and the
 * token's at each call, so that changes apply to open sessions.
 */
class TokenUser implements User {
  readonly name: string;
  readonly stored: StoredToken;
  readonly definitions: Definitions;
  isRevoked = false;
  /** Whether the token had expired when this was last checked. */
  wasExpired = false;
  lastUsedAt: number | null = null;
  readonly #options: Pick<ApiTokensOptions, 'clock' | 'ownerNamed'>;
  /** The token's rights; null: no restriction. */
  readonly #restriction: User | null;

  constructor(stored: StoredToken, definitions: Definitions, options: ApiTokensOptions) {
    const { owner, rights } = stored;
    this.name = owner;
    this.stored = stored;
    this.definitions = definitions;
    this.#options = options;
    this.#restriction = rights === null ? null : new LimitedUser(owner, rights, false);
  }

  get isExpired(): boolean {
    const { expiresAt } = this.stored;
    return expiresAt !== null && expiresAt <= this.#options.clock.now();
  }

  get hasOwner(): boolean {
    return this.#options.ownerNamed(this.name) !== null;
  }

  /** The currently configured owner; null if the token was revoked or has expired. */
  get owner(): User | null {
    return this.isRevoked || this.isExpired ? null : this.#options.ownerNamed(this.name);
  }

  get token(): NonNullable<User['token']> {
    return { name: this.stored.name, owner: this.owner, isLimited: this.#restriction !== null };
  }

  get isAdministrator(): boolean {
    return this.#restriction === null && this.owner?.isAdministrator === true;
  }

  may(right: Right, namespace: string): boolean {
    return this.#allows((user) => user.may(right, namespace));
  }

  maySee(namespace: string): boolean {
    return this.#allows((user) => user.maySee(namespace));
  }

  maySeeBodies(namespace: string): boolean {
    return this.#allows((user) => user.maySeeBodies(namespace));
  }

  #allows(check: (user: User) => boolean): boolean {
    const { owner } = this;
    return owner !== null && check(owner) && (this.#restriction === null || check(this.#restriction));
  }
}

function isVisible({ stored }: TokenUser, caller: User): boolean {
  return caller.isAdministrator || stored.owner === caller.name;
}

function comparePlaces(a: TokenPlace, b: TokenPlace): number {
  return a.createdAt - b.createdAt || compareStrings(a.id, b.id);
}

function recordOf(id: string, { stored, lastUsedAt }: TokenUser): TokenRecord {
  const { digest: _, ...visible } = stored;
  return { id, ...visible, lastUsedAt };
}

/**
 * A fast hash is enough: 2^256 tokens cannot be guessed. The work factor that protects passwords would only add latency
 * to each request.
 */
function digestOf(secret: string): string {
  return hash('sha256', secret, 'base64url');
}

/** Null if this version cannot read the definition: it must neither prevent startup nor grant rights. */
function storedToken({ value }: Definition): StoredToken | null {
  return fitsSchema(StoredToken, value) ? (value as unknown as StoredToken) : null;
}
