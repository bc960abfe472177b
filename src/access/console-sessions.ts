import { createHmac, hash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Clock } from '../util/clock.ts';
import { parsedJson } from '../util/parsed-json.ts';
import { putLast } from '../util/put-last.ts';
import { fitsSchema, type Static, Type } from '../util/schema.ts';
import type { Account } from './account.ts';
import { type EndedSessions, MAX_SESSION_MS } from './ended-sessions.ts';
import { passwordText } from './password.ts';
import type { User } from './user.ts';

/** A session token is renewed at this age, or at a tenth of the idle time if that is shorter, not with each request. */
const MAX_RENEW_MS = 60_000;
/** Maximum sessions listed for their users. Beyond this, the session that was seen first is evicted from the list. */
const MAX_SEEN = 10_000;
const ID_BYTES = 16;
/** Longer tokens are rejected. A user name has at most 256 bytes, so valid tokens are shorter. */
const MAX_TOKEN_LENGTH = 1_024;

interface ConsoleSessionOptions {
  /** The account of this name, or null. */
  readonly accountNamed: (name: string) => Account | null;
  readonly clock: Clock;
  /** How long a session lasts without a request. */
  readonly idleMs: number;
  /** Key that signs tokens, the same on all nodes; null: a random key, so that sessions end with the process. */
  readonly secret: string | null;
  readonly ended: EndedSessions;
}

/** A valid console session, as seen by one of its requests. */
export interface ConsoleSession {
  readonly user: User;
  /** As in {@link SeenSession}. */
  readonly id: string;
  /** Required in `X-CSRF-Token` by requests that change something. Constant for the whole session. */
  readonly csrfToken: string;
  /** When the session ends if there is no further request, ms since 1970. */
  readonly expiresAt: number;
  /** The new cookie to set; null: the cookie of the request remains valid. */
  readonly renewedToken: string | null;
  /** Whether the session has since been ended on any node or reached its maximum length. */
  isOver(): boolean;
  /** Calls `run` once the session is over, perhaps now. @returns a function that cancels this */
  onEnd(run: () => void): () => void;
  /**
   * Signs out. This node rejects the session's tokens immediately, other nodes once the signal has arrived. Resolves
   * when the end is stored.
   * @throws QuaysideError as `EndedSessions.end`
   */
  end(): Promise<void>;
}

/** The client that uses a session. */
export interface SessionOrigin {
  readonly address: string;
  /** The `User-Agent` of the browser; null if it sent none. */
  readonly browser: string | null;
}

/** A session that this node has served, as shown to its user. */
export interface SeenSession extends SessionOrigin {
  /** Digest of the session's id. It identifies the session, but cannot be used to sign in. */
  readonly id: string;
  /** Moments in ms since 1970. */
  readonly startedAt: number;
  readonly usedAt: number;
  readonly expiresAt: number;
}

interface SessionUse {
  readonly name: string;
  /** Derived from the password with which the session started. */
  readonly key: Buffer;
  readonly startedAt: number;
  readonly origin: SessionOrigin;
  usedAt: number;
}

/** The signed content of a session token. Moments are ms since 1970. */
const Claims = Type.Object({
  name: Type.String(),
  id: Type.String(),
  startedAt: Type.Number(),
  usedAt: Type.Number(),
});
type Claims = Static<typeof Claims>;

/**
 * Console sessions: signed tokens instead of a table, so that every node with the same secret accepts them (ADR 17).
 * The signing key depends on the user's stored password: changing the password ends the user's sessions.
 * `EndedSessions` records sessions that were ended before they expire.
 */
export class ConsoleSessions {
  readonly #options: ConsoleSessionOptions;
  readonly #secret: string | Buffer;
  readonly #renewMs: number;
  readonly #keys = new WeakMap<Account, Buffer>();
  /** By the digest of the session's id. */
  readonly #seen = new Map<string, SessionUse>();
  /** Called with the name of a user whose sessions may have ended. */
  readonly #endWatchers = new Set<(user: string) => void>();

