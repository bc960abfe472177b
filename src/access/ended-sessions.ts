import { isDeepStrictEqual } from 'node:util';
import { type Definition, type Definitions, retryConflicts } from '../engine/definitions.ts';
import { type DefinitionsCache, DefinitionsCaches } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { MAX_CHANGES, Retries } from '../util/retries.ts';
import type { Service } from '../util/service.ts';

/** Maximum length of a console session, regardless of use. */
export const MAX_SESSION_MS = 12 * 3_600_000;
/** Maximum ended sessions and passwords stored per user. The oldest others are merged into one moment. */
const MAX_PER_USER = 100;
const STORE_RETRY_MS = 1_000;
/**
 * Maximum clock difference between nodes: a session that another node has just started may have a start in the future.
 */
const CLOCK_SKEW_MS = 60_000;

/** What identifies a session among the ended ones. */
interface SessionIdentity {
  /** Digest of its id. */
  readonly id: string;
  /** ms since 1970. */
  readonly startedAt: number;
  /** `passwordIdOf` the password with which the session started. */
  readonly password: string;
}

/** One session, the sessions that started with a password, or all of a user. */
type SessionsToEnd =
  /** `startedAt` is null if unknown. */
  { readonly id: string; readonly startedAt: number | null } | { readonly password: string } | 'all';

/**
 * The ended sessions of one user, by session id, by password mark, or {@link EVERY_SESSION}: matching sessions that
 * started before this moment, ms since 1970, have ended. Entries are removed only after the sessions would have expired
 * anyway.
 */
type Ends = Map<string, number>;

const EVERY_SESSION = '';

interface EndedSessionsOptions {
  /** This node's namespaces with their engines' definition stores, in the order of the configuration. */
  readonly namespaces: readonly { readonly definitions: Definitions; readonly isShared: boolean }[];
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: Pick<FrontEndLog, 'warn' | 'error'>;
}

/**
 * Records console sessions that end before they expire, because of a sign-out or a changed password. The records are
 * definitions, so all nodes that share an engine know them (ADR 17). Each user has one definition; concurrent changes
 * by several nodes are merged.
 */
export class EndedSessions implements Service {
  /** Whether ended sessions are shared with other nodes. */
  readonly isShared: boolean;
  readonly #options: EndedSessionsOptions;
  readonly #caches: DefinitionsCaches;
  readonly #retries: Retries;
  readonly #users = new Map<string, Ends>();
  #onEnded: (user: string) => void = () => {};

