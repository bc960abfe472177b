import { hash, randomBytes } from 'node:crypto';
import type { Definition, Definitions, JsonValue } from '../engine/definitions.ts';
import { DefinitionsCaches } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { compareTexts } from '../util/compare-texts.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { isRecord } from '../util/is-record.ts';
import type { FrontEndLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { MAX_CHANGES, Retries } from '../util/retries.ts';
import type { Service } from '../util/service.ts';
import { isRightsByNamespace, limitedUser } from './account.ts';
import { loginLost, type Right, type User } from './user.ts';

/** Rights by namespace, as of a user; null: all that the owner has. */
export type TokenRights = Readonly<Record<string, readonly Right[]>> | null;

/** A token as its owner may see it: without the secret. */
export interface TokenRecord {
  readonly id: string;
  readonly name: string;
  /** The user whose token it is. */
  readonly owner: string;
  readonly rights: TokenRights;
  /** ms since 1970. */
  readonly createdAt: number;
  /** Null: never. */
  readonly expiresAt: number | null;
  /** On this node since its start; null: not used. */
  readonly lastUsedAt: number | null;
}

/** Where a token stands in a list. */
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
  /** The namespaces of this node with the stores of their engines, in the order of the configuration. */
  readonly namespaces: readonly {
    readonly name: string;
    readonly definitions: Definitions;
    /** The store for new definitions: another one while the namespace moves to another engine. */
    readonly currentDefinitions: Definitions;
  }[];
  /** The user of a name as configured now; null if there is none. */
  readonly ownerNamed: (name: string) => User | null;
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: Pick<FrontEndLog, 'debug' | 'warn'>;
}

/** What is stored under the id of a token. */
interface StoredToken {
  readonly name: string;
  readonly owner: string;
  readonly rights: TokenRights;
  readonly createdAt: number;
  readonly expiresAt: number | null;
  readonly digest: string;
}

const PREFIX = 'qs_';
const SECRET_BYTES = 32;
const ID_BYTES = 9;
const SHAPE = /^qs_[A-Za-z0-9_-]{43}$/;
const ID = new RegExp(`^[0-9a-f]{${2 * ID_BYTES}}$`);
const BEARER = /^bearer +(\S+)$/i;
/** A user's tokens; what is stored is bounded. */
const MAX_PER_OWNER = 100;
const REVOKE_AGAIN_MS = 1_000;
/** The clock may be set in the meantime. */
const MAX_EXPIRY_WAIT_MS = 60_000;
/** The user name with which any token may log in where a name is due; the owner's name does as well. */
const ANY_OWNER = 'token';

/** The token of an `Authorization` header; null: it has another scheme. */
export function bearerToken(authorization: string): string | null {
  return BEARER.exec(authorization)?.[1] ?? null;
}

/**
 * API tokens: random credentials that stand for a user with all or some of the user's rights. They are definitions of
 * the engines, so all nodes of an engine know them (ADR 19).
 */