  constructor(options: ConsoleSessionOptions) {
    this.#options = options;
    this.#secret = options.secret ?? randomBytes(32);
    this.#renewMs = Math.min(MAX_RENEW_MS, options.idleMs / 10);
    options.ended.onEnded((user) => {
      for (const check of [...this.#endWatchers]) check(user);
    });
  }

  /**
   * Starts a session of a user who has just authenticated; `renewedToken` is its cookie. Returns null if the user was
   * removed, or logged in with an API token: the session would have all rights of the token's owner.
   */
  open(user: User, origin: SessionOrigin): ConsoleSession | null {
    const account = this.#options.accountNamed(user.name);
    if (account?.user !== user) return null;
    const startedAt = this.#options.ended.startOf(user.name, passwordIdOf(this.#keyOf(account)));
    const id = randomBytes(ID_BYTES).toString('base64url');
    const claims = { name: user.name, id, startedAt, usedAt: this.#options.clock.now() };
    this.#recordUse(account, claims, () => origin);
    return this.#session(account, claims, true);
  }

  /**
   * The session of a token, or null if the token is invalid or its session has ended.
   * @param origin called if this node has not seen the session before
   */
  find(token: string, origin: () => SessionOrigin): ConsoleSession | null {
    const read = this.#read(token);
    if (read === null) return null;
    this.#recordUse(read.account, read.claims, origin);
    const now = this.#options.clock.now();
    const isDue = now - read.claims.usedAt >= this.#renewMs;
    return this.#session(read.account, isDue ? { ...read.claims, usedAt: now } : read.claims, isDue);
  }

  /**
   * Signs out a user's session by its {@link SeenSession} id, even if only other nodes have served it.
   * @param startedAt null if unknown
   * @throws QuaysideError as `EndedSessions.end`
   */
  async endListed(name: string, id: string, startedAt: number | null): Promise<void> {
    const use = this.#seen.get(id);
    if (use !== undefined && use.name !== name) return;
    await this.#end(name, id, use?.startedAt ?? startedAt);
  }

  /** Signs out all sessions of a user. @throws QuaysideError as `EndedSessions.end` */
  async endAll(name: string): Promise<void> {
    await this.#options.ended.end(name, 'all');
  }

  /**
   * Ends all sessions that started with the account's password, because it was changed or the user was removed. They
   * also end on nodes that have not reloaded their users yet, and remain ended if the same user and password are
   * configured again.
   * @throws QuaysideError as `EndedSessions.end`
   */
  async endPassword(account: Account): Promise<void> {
    const { ended, secret } = this.#options;
    const password = passwordIdOf(this.#keyOf(account));
    // Without a shared secret, no other node accepts these sessions.
    await ended.end(account.user.name, { password }, secret === null);
  }

  /** The user's active sessions that this node has served, most recently used first. */
  seenOf(name: string): readonly SeenSession[] {
    const account = this.#options.accountNamed(name);
    if (account === null) return [];
    const now = this.#options.clock.now();
    const key = this.#keyOf(account);
    const sessions: SeenSession[] = [];
    for (const [id, use] of this.#seen) {
      const { startedAt, usedAt, origin } = use;
      const expiresAt = this.#expiryOf(use);
      const hasEnded = expiresAt <= now || !use.key.equals(key) || this.#hasEnded(name, id, use);
      if (use.name === name && !hasEnded) sessions.push({ id, startedAt, usedAt, expiresAt, ...origin });
    }
    return sessions.sort((a, b) => b.usedAt - a.usedAt);
  }

  async #end(name: string, id: string, startedAt: number | null): Promise<void> {
    const { ended, secret } = this.#options;
    // Without a shared secret, a session that this node has served is valid only here. The same holds for every session
    // if the node shares no engine.
    const isLocal = secret === null && (this.#seen.has(id) || !ended.isShared);
    await ended.end(name, { id, startedAt }, isLocal);
  }

  #hasEnded(name: string, id: string, { startedAt, key }: Pick<SessionUse, 'startedAt' | 'key'>): boolean {
    return this.#options.ended.has(name, { id, startedAt, password: passwordIdOf(key) });
  }

  #recordUse(account: Account, { id, name, startedAt }: Claims, origin: () => SessionOrigin): void {
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

  /** @param isNew whether it gets a new cookie */
  #session(account: Account, claims: Claims, isNew: boolean): ConsoleSession {
    const { clock } = this.#options;
    const { name, startedAt } = claims;
    const key = this.#keyOf(account);
    const body = isNew ? Buffer.from(JSON.stringify(claims)).toString('base64url') : '';
    const id = digest(claims.id);
    const isOver = (): boolean =>
      startedAt + MAX_SESSION_MS <= clock.now() || this.#hasEnded(name, id, { startedAt, key });
    return {
      user: account.user,
      id,
      csrfToken: sign(key, `csrf ${claims.id}`),
      expiresAt: this.#expiryOf(claims),
      renewedToken: isNew ? `${body}.${sign(key, `session ${body}`)}` : null,
      isOver,
      onEnd: (run) => {
        const end = (): void => {
          unwatch();
          run();
        };
        const check = (user: string): void => {
          if (user === name && isOver()) end();
        };
        const cancelTimer = clock.after(startedAt + MAX_SESSION_MS - clock.now(), end);
        const unwatch = (): void => {
          cancelTimer();
          this.#endWatchers.delete(check);
        };
        this.#endWatchers.add(check);
        check(name);
        return unwatch;
      },
      end: () => this.#end(name, id, startedAt),
    };
  }

  #read(token: string): { account: Account; claims: Claims } | null {
    const [body = '', signature = '', ...more] = token.split('.');
    if (token.length > MAX_TOKEN_LENGTH || more.length > 0) return null;
    const claims = parseClaims(body);
    const account = claims === null ? null : this.#options.accountNamed(claims.name);
    if (claims === null || account === null) return null;
    if (!isEqual(signature, sign(this.#keyOf(account), `session ${body}`))) return null;
    if (this.#expiryOf(claims) <= this.#options.clock.now()) return null;
    const use = { startedAt: claims.startedAt, key: this.#keyOf(account) };
    return this.#hasEnded(claims.name, digest(claims.id), use) ? null : { account, claims };
  }

  #expiryOf({ startedAt, usedAt }: Pick<Claims, 'startedAt' | 'usedAt'>): number {
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

/** Identifies a password in stored definitions. Without `secret`, it reveals neither the key nor the password. */
function passwordIdOf(key: Buffer): string {
  return sign(key, 'password');
}

/** Compares a secret in constant time. */
export function isEqual(given: string, right: string): boolean {
  return timingSafeEqual(hash('sha256', given, 'buffer'), hash('sha256', right, 'buffer'));
}

/** Only hashed session ids are retained, so that a memory dump contains none that can be used to sign in. */
function digest(id: string): string {
  return hash('sha256', id, 'base64url');
}

function parseClaims(body: string): Claims | null {
  const claims = parsedJson(Buffer.from(body, 'base64url').toString());
  return fitsSchema(Claims, claims) ? (claims as Claims) : null;
}
