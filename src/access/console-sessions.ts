import { createHmac, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../util/clock.ts';
import type { Account } from './account.ts';
import { type EndedSessions, MAX_SESSION_MS } from './ended-sessions.ts';
import { passwordText } from './password.ts';
import type { User } from './user.ts';

/** A token is replaced when it is this old, or a tenth of the idle time if that is less: not with each request. */
const MAX_RENEW_MS = 60_000;
/** Sessions whose last use is remembered, for their users to see; a further one replaces the one that was seen first. */
const MAX_SEEN = 10_000;
const ID_BYTES = 16;
/** A longer token is none of ours: a user name has at most 256 bytes. */
const MAX_TOKEN_LENGTH = 1_024;

export interface ConsoleSessionOptions {
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
 * Sessions of the console: signed tokens instead of a table, so that every node with the same secret accepts them (ADR 17).
 * The key of a user's tokens depends on the stored password: another password ends the user's sessions. What ends them before
 * their time is in `EndedSessions`.
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
   * A new session of a user who has just proved who they are; `renewedToken` is its cookie. Null if the user is gone, or
   * logged in with an API token: the session would have the rights of the user.
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
   * Signs out: this node accepts no token of the session any more, and others as soon as they know. Resolves when it is stored.
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
   * The password of an account counts no more, or its user is gone: its sessions end for good, also on nodes that have not read
   * that yet, and if the same user and password are configured again.
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
    // Without a secret that nodes share, a session that this node has served is its own, and so is any if it shares no engine.
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
    const [oldest] = this.#seen.keys();
    if (this.#seen.size >= MAX_SEEN && oldest !== undefined) this.#seen.delete(oldest);
    this.#seen.set(key, { name, key: this.#keyOf(account), startedAt, origin: origin(), usedAt });
  }

  /**
   * Calls `run` once, when the session of a token is ended on any node, or has lasted as long as one may: for responses that do not
   * end by themselves.
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
    return {
      user: account.user,
      id: digest(claims.id),
      csrfToken: sign(key, `csrf ${claims.id}`),
      expiresAt: this.#endOf(claims),
      renewedToken: isNew ? `${body}.${sign(key, `session ${body}`)}` : null,
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

/** Names the password of a key in what is stored. Neither the key nor the password can be found from it without `secret`. */
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