  constructor(options: EndedSessionsOptions) {
    this.#options = options;
    const { namespaces, clock, random, log } = options;
    const shared = namespaces.filter(({ isShared }) => isShared);
    this.isShared = shared.length > 0;
    this.#caches = new DefinitionsCaches({
      // Without a shared engine, the node stores ended sessions for itself, so that they survive a restart.
      stores: (shared.length > 0 ? shared : namespaces.slice(0, 1)).map((one) => one.definitions),
      kind: 'ended-sessions',
      clock,
      random,
      onRead: (user, definition, hasChanged) => {
        if (!hasChanged || definition === null) return;
        this.#merge(user, storedEnds(definition));
        if (isUnderstood(definition)) return;
        log.error({ user }, 'stored ended console sessions have an unknown format and are left unchanged');
      },
      onFailedRead: (_, err) => log.warn({ err }, 'ended console sessions could not be read yet'),
    });
    this.#retries = new Retries({
      clock,
      delayMs: STORE_RETRY_MS,
      maxAtOnce: MAX_CHANGES,
      failed: (_, err) => log.warn({ err }, 'the end of a console session could not be stored yet'),
    });
  }

  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
    await Promise.all([...this.#caches].map(([, cache]) => this.#deleteExpired(cache)));
  }

  async stop(): Promise<void> {
    this.#retries.stop();
    await this.#caches.stop();
  }

  /** Calls `run` with the user name when sessions of a user may have ended on any node. */
  onEnded(run: (user: string) => void): void {
    this.#onEnded = run;
  }

  has(user: string, { id, startedAt, password }: SessionIdentity): boolean {
    const ends = this.#users.get(user);
    return ends !== undefined && (ends.has(id) || startedAt < latestEnd(ends, password));
  }

  /** Start of a new session, ms since 1970: after every recorded end, which may lie ahead of this node's clock. */
  startOf(user: string, password: string): number {
    return Math.max(latestEnd(this.#users.get(user), password), this.#options.clock.now());
  }

  /**
   * Ends sessions of a user on all nodes, on this node immediately. Resolves when the end is stored.
   * @param isLocal whether only this node accepts the sessions, so that nothing needs to be stored
   * @throws QuaysideError as `Definitions.put`; storing is then retried in the background
   */
  async end(user: string, which: SessionsToEnd, isLocal = false): Promise<void> {
    this.#merge(user, [this.#endOf(which)]);
    if (!isLocal) await this.#store(user);
  }

  #endOf(which: SessionsToEnd): [key: string, before: number] {
    // All existing sessions have started before this moment, by the clock of any node.
    const now = this.#options.clock.now() + CLOCK_SKEW_MS;
    if (which === 'all') return [EVERY_SESSION, now];
    if ('password' in which) return [which.password, now];
    return [which.id, which.startedAt === null ? now : which.startedAt + 1];
  }

  #merge(user: string, more: Iterable<readonly [key: string, before: number]>): void {
    const ends = this.#users.get(user) ?? new Map<string, number>();
    for (const [key, before] of more) putLater(ends, key, before);
    this.#compact(ends);
    if (ends.size === 0) this.#users.delete(user);
    else this.#users.set(user, ends);
    this.#onEnded(user);
  }

  /**
   * Removes entries of sessions that would have expired by now. If more than the maximum remain, merges the oldest into
   * that of every session: this also ends other sessions that started before, but never revives an ended one.
   */
  #compact(ends: Ends): void {
    const since = this.#options.clock.now() - MAX_SESSION_MS;
    for (const [key, before] of ends) if (before <= since) ends.delete(key);
    const single = [...ends].filter(([key]) => key !== EVERY_SESSION).sort(([, a], [, b]) => a - b);
    for (const [key, before] of single.slice(0, Math.max(0, single.length - MAX_PER_USER))) {
      ends.delete(key);
      putLater(ends, EVERY_SESSION, before);
    }
  }

  /**
   * Stores the user's record in every shared engine, because two nodes may have only one of them in common.
   * @throws QuaysideError the first failure
   */
  async #store(user: string): Promise<void> {
    const errors = await Promise.all(
      [...this.#caches].map(([, cache], at) => {
        const store = (): Promise<void> => this.#storeIn(cache, user);
        return this.#retries.do(JSON.stringify([at, user]), store, String(at));
      }),
    );
    for (const error of errors) if (error !== null) throw error;
  }

  #storeIn(cache: DefinitionsCache, user: string): Promise<void> {
    return retryConflicts(async () => {
      // This merges what other nodes have stored.
      const stored = await cache.read(user);
      // A newer version may have stored more than this one can read: overwriting would lose it.
      if (stored !== null && !isUnderstood(stored)) throw notUnderstood(user);
      const ends = this.#users.get(user);
      if (ends === undefined) return;
      await cache.put(user, { ends: [...ends] }, stored?.version ?? null);
    });
  }

  /** Deletes the stored records whose entries have all expired. */
  async #deleteExpired(cache: DefinitionsCache): Promise<void> {
    for (const user of cache.keys()) {
      const definition = cache.get(user);
      if (definition === null || this.#users.has(user) || !isUnderstood(definition)) continue;
      // It fails if another node has changed or deleted it, or with the engine; the next start tries again.
      await cache.delete(user, definition.version).catch(() => {});
    }
  }
}

/** The moment before which sessions with a password must have started to have ended; 0: none have. */
function latestEnd(ends: Ends | undefined, password: string): number {
  return Math.max(ends?.get(EVERY_SESSION) ?? 0, ends?.get(password) ?? 0);
}

function putLater(ends: Ends, key: string, before: number): void {
  ends.set(key, Math.max(before, ends.get(key) ?? 0));
}

/** Whether this version understands every part of a definition. */
function isUnderstood({ value }: Definition): boolean {
  const { ends, sessions, passwords, before } = membersOf(value);
  const current = { ends: pairs(ends) };
  const first = { sessions: pairs(sessions), passwords: pairs(passwords), before: Number(before) };
  return isDeepStrictEqual(value, current) || isDeepStrictEqual(value, first);
}

function notUnderstood(user: string): QuaysideError {
  return new QuaysideError(
    'storage-unavailable',
    `The stored ended sessions of user ${quote(user)} have a format that this version does not know, and are left unchanged. The session has ended on this node only.`,
  );
}

/** The ends in a definition, also in the first form, which had three members. Skips those that cannot be read. */
function storedEnds({ value }: Definition): (readonly [string, number])[] {
  const { ends, sessions, passwords, before } = membersOf(value);
  return [...pairs(ends), ...pairs(sessions), ...pairs(passwords), ...pairs([[EVERY_SESSION, before]])];
}

function membersOf(value: unknown): Readonly<Record<string, unknown>> {
  return (value ?? {}) as Readonly<Record<string, unknown>>;
}

function pairs(value: unknown): (readonly [string, number])[] {
  return (Array.isArray(value) ? value : []).filter(
    (pair): pair is readonly [string, number] =>
      Array.isArray(pair) && typeof pair[0] === 'string' && typeof pair[1] === 'number',
  );
}
