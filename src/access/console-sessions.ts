import { createHmac, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { type Definitions, type JsonValue, retryConflicts } from '../engine/definitions.ts';
import { type DefinitionsCache, DefinitionsCaches } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import { putLast } from '../util/put-last.ts';
import { quote } from '../util/quote.ts';
import { MAX_CHANGES, Retries } from '../util/retries.ts';
import type { Service } from '../util/service.ts';
import type { Account } from './account.ts';
import { passwordText } from './password.ts';
import type { User } from './user.ts';

/** A token is replaced when it is this old, or a tenth of the idle time if that is less: not with each request. */
const MAX_RENEW_MS = 60_000;
/**
 * Sessions whose last use is remembered, for their users to see; a further one replaces the one that was seen first.
 */
const MAX_SEEN = 10_000;
const ID_BYTES = 16;
/** A longer token is none of ours: a user name has at most 256 bytes. */
const MAX_TOKEN_LENGTH = 1_024;

interface ConsoleSessionOptions {
  /** The account of a name; null if there is no such user. */
  readonly accountNamed: (name: string) => Account | null;
  readonly clock: Clock;
  /** How long a session lasts without a request. */
  readonly idleMs: number;
  /** What tokens are signed with, the same on all nodes; null: a random one, so that sessions end with the process. */
  readonly secret: string | null;
  readonly ended: EndedSessions;
}

/** A session of the console as one of its requests finds it. */
export interface ConsoleSession {
  readonly user: User;
  /** As in {@link SeenSession}. */
  readonly id: string;
  /** What requests that change something have to name in `X-CSRF-Token`. The same for the whole session. */
  readonly csrfToken: string;
  /** ms since 1970: when it ends if no other request comes. */
  readonly expiresAt: number;
  /** The cookie of the session from now on; null: the one that came. */
  readonly renewedToken: string | null;
  /** Whether it was ended in the meantime, on any node, or has lasted as long as one may: for requests that last. */
  readonly isOver: () => boolean;
}

/** Where a session is used from. */
export interface SessionOrigin {
  readonly address: string;
  /** What the browser says of itself; null: nothing. */
  readonly browser: string | null;
}

/** A session that this node has served, as its user may see it. */
export interface SeenSession extends SessionOrigin {
  /** Names the session and signs in nowhere. */
  readonly id: string;
  /** Moments in ms since 1970. */
  readonly startedAt: number;
  readonly usedAt: number;
  readonly expiresAt: number;
}

interface SessionUse {
  readonly name: string;
  /** Of the password at the time. */
  readonly key: Buffer;
  readonly startedAt: number;
  readonly origin: SessionOrigin;
  usedAt: number;
}

/** What ends with a session. */
interface SessionEndings {
  /** Whether the session has ended. */
  readonly isOver: () => boolean;
  readonly name: string;
  readonly runs: Set<() => void>;
}

/** What a token says, signed. */
interface Claims {
  readonly name: string;
  readonly id: string;
  /** ms since 1970. */
  readonly startedAt: number;
  readonly usedAt: number;
}

/**
 * Sessions of the console: signed tokens instead of a table, so that every node with the same secret accepts them (ADR
 * 17). The key of a user's tokens depends on the stored password: another password ends the user's sessions. What ends
 * them before their time is in `EndedSessions`.
 */
export class ConsoleSessions {
  readonly #options: ConsoleSessionOptions;
  readonly #secret: string | Buffer;
  readonly #renewMs: number;
  readonly #keys = new WeakMap<Account, Buffer>();
  /** By the digest of the session's id. */
  readonly #seen = new Map<string, SessionUse>();
  /** What ends with a session, by the digest of its id. */
  readonly #endings = new Map<string, SessionEndings>();

  constructor(options: ConsoleSessionOptions) {
    this.#options = options;
    this.#secret = options.secret ?? randomBytes(32);
    this.#renewMs = Math.min(MAX_RENEW_MS, options.idleMs / 10);
    options.ended.onEnded((user) => this.#runEndings(user));
  }

  /**
   * A new session of a user who has just proved who they are; `renewedToken` is its cookie. Null if the user is gone,
   * or logged in with an API token: the session would have the rights of the user.
   */
  open(user: User, origin: SessionOrigin): ConsoleSession | null {
    const account = this.#options.accountNamed(user.name);
    if (account?.user !== user) return null;
    const startedAt = this.#options.ended.startOf(user.name, passwordMark(this.#keyOf(account)));
    const id = randomBytes(ID_BYTES).toString('base64url');
    const claims = { name: user.name, id, startedAt, usedAt: this.#options.clock.now() };
    this.#see(account, claims, () => origin);
    return this.#session(account, claims, true);
  }

  /**
   * The session of a token; null if the token is not ours, or its session has ended.
   * @param origin called if this node has not seen the session before
   */
  find(token: string, origin: () => SessionOrigin): ConsoleSession | null {
    const read = this.#read(token);
    if (read === null) return null;
    this.#see(read.account, read.claims, origin);
    const now = this.#options.clock.now();
    const isDue = now - read.claims.usedAt >= this.#renewMs;
    return this.#session(read.account, isDue ? { ...read.claims, usedAt: now } : read.claims, isDue);
  }

  /**
   * Signs out: this node accepts no token of the session any more, and others as soon as they know. Resolves when it is
   * stored.
   * @throws QuaysideError as `EndedSessions.end`
   */
  async end(token: string): Promise<void> {
    const read = this.#read(token);
    if (read === null) return;
    const { name, id, startedAt } = read.claims;
    await this.#end(name, digest(id), startedAt);
  }

  /**
   * Signs out a session of a user by its {@link SeenSession} id, whichever node has served it.
   * @param startedAt null: not known
   * @throws QuaysideError as `EndedSessions.end`
   */
  async endListed(name: string, id: string, startedAt: number | null): Promise<void> {
    const use = this.#seen.get(id);
    if (use !== undefined && use.name !== name) return;
    await this.#end(name, id, use?.startedAt ?? startedAt);
  }

  /** Signs out all sessions of a user. @throws QuaysideError as `EndedSessions.end` */
  async endAll(name: string): Promise<void> {
    await this.#options.ended.endAll(name);
  }

  /**
   * The password of an account counts no more, or its user is gone: its sessions end for good, also on nodes that have
   * not read that yet, and if the same user and password are configured again.
   * @throws QuaysideError as `EndedSessions.end`
   */
  async endPassword(account: Account): Promise<void> {
    const { ended, secret } = this.#options;
    const mark = passwordMark(this.#keyOf(account));
    // Without a secret that nodes share, no other node accepts such a session.
    if (secret === null) ended.endPasswordHere(account.user.name, mark);
    else await ended.endPassword(account.user.name, mark);
  }

  /** The sessions of a user that this node has served and that have not ended, the latest used first. */
  seenOf(name: string): readonly SeenSession[] {
    const account = this.#options.accountNamed(name);
    if (account === null) return [];
    const now = this.#options.clock.now();
    const key = this.#keyOf(account);
    const own: SeenSession[] = [];
    for (const [id, use] of this.#seen) {
      const { startedAt, usedAt, origin } = use;
      const expiresAt = this.#endOf(use);
      const hasEnded = expiresAt <= now || !use.key.equals(key) || this.#hasEnded(name, id, use);
      if (use.name === name && !hasEnded) own.push({ id, startedAt, usedAt, expiresAt, ...origin });
    }
    return own.sort((a, b) => b.usedAt - a.usedAt);
  }

  async #end(name: string, id: string, startedAt: number | null): Promise<void> {
    const { ended, secret } = this.#options;
    // Without a secret that nodes share, a session that this node has served is its own, and so is any if it shares no
    // engine.
    if (secret === null && (this.#seen.has(id) || !ended.isShared)) ended.endHere(name, id, startedAt);
    else await ended.end(name, id, startedAt);
  }

  #hasEnded(name: string, id: string, { startedAt, key }: Pick<SessionUse, 'startedAt' | 'key'>): boolean {
    return this.#options.ended.has(name, { id, startedAt, password: passwordMark(key) });
  }

  #runEndings(user: string): void {
    for (const { name, isOver, runs } of [...this.#endings.values()]) {
      if (name === user && isOver()) for (const run of [...runs]) run();
    }
  }

  #see(account: Account, { id, name, startedAt }: Claims, origin: () => SessionOrigin): void {
    const usedAt = this.#options.clock.now();
    const key = digest(id);
    const known = this.#seen.get(key);
    if (known !== undefined) {
      known.usedAt = usedAt;
      return;
    }
    const use = { name, key: this.#keyOf(account), startedAt, origin: origin(), usedAt };
    putLast(this.#seen, key, use, MAX_SEEN);
  }

  /**
   * Calls `run` once, when the session of a token is ended on any node, or has lasted as long as one may: for responses
   * that do not end by themselves.
   * @returns a function that prevents it
   */
  onEnd(token: string, run: () => void): () => void {
    const read = this.#read(token);
    if (read === null) {
      run();
      return () => {};
    }
    const { clock } = this.#options;
    const { name, startedAt } = read.claims;
    const id = digest(read.claims.id);
    const use = { startedAt, key: this.#keyOf(read.account) };
    const isOver = (): boolean => this.#hasEnded(name, id, use);
    const endings = this.#endings.get(id) ?? { name, isOver, runs: new Set() };
    this.#endings.set(id, endings);
    const forget = (): void => {
      cancelTimer();
      endings.runs.delete(end);
      if (endings.runs.size === 0 && this.#endings.get(id) === endings) this.#endings.delete(id);
    };
    const end = (): void => {
      forget();
      run();
    };
    const cancelTimer = clock.after(startedAt + MAX_SESSION_MS - clock.now(), end);
    endings.runs.add(end);
    return forget;
  }

  #session(account: Account, claims: Claims, isNew: boolean): ConsoleSession {
    const key = this.#keyOf(account);
    const body = isNew ? Buffer.from(JSON.stringify(claims)).toString('base64url') : '';
    const { name, startedAt } = claims;
    const id = digest(claims.id);
    return {
      user: account.user,
      id,
      csrfToken: sign(key, `csrf ${claims.id}`),
      expiresAt: this.#endOf(claims),
      renewedToken: isNew ? `${body}.${sign(key, `session ${body}`)}` : null,
      isOver: () =>
        startedAt + MAX_SESSION_MS <= this.#options.clock.now() ||
        this.#hasEnded(name, id, { startedAt, key }),
    };
  }

  #read(token: string): { account: Account; claims: Claims } | null {
    const [body = '', signature = '', ...more] = token.split('.');
    if (token.length > MAX_TOKEN_LENGTH || more.length > 0) return null;
    const claims = parseClaims(body);
    const account = claims === null ? null : this.#options.accountNamed(claims.name);
    if (claims === null || account === null) return null;
    if (!isEqual(signature, sign(this.#keyOf(account), `session ${body}`))) return null;
    if (this.#endOf(claims) <= this.#options.clock.now()) return null;
    const use = { startedAt: claims.startedAt, key: this.#keyOf(account) };
    return this.#hasEnded(claims.name, digest(claims.id), use) ? null : { account, claims };
  }

  #endOf({ startedAt, usedAt }: Pick<Claims, 'startedAt' | 'usedAt'>): number {
    return Math.min(startedAt + MAX_SESSION_MS, usedAt + this.#options.idleMs);
  }

  #keyOf(account: Account): Buffer {
    const known = this.#keys.get(account);
    if (known !== undefined) return known;
    const text = JSON.stringify(['console session', account.user.name, passwordText(account.password)]);
    const key = createHmac('sha256', this.#secret).update(text).digest();
    this.#keys.set(account, key);
    return key;
  }
}

function sign(key: Buffer, text: string): string {
  return createHmac('sha256', key).update(text).digest('base64url');
}

/**
 * Names the password of a key in what is stored. Neither the key nor the password can be found from it without
 * `secret`.
 */
function passwordMark(key: Buffer): string {
  return sign(key, 'password');
}

/** In a time that says nothing about how much of a secret is right. */
export function isEqual(given: string, right: string): boolean {
  return timingSafeEqual(hash('sha256', given, 'buffer'), hash('sha256', right, 'buffer'));
}

/** Session ids are kept hashed only: what reads the memory of this process signs in nowhere with them. */
function digest(id: string): string {
  return hash('sha256', id, 'base64url');
}

function parseClaims(body: string): Claims | null {
  try {
    const claims = JSON.parse(Buffer.from(body, 'base64url').toString()) as Partial<Claims> | null;
    const { name, id, startedAt, usedAt } = claims ?? {};
    if (typeof name !== 'string' || typeof id !== 'string') return null;
    if (typeof startedAt !== 'number' || typeof usedAt !== 'number') return null;
    return { name, id, startedAt, usedAt };
  } catch {
    return null;
  }
}

/** A session of the console ends this long after its sign-in, however much it is used. */
const MAX_SESSION_MS = 12 * 3_600_000;
/** Sessions, and passwords, that are remembered one by one for a user. More are remembered by a moment for all. */
const MAX_PER_USER = 100;
const STORE_AGAIN_MS = 1_000;
/**
 * How far the clocks of two nodes may be apart: a session that began just now on another node may seem to begin later.
 */
const CLOCK_SKEW_MS = 60_000;

/** What says whether a session of the console has ended before its time. */
interface SessionMarks {
  /** Digest of its id. */
  readonly id: string;
  /** ms since 1970. */
  readonly startedAt: number;
  /** Names the password with which it began, as `ConsoleSessions` does. */
  readonly password: string;
}

/** By id of the session, or by password: such sessions that began before this moment have ended, ms since 1970. */
type Ends = Map<string, number>;

/** What has ended of one user's sessions. It only grows, until those sessions would have ended by themselves. */
interface UserEnds {
  readonly sessions: Ends;
  readonly passwords: Ends;
  /** All sessions that began before. */
  before: number;
}

interface StoredEnds {
  readonly sessions: readonly (readonly [id: string, before: number])[];
  readonly passwords: readonly (readonly [password: string, before: number])[];
  readonly before: number;
}

interface EndedSessionsOptions {
  /** The namespaces of this node with the stores of their engines, in the order of the configuration. */
  readonly namespaces: readonly { readonly definitions: Definitions; readonly isShared: boolean }[];
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: Pick<FrontEndLog, 'warn' | 'error'>;
}

/**
 * Ends of sessions of the console that come before their time: sign-outs and passwords that do not count any more. They
 * are definitions of the engines, so that all nodes know them (ADR 17). One definition for each user, which nodes
 * merge.
 */
export class EndedSessions implements Service {
  /** Whether other nodes learn of what ends. */
  readonly isShared: boolean;
  readonly #options: EndedSessionsOptions;
  readonly #caches: DefinitionsCaches;
  readonly #retries: Retries;
  readonly #users = new Map<string, UserEnds>();
  #onEnded: (user: string) => void = () => {};

  constructor(options: EndedSessionsOptions) {
    this.#options = options;
    const { namespaces, clock, random, log } = options;
    const shared = namespaces.filter(({ isShared }) => isShared);
    this.isShared = shared.length > 0;
    this.#caches = new DefinitionsCaches({
      // A node that shares nothing remembers for itself, across restarts.
      stores: (shared.length > 0 ? shared : namespaces.slice(0, 1)).map((one) => one.definitions),
      kind: 'ended-sessions',
      clock,
      random,
      onRead: (user, definition, hasChanged) => {
        if (!hasChanged || definition === null) return;
        this.#merge(user, storedEnds(definition));
        if (isWhole(definition)) return;
        log.error(
          { user },
          'stored ends of sessions of the console are not understood, and kept as they are',
        );
      },
      onFailedRead: (_, err) => log.warn({ err }, 'sessions of the console that ended could not be read yet'),
    });
    this.#retries = new Retries({
      clock,
      delayMs: STORE_AGAIN_MS,
      maxAtOnce: MAX_CHANGES,
      failed: (_, err) => log.warn({ err }, 'the end of a session of the console could not be stored yet'),
    });
  }

  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
    await Promise.all([...this.#caches].map(([definitions, cache]) => this.#forgetOld(definitions, cache)));
  }

  async stop(): Promise<void> {
    this.#retries.stop();
    this.#caches.stop();
    await this.#caches.idle();
  }

  /** Calls `run` with the user when sessions of one may have ended, on whichever node. */
  onEnded(run: (user: string) => void): void {
    this.#onEnded = run;
  }

  has(user: string, { id, startedAt, password }: SessionMarks): boolean {
    const ends = this.#users.get(user);
    if (ends === undefined) return false;
    return ends.sessions.has(id) || startedAt < Math.max(ends.before, ends.passwords.get(password) ?? 0);
  }

  /** When a session may begin, ms since 1970: an end of all sessions may be in the future of this node's clock. */
  startOf(user: string, password: string): number {
    const ends = this.#users.get(user);
    const before = Math.max(ends?.before ?? 0, ends?.passwords.get(password) ?? 0);
    return Math.max(before, this.#options.clock.now());
  }

  /** Ends a session on this node alone, which is the only one that accepts it. @param startedAt null: not known */
  endHere(user: string, id: string, startedAt: number | null): void {
    const before = startedAt === null ? this.#now() : startedAt + 1;
    this.#merge(user, { sessions: [[id, before]], passwords: [], before: 0 });
  }

  /**
   * Ends a session on all nodes; on this one before anything is stored. Resolves when it is stored.
   * @param startedAt null: not known
   * @throws QuaysideError as `Definitions.put`; then it is stored later
   */
  end(user: string, id: string, startedAt: number | null): Promise<void> {
    this.endHere(user, id, startedAt);
    return this.#store(user);
  }

  /** The same for all sessions of a user. */
  endAll(user: string): Promise<void> {
    this.#merge(user, { sessions: [], passwords: [], before: this.#now() });
    return this.#store(user);
  }

  /** As `endHere`, for all sessions of a user that began with a password. */
  endPasswordHere(user: string, password: string): void {
    this.#merge(user, { sessions: [], passwords: [[password, this.#now()]], before: 0 });
  }

  /** As `end`, for all sessions of a user that began with a password. */
  endPassword(user: string, password: string): Promise<void> {
    this.endPasswordHere(user, password);
    return this.#store(user);
  }

  /** No session has begun later, whichever node's clock says when. */
  #now(): number {
    return this.#options.clock.now() + CLOCK_SKEW_MS;
  }

  #merge(user: string, { sessions, passwords, before }: StoredEnds): void {
    const ends = this.#users.get(user) ?? { sessions: new Map(), passwords: new Map(), before: 0 };
    add(ends.sessions, sessions);
    add(ends.passwords, passwords);
    ends.before = Math.max(ends.before, before);
    this.#shorten(ends);
    if (isEmpty(ends)) this.#users.delete(user);
    else this.#users.set(user, ends);
    this.#onEnded(user);
  }

  /**
   * Leaves out what would have ended by itself. Of more than are kept, the oldest become one moment for all: sessions
   * that began before end as well, and none that was ended comes back.
   */
  #shorten(ends: UserEnds): void {
    const since = this.#options.clock.now() - MAX_SESSION_MS;
    for (const list of [ends.sessions, ends.passwords]) {
      for (const [name, before] of list) if (before <= since) list.delete(name);
      const oldest = [...list].sort(([, a], [, b]) => a - b).slice(0, Math.max(0, list.size - MAX_PER_USER));
      for (const [name, before] of oldest) {
        list.delete(name);
        ends.before = Math.max(ends.before, before);
      }
    }
    if (ends.before <= since) ends.before = 0;
  }

  /**
   * In every engine that nodes share: they may share one of them only.
   * @throws QuaysideError the error of the first that failed
   */
  async #store(user: string): Promise<void> {
    const errors: unknown[] = [];
    const storing = [...this.#caches].map(([definitions, cache], at) => {
      const store = async (): Promise<void> => {
        try {
          await this.#storeIn(definitions, cache, user);
        } catch (error) {
          errors.push(error);
          throw error;
        }
      };
      return this.#retries.do(JSON.stringify([at, user]), store, String(at));
    });
    await Promise.all(storing);
    if (errors.length > 0) throw errors[0];
  }

  /** What another node ended in between is merged. */
  #storeIn(definitions: Definitions, cache: DefinitionsCache, user: string): Promise<void> {
    return retryConflicts(async () => {
      const stored = await definitions.get('ended-sessions', user);
      // A later version of this program, or a hand, wrote more than could be put back.
      if (stored !== null && !isWhole(stored)) throw notUnderstood(user);
      if (stored !== null) this.#merge(user, storedEnds(stored));
      const ends = this.#users.get(user);
      if (ends === undefined) return;
      const value = { ...ends, sessions: [...ends.sessions], passwords: [...ends.passwords] };
      const version = await definitions.put('ended-sessions', user, value, stored?.version ?? null);
      cache.note(user, { key: user, value, version });
    });
  }

  /** Deletes records that have no effect any more. */
  async #forgetOld(definitions: Definitions, cache: DefinitionsCache): Promise<void> {
    for (const user of cache.keys()) {
      const definition = cache.get(user);
      if (definition === null || this.#users.has(user) || !isWhole(definition)) continue;
      const isDeleted = await definitions.delete('ended-sessions', user, definition.version).then(
        () => true,
        // Another node came first, or the next start does it.
        () => false,
      );
      if (isDeleted) cache.note(user, null);
    }
  }
}

function add(ends: Ends, more: readonly (readonly [string, number])[]): void {
  for (const [name, before] of more) ends.set(name, Math.max(before, ends.get(name) ?? 0));
}

function isEmpty({ sessions, passwords, before }: UserEnds | StoredEnds): boolean {
  return [...sessions].length === 0 && [...passwords].length === 0 && before === 0;
}

/** Whether a definition says nothing but what this version reads. */
function isWhole({ value }: { readonly value: JsonValue }): boolean {
  const { sessions, passwords, before } = storedEnds({ value });
  return isDeepStrictEqual(value, { sessions, passwords, before });
}

function notUnderstood(user: string): QuaysideError {
  return new QuaysideError(
    'storage-unavailable',
    `What is stored of ended sessions of user ${quote(user)} is not understood by this version, and is kept. The end counts on this node.`,
  );
}

/** What this version cannot read is left out. */
function storedEnds({ value }: { readonly value: JsonValue }): StoredEnds {
  const { sessions, passwords, before } = (value ?? {}) as Partial<Record<keyof StoredEnds, unknown>>;
  return {
    sessions: pairs(sessions),
    passwords: pairs(passwords),
    before: typeof before === 'number' ? before : 0,
  };
}

function pairs(value: unknown): (readonly [string, number])[] {
  return (Array.isArray(value) ? value : []).filter(
    (pair): pair is readonly [string, number] =>
      Array.isArray(pair) && typeof pair[0] === 'string' && typeof pair[1] === 'number',
  );
}
