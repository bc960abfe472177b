import { bodyLimit, UNCOUNTED_BYTES } from '../access/body-limit.ts';
import { overloaded } from '../model/errors.ts';
import { LIMITS } from '../model/limits.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { UserLimit } from '../util/user-limit.ts';
import type { HttpCall } from './call.ts';
import { bodyTooLong, requestTimeout, useBody } from './request.ts';

/** Listings of one user that may wait for an earlier one; further ones are rejected. */
const MAX_WAITING_LISTINGS = 16;

/**
 * Bodies larger than `bodyLimit` in memory at once: of one user, and of all. A user who has none never waits for other
 * users, whose clients may take a minute to send a body.
 */
const LARGE_BODIES_PER_USER = 2;
const LARGE_BODIES = 4;
/**
 * Large bodies processed at once after they have arrived, which takes a few times their size. Clients cannot prolong
 * it, so no user needs a guarantee.
 */
const LARGE_BODIES_PROCESSED = 4;
/** Large bodies of one user that may wait, unread in their sockets, for earlier ones; further ones are rejected. */
const MAX_WAITING_BODIES = 100;

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
  readonly #largeBodies = new ConcurrencyLimit({
    perKey: LARGE_BODIES_PER_USER,
    total: LARGE_BODIES,
    guaranteed: 1,
    maxWaiting: MAX_WAITING_BODIES,
    rejection: () =>
      overloaded(
        `Large bodies are read ${LARGE_BODIES_PER_USER} at a time for each user, and ${MAX_WAITING_BODIES} are waiting; retry later, or send smaller ones.`,
      ),
  });
  readonly #largeBodyWork = new ConcurrencyLimit({
    perKey: LARGE_BODIES_PER_USER,
    total: LARGE_BODIES_PROCESSED,
    // No more bodies of one user can have arrived.
    maxWaiting: LARGE_BODIES_PER_USER,
    rejection: () => overloaded('Too many large bodies are being stored; retry later.'),
  });
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

  /** @param bodies bytes of bodies in memory; not given: these front ends share them with no other */
  constructor(bodies = bodyLimit()) {
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
   * Reads a body that may be larger than `bodyLimit`, and calls `work` with it. A larger one, or one of unknown length,
   * first waits for its turn to be read, so that few are in memory at once, then for its turn to be processed. Its time
   * limit runs from its turn. Does not call `work` if the client disconnects before the end of the body.
   * @param finish called with the result of `work`. It may take any time: other users' large bodies do not wait for it
   * @throws QuaysideError `body-too-large`, `overloaded`, and what `work` and `finish` throw
   */
  async readLargeInTurn<T>(
    call: HttpCall,
    maxBytes: number,
    work: (body: Buffer) => Promise<T>,
    finish?: (result: T) => Promise<void>,
  ): Promise<void> {
    const { contentLength } = call.head;
    const { clock, options } = call.front.parts;
    if (contentLength > maxBytes) throw bodyTooLong(contentLength, maxBytes);
    if (contentLength >= 0 && contentLength <= options.bodyLimit) {
      const result = await useBody(call, maxBytes, work);
      if (result !== null) await finish?.(result);
      return;
    }
    const { name } = call.user;
    const { connection } = call;
    connection.hasOwnTimeLimit = true;
    try {
      await this.#largeBodies.run(name, async () => {
        const cancel = clock.after(options.requestTimeoutMs, () => call.fail(requestTimeout()));
        const result = await useBody(call, maxBytes, (body) => {
          cancel();
          return this.#largeBodyWork.run(name, () => work(body));
        }).finally(cancel);
        if (result !== null) await finish?.(result);
      });
    } finally {
      connection.hasOwnTimeLimit = false;
    }
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
   * @param read must call `release` once the body need no longer be in memory; calling it again has no effect
   * @param onRejected called instead, with `overloaded`, if too many bodies wait; by default, the call fails
   */
  holdBody(
    call: HttpCall,
    bytes: number,
    read: (release: () => void) => void,
    onRejected: (error: unknown) => void = (error) => call.fail(error),
  ): void {
    const user = call.login?.name ?? ANONYMOUS;
    const start = (release: () => void): void => {
      if (call.isGone || call.response.headersSent) release();
      else read(release);
    };
    const release = this.#bodies.tryEnter(user, { size: bytes });
    if (release !== null) start(release);
    else this.#bodies.enter(user, { size: bytes }).then(start, onRejected);
  }
}
