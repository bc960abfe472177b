import { UNCOUNTED_BYTES } from '../access/body-limit.ts';
import { overloaded } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { UserLimit } from '../util/user-limit.ts';
import type { HttpCall } from './call.ts';
import { useBody } from './request.ts';

/** Listings of one user that may wait for an earlier one; further ones are rejected. */
const MAX_WAITING_LISTINGS = 16;

/**
 * Bodies larger than `bodyLimit` that are processed at once, which takes a few times their size: of one user, and of
 * all. They have arrived by then, so clients cannot prolong it, and no user needs a guarantee.
 */
const LARGE_BODIES_PER_USER = 2;
const LARGE_BODIES = 4;

/**
 * Bytes of responses that clients have not read yet: of one user, and of all. The body of an element that a take of
 * many popped occupies twice as much memory.
 */
const UNREAD_BYTES_PER_USER = 128 * 1_048_576;
const UNREAD_BYTES = 2 * UNREAD_BYTES_PER_USER;
/** Unread bytes that each user may have regardless of others: the largest take of many. */
const GUARANTEED_UNREAD_BYTES = LIMITS.takeBytes;
/** Exports and imports in progress. Clients may take any time for one, so a user who has none may always start one. */
const EXPORTS_PER_USER = 2;
const EXPORTS = 8;

/** Stands for all requests without a login. No user has this name. */
const ANONYMOUS = '';

/**
 * Limits of the requests that need much memory or processor time, by user: listings, large bodies, exports and imports,
 * and responses that clients do not read.
 */
export class RequestLimits {
  readonly #listings = new ConcurrencyLimit({
    perKey: 1,
    maxWaiting: MAX_WAITING_LISTINGS,
    rejection: () =>
      overloaded(
        `Listings run one at a time for each user, and ${MAX_WAITING_LISTINGS} are waiting; retry later, or read pages with limit.`,
      ),
  });
  /** Any number may wait: `#bodies` bounds those that have arrived. */
  readonly #largeBodies = new ConcurrencyLimit({ perKey: LARGE_BODIES_PER_USER, total: LARGE_BODIES });
  readonly #bodies: ConcurrencyLimit;
  /** Exports and imports, which take as long as their clients do. */
  readonly exports = new ConcurrencyLimit({
    perKey: EXPORTS_PER_USER,
    total: EXPORTS,
    guaranteed: 1,
    maxWaiting: 0,
    rejection: () =>
      overloaded(
        `At most ${EXPORTS_PER_USER} exports and imports of a user run at a time, and one while ${EXPORTS} run in total; retry later.`,
      ),
  });
  readonly #unread = new UserLimit(
    { total: UNREAD_BYTES, perUser: UNREAD_BYTES_PER_USER, guaranteed: GUARANTEED_UNREAD_BYTES },
    ({ total, perUser }) =>
      overloaded(
        `Too many bytes of responses have not been read: at most ${perUser} for one user, ${total} in total. Read those, then retry.`,
      ),
  );

  /** @param bodies bytes of bodies in memory */
  constructor(bodies: ConcurrencyLimit) {
    this.#bodies = bodies;
  }

  /**
   * Runs one listing at a time for each user, from its start until its response is sent: a listing of thousands of
   * queues takes processor time and memory that other users' requests need. Skips it if the client disconnects while it
   * waits.
   * @throws QuaysideError `overloaded`, as `HttpCall.renewUser`, and what `list` throws
   */
  async listInTurn(call: HttpCall, list: () => Promise<void>): Promise<void> {
    const endTurn = await this.#listings.enter(call.user.name);
    if (call.isGone) {
      endTurn();
      return;
    }
    try {
      // Earlier listings may have waited minutes for their clients, so reload the rights.
      call.renewUser();
      await list();
    } catch (error) {
      endTurn();
      throw error;
    }
    if (call.response.closed || call.isGone) endTurn();
    else call.response.once('close', endTurn);
  }

  /**
   * Reads a body that may be larger than `bodyLimit`, and calls `work` with it, as `useBody`. A larger one waits for
   * its turn to be processed.
   * @param finish called with the result of `work`. It may take any time: other large bodies need not wait. Until it
   * has ended, the body counts as occupied, since the result may be as large
   */
  async useLargeBody<T>(
    call: HttpCall,
    maxBytes: number,
    work: (body: Buffer) => Promise<T>,
    finish?: (result: T) => Promise<void>,
  ): Promise<void> {
    const { bodyLimit } = call.front.parts.options;
    await useBody(call, maxBytes, async (body) => {
      const isLarge = body.length > bodyLimit;
      const result = await (isLarge ? this.#largeBodies.run(call.user.name, () => work(body)) : work(body));
      await finish?.(result);
    });
  }

  /**
   * Counts the bytes of a response until the kernel has all of them or its connection closes. Otherwise clients that
   * send requests but read no responses could fill the memory.
   * @throws QuaysideError `overloaded`
   */
  holdUnread(call: HttpCall, bytes: number): void {
    if (bytes <= UNCOUNTED_BYTES || call.isGone) return;
    const { login, request, response } = call;
    const { socket } = request;
    const user = login?.name ?? ANONYMOUS;
    // A single element may be larger than the limit; it then counts as all of it.
    let held = Math.min(bytes, UNREAD_BYTES_PER_USER);
    this.#unread.enter(user, held);
    const release = (): void => {
      response.off('close', release);
      socket.off('close', release);
      this.#unread.exit(user, held);
      // This runs twice if the socket emits `close`, during which Node emits `close` of the response.
      held = 0;
    };
    response.once('close', release);
    // A response that waits for earlier ones has no socket yet and does not emit `close`.
    socket.once('close', release);
  }

  /**
   * Calls `read` when a body of at most this size may be read, perhaps before this returns. Without this limit, a user
   * could occupy a body of memory with each connection.
   * @param read must call `release` once the body need no longer be in memory; calling it again has no effect.
   * `hasWaited`: Node's time limit includes the wait, so the body needs one of its own
   * @param onRejected called instead, with `overloaded`, if too many bodies wait; by default, the call fails
   */
  holdBody(
    call: HttpCall,
    bytes: number,
    read: (release: () => void, hasWaited: boolean) => void,
    onRejected: (error: unknown) => void = (error) => call.fail(error),
  ): void {
    const user = call.login?.name ?? ANONYMOUS;
    const start = (release: () => void, hasWaited: boolean): void => {
      if (call.isGone || call.response.headersSent) release();
      else read(release, hasWaited);
    };
    const placed = this.#bodies.tryEnter(user, { size: bytes });
    if (placed !== null) {
      start(placed, false);
      return;
    }
    const { connection } = call;
    connection.hasOwnTimeLimit = true;
    this.#bodies
      .enter(user, { size: bytes })
      .finally(() => {
        connection.hasOwnTimeLimit = false;
      })
      .then((release) => start(release, true), onRejected);
  }
}
