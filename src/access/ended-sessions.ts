import { isDeepStrictEqual } from 'node:util';
import type { Definitions, JsonValue } from '../engine/definitions.ts';
import { DefinitionsCache } from '../engine/definitions-cache.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import type { FrontEndLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { Retries } from '../util/retries.ts';
import type { Service } from '../util/service.ts';

/** A session of the console ends this long after its sign-in, however much it is used. */
export const MAX_SESSION_MS = 12 * 3_600_000;
/** Sessions, and passwords, that are remembered one by one for a user. More are remembered by a moment for all. */
const MAX_PER_USER = 100;
const STORE_AGAIN_MS = 1_000;
/** How far the clocks of two nodes may be apart: a session that began just now on another node may seem to begin later. */
const CLOCK_SKEW_MS = 60_000;

/** What says whether a session of the console has ended before its time. */
export interface SessionMarks {
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
  readonly log: Pick<FrontEndLog, 'warn' | 'error'>;
}

/**
 * Ends of sessions of the console that come before their time: sign-outs and passwords that do not count any more. They are
 * definitions of the engines, so that all nodes know them (ADR 17). One definition for each user, which nodes merge.
 */
export class EndedSessions implements Service {
  /** Whether other nodes learn of what ends. */
  readonly isShared: boolean;
  readonly #options: EndedSessionsOptions;
  readonly #caches: ReadonlyMap<Definitions, DefinitionsCache>;
  readonly #retries: Retries;
  readonly #users = new Map<string, UserEnds>();
  #onEnded: (user: string) => void = () => {};

  constructor(options: EndedSessionsOptions) {
    this.#options = options;
    const { namespaces, clock, log } = options;
    const shared = namespaces.filter(({ isShared }) => isShared);
    this.isShared = shared.length > 0;
    // A node that shares nothing remembers for itself, across restarts.
    const stores = new Set(
      (shared.length > 0 ? shared : namespaces.slice(0, 1)).map((one) => one.definitions),
    );
    this.#caches = new Map([...stores].map((definitions) => [definitions, this.#cacheOf(definitions)]));
    this.#retries = new Retries({
      clock,
      delayMs: STORE_AGAIN_MS,
      failed: (_, err) => log.warn({ err }, 'the end of a session of the console could not be stored yet'),
    });
  }

  async start(): Promise<void> {
    for (const cache of this.#caches.values()) cache.start();
    await Promise.all([...this.#caches.values()].map((cache) => cache.reload()));
    await Promise.all([...this.#caches].map(([definitions, cache]) => this.#forgetOld(definitions, cache)));
  }

  async stop(): Promise<void> {
    this.#retries.stop();
    for (const cache of this.#caches.values()) cache.stop();
    await Promise.all([...this.#caches.values()].map((cache) => cache.idle()));
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

  #cacheOf(definitions: Definitions): DefinitionsCache {
    const { clock, log } = this.#options;
    return new DefinitionsCache({
      definitions,
      kind: 'ended-sessions',
      clock,
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
   * Leaves out what would have ended by itself. Of more than are kept, the oldest become one moment for all: sessions that began
   * before end as well, and none that was ended comes back.
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

  /** In every engine that nodes share: they may share one of them only. @throws QuaysideError the error of the first that failed */
  async #store(user: string): Promise<void> {
    const errors: unknown[] = [];
    const storing = [...this.#caches].map(([definitions, cache], at) =>
      this.#retries.do(JSON.stringify([at, user]), async () => {
        try {
          await this.#storeIn(definitions, cache, user);
        } catch (error) {
          errors.push(error);
          throw error;
        }
      }),
    );
    await Promise.all(storing);
    if (errors.length > 0) throw errors[0];
  }

  async #storeIn(definitions: Definitions, cache: DefinitionsCache, user: string): Promise<void> {
    for (;;) {
      const stored = await definitions.get('ended-sessions', user);
      // A later version of this program, or a hand, wrote more than could be put back.
      if (stored !== null && !isWhole(stored)) throw notUnderstood(user);
      if (stored !== null) this.#merge(user, storedEnds(stored));
      const ends = this.#users.get(user);
      if (ends === undefined) return;
      const value = { ...ends, sessions: [...ends.sessions], passwords: [...ends.passwords] };
      try {
        const version = await definitions.put('ended-sessions', user, value, stored?.version ?? null);
        cache.note(user, { key: user, value, version });
        return;
      } catch (error) {
        // Another node wrote in between: what it ended is merged.
        if (!(error instanceof QuaysideError) || error.code !== 'definition-conflict') throw error;
      }
    }
  }

  /** Deletes what says nothing any more. */
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