export class ApiTokens implements Service {
  readonly #options: ApiTokensOptions;
  readonly #caches: DefinitionsCaches;
  readonly #byId = new Map<string, TokenEntry>();
  readonly #byDigest = new Map<string, TokenEntry>();
  readonly #revocations: Retries;
  /** Those of one user are stored one after the other: many at once would all find a place below the limit. */
  readonly #creations = new ConcurrencyLimit({
    perKey: 1,
    maxWaiting: MAX_PER_OWNER,
    rejection: () =>
      new QuaysideError('overloaded', 'Too many tokens of this user are being created; retry later.'),
  });
  #onEnded: (users: ReadonlySet<User>) => void = () => {};
  /** Revoked in this turn, and reported at its end: for all of them, sessions are looked at once. */
  #revoked = new Set<User>();
  /** The reading of all tokens that has begun, and the one that begins after it. */
  #reading: Promise<void> | null = null;
  #nextReading: Promise<void> | null = null;
  #expiryTimer: CancelTimer | null = null;
  /** When the timer ends. */
  #nextExpiry = Number.POSITIVE_INFINITY;
  #isStopped = false;

  constructor(options: ApiTokensOptions) {
    this.#options = options;
    this.#revocations = new Retries({
      clock: options.clock,
      delayMs: REVOKE_AGAIN_MS,
      maxAtOnce: MAX_CHANGES,
      failed: (id, err) =>
        options.log.warn({ err, id }, 'a token of a user who was removed could not be revoked yet'),
    });
    this.#caches = new DefinitionsCaches({
      stores: options.namespaces.map(({ definitions }) => definitions),
      kind: 'token',
      clock: options.clock,
      random: options.random,
      onRead: (id, definition, hasChanged, definitions) => {
        if (!hasChanged) return;
        const stored = definition === null ? null : storedToken(definition);
        if (stored === null) this.#drop(id);
        else this.#keep(id, definitions, stored);
      },
      onFailedRead: (id, error) =>
        options.log.warn({ err: error, id }, 'tokens that changed could not be read yet'),
    });
  }

  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
  }

  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#expiryTimer?.();
    this.#revocations.stop();
    this.#caches.stop();
    await this.#caches.idle();
  }

  /**
   * Calls `run` with the users of tokens that were revoked or have expired: what lasts of their logins is to end. Not
   * of tokens with which nobody logged in here: any user may create and revoke them in a loop, and what lasts of all
   * others is looked at each time.
   */
  onEnded(run: (users: ReadonlySet<User>) => void): void {
    this.#onEnded = run;
  }

  /**
   * Creates a token of a user; its rights were checked. Resolves when it is stored. `secret` is not kept anywhere.
   * @throws QuaysideError `too-many-tokens`, `overloaded`; `unauthorized` if the user is removed in the meantime; and
   * as `Definitions.put`
   */
  create(owner: User, token: NewToken): Promise<CreatedToken> {
    return this.#creations.run(owner.name, () => this.#create(owner, token));
  }

  async #create(owner: User, token: NewToken): Promise<CreatedToken> {
    const own = [...this.#byId].filter(([, { stored }]) => stored.owner === owner.name);
    const [expired] = own.find(([, { isExpired }]) => isExpired) ?? [];
    if (own.length >= MAX_PER_OWNER && expired !== undefined) await this.revoke(expired, owner);
    else if (own.length >= MAX_PER_OWNER) {
      throw new QuaysideError(
        'too-many-tokens',
        `User ${quote(owner.name)} has ${own.length} tokens, the limit is ${MAX_PER_OWNER}; revoke one that is not used.`,
      );
    }
    // Not base64url: the command line would take an id that begins with `-` for an option.
    const id = randomBytes(ID_BYTES).toString('hex');
    const secret = PREFIX + randomBytes(SECRET_BYTES).toString('base64url');
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
    const value = stored as unknown as JsonValue;
    const version = await definitions.put('token', id, value, null);
    this.#caches.of(definitions).note(id, { key: id, value, version });
    this.#keep(id, definitions, stored);
    if (this.#options.ownerNamed(owner.name) === null) {
      // Removed while it was stored: the end of the user's tokens has not seen this one.
      await this.revokeOf([owner.name]);
      throw loginLost();
    }
    return { record: recordOf(id, this.#byId.get(id) as TokenEntry), secret };
  }

  /**
   * The tokens that a user may see, the oldest first: an administrator all, others their own.
   * @param after only those behind this place; not given or null: all
   */
  list(caller: User, after: TokenPlace | null = null): TokenRecord[] {
    return [...this.#byId]
      .filter(([, token]) => isVisible(token, caller))
      .map(([id, token]) => recordOf(id, token))
      .filter((token) => after === null || comparePlaces(token, after) > 0)
      .sort(comparePlaces);
  }

  /** Resolves when the token is gone. @throws QuaysideError `token-not-found`, and as `Definitions.delete` */
  async revoke(id: string, caller: User): Promise<void> {
    // Another node may have created it just now.
    if (!this.#byId.has(id) && ID.test(id)) await this.#caches.read(id);
    const token = this.#byId.get(id);
    if (token === undefined || !isVisible(token, caller)) {
      throw new QuaysideError('token-not-found', `There is no token ${quote(id)}.`, { parameter: 'id' });
    }
    await this.#delete(id, token);
  }

  async #delete(id: string, { definitions }: TokenEntry): Promise<void> {
    await definitions.delete('token', id, 'any');
    this.#caches.of(definitions).note(id, null);
    this.#drop(id);
  }

  /**
   * Revokes the tokens of users who were removed, on all nodes: this one knows of the users no more, others may not
   * have read that yet. Resolves after a try; what fails is tried again.
   */
  async revokeOf(owners: readonly string[]): Promise<void> {
    const removed = new Set(owners);
    const own = [...this.#byId].filter(([, { stored }]) => removed.has(stored.owner));
    const engines = [...this.#caches].map(([definitions]) => definitions);
    await Promise.all(
      own.map(([id, token]) => {
        const engine = String(engines.indexOf(token.definitions));
        return this.#revocations.do(id, () => this.#delete(id, token), engine);
      }),
    );
  }

  /**
   * The user of a token; null if it is not known, or its owner is no user any more.
   * @param name that was given with it, if one was: the owner's, or `token`
   * @throws QuaysideError `token-expired`
   */
  login(secret: string, name: string | null): User | null {
    if (!SHAPE.test(secret)) return null;
    const token = this.#byDigest.get(digestOf(secret));
    if (token === undefined || !token.hasOwner) return null;
    if (name !== null && name !== ANY_OWNER && name !== token.stored.owner) return null;
    const { clock } = this.#options;
    if (token.isExpired) {
      throw new QuaysideError(
        'token-expired',
        `Token ${quote(token.stored.name)} expired at ${new Date(token.stored.expiresAt ?? 0).toISOString()}. Use another one.`,
      );
    }
    token.lastUsedAt = clock.now();
    return token.user;
  }

  /** The same, but null for a token that has expired. */
  recall(secret: string): User | null {
    try {
      return this.login(secret, null);
    } catch {
      return null;
    }
  }

  /**
   * Reads the tokens of all engines again if this may be one that another node created just now: the signal of that may
   * come later than its first use. Those of an engine that is unavailable stay as they are. Many calls share a reading.
   * @returns whether it did
   */
  async refresh(secret: string): Promise<boolean> {
    if (!SHAPE.test(secret)) return false;
    if (this.#reading === null) {
      await this.#read();
    } else {
      this.#nextReading ??= this.#reading.then(() => this.#read());
      await this.#nextReading;
    }
    return true;
  }

  #read(): Promise<void> {
    this.#nextReading = null;
    const settled = (): void => {
      this.#reading = null;
    };
    const reading = this.#caches.reload().then(settled, settled);
    this.#reading = reading;
    return reading;
  }

  /** Whether a user is a token's. */
  isToken(user: User): boolean {
    return user instanceof TokenUser;
  }

  /** Whether the token of a user still counts. */
  isLive(user: User): boolean {
    return user instanceof TokenUser && user.isLive;
  }

  #keep(id: string, definitions: Definitions, stored: StoredToken): void {
    // A token never changes; sessions refer to the one that is known.
    if (this.#byId.has(id)) return;
    const { clock, ownerNamed } = this.#options;
    const token = new TokenEntry(stored, definitions, clock, () => ownerNamed(stored.owner));
    this.#byId.set(id, token);
    this.#byDigest.set(stored.digest, token);
    const endsAt = stored.expiresAt ?? Number.POSITIVE_INFINITY;
    // Not for each: a start reads all tokens, one after the other.
    if (endsAt > clock.now() && endsAt < this.#nextExpiry) this.#watchExpiry();
  }

  #drop(id: string): void {
    const token = this.#byId.get(id);
    if (token === undefined) return;
    token.isRevoked = true;
    this.#byId.delete(id);
    this.#byDigest.delete(token.stored.digest);
    if (token.lastUsedAt === null) return;
    this.#revoked.add(token.user);
    // Before the turn in which a client that knows of the end can send anything.
    if (this.#revoked.size === 1) setImmediate(() => this.#reportRevoked());
  }

  #reportRevoked(): void {
    const users = this.#revoked;
    this.#revoked = new Set();
    this.#onEnded(users);
  }

  #reportExpired(): void {
    const users = new Set<User>();
    for (const { isExpired, lastUsedAt, user } of this.#byId.values())
      if (isExpired && lastUsedAt !== null) users.add(user);
    if (users.size > 0) this.#onEnded(users);
  }

  /** Sets the timer for the next token that expires. */
  #watchExpiry(): void {
    this.#expiryTimer?.();
    this.#expiryTimer = null;
    this.#nextExpiry = Number.POSITIVE_INFINITY;
    if (this.#isStopped) return;
    const now = this.#options.clock.now();
    for (const { stored } of this.#byId.values()) {
      const { expiresAt } = stored;
      if (expiresAt !== null && expiresAt > now) this.#nextExpiry = Math.min(this.#nextExpiry, expiresAt);
    }
    if (this.#nextExpiry === Number.POSITIVE_INFINITY) return;
    const { clock } = this.#options;
    const at = this.#nextExpiry;
    this.#expiryTimer = clock.after(Math.min(at - now, MAX_EXPIRY_WAIT_MS), () => {
      // In this order: what expires while sessions are looked at has a timer of its own.
      this.#watchExpiry();
      if (at <= clock.now()) this.#reportExpired();
    });
  }

  /** Of the engine of the first namespace that the token is for, so that the nodes that serve it know the token. */
  #storeFor(rights: TokenRights): Definitions {
    const { namespaces } = this.#options;
    const found =
      namespaces.find(({ name }) => rights !== null && Object.hasOwn(rights, name)) ?? namespaces[0];
    if (found === undefined)
      throw new QuaysideError('not-supported', 'There is no namespace to store a token in.');
    return found.currentDefinitions;
  }
}

/** A token that this node knows. */
class TokenEntry {
  readonly stored: StoredToken;
  readonly definitions: Definitions;
  readonly user: TokenUser;
  isRevoked = false;
  lastUsedAt: number | null = null;
  readonly #clock: Clock;
  readonly #owner: () => User | null;

  constructor(stored: StoredToken, definitions: Definitions, clock: Clock, owner: () => User | null) {
    this.stored = stored;
    this.definitions = definitions;
    this.#clock = clock;
    this.#owner = owner;
    this.user = new TokenUser(this);
  }

  get isExpired(): boolean {
    const { expiresAt } = this.stored;
    return expiresAt !== null && expiresAt <= this.#clock.now();
  }

  get hasOwner(): boolean {
    return this.#owner() !== null;
  }

  /** The owner as configured now, while the token counts. */
  get owner(): User | null {
    return this.isRevoked || this.isExpired ? null : this.#owner();
  }
}

/** The owner, with no more rights than the token: whatever narrows either takes effect at once, in sessions as well. */
class TokenUser implements User {
  readonly name: string;
  readonly #token: TokenEntry;
  /** What the token allows; null: all. */
  readonly #limits: User | null;

  constructor(token: TokenEntry) {
    const { owner, rights } = token.stored;
    this.name = owner;
    this.#token = token;
    this.#limits = rights === null ? null : limitedUser(owner, rights, false);
  }

  get isLive(): boolean {
    return this.#token.owner !== null;
  }

  get token(): NonNullable<User['token']> {
    return {
      name: this.#token.stored.name,
      owner: this.#token.owner,
      isLimited: this.#limits !== null,
    };
  }

  get isAdministrator(): boolean {
    return this.#limits === null && this.#token.owner?.isAdministrator === true;
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
    const { owner } = this.#token;
    return owner !== null && check(owner) && (this.#limits === null || check(this.#limits));
  }
}

function isVisible({ stored }: TokenEntry, caller: User): boolean {
  return caller.isAdministrator || stored.owner === caller.name;
}

function comparePlaces(a: TokenPlace, b: TokenPlace): number {
  return a.createdAt - b.createdAt || compareTexts(a.id, b.id);
}

function recordOf(id: string, { stored, lastUsedAt }: TokenEntry): TokenRecord {
  const { digest: _, ...shown } = stored;
  return { id, ...shown, lastUsedAt };
}

/**
 * A fast hash is enough: nobody can try 2^256 tokens, however fast, so the work factor that protects passwords, which
 * people choose, would only cost time with each request.
 */
function digestOf(secret: string): string {
  return hash('sha256', secret, 'base64url');
}

/** Null for what this version cannot read: it must not keep the server from its start, nor give rights. */
function storedToken({ value }: Definition): StoredToken | null {
  if (!isRecord(value)) return null;
  const { name, owner, rights, createdAt, expiresAt, digest } = value;
  const isRead =
    [name, owner, digest].every((text) => typeof text === 'string') &&
    (rights === null || isRightsByNamespace(rights)) &&
    typeof createdAt === 'number' &&
    (expiresAt === null || typeof expiresAt === 'number');
  return isRead ? (value as unknown as StoredToken) : null;
}
