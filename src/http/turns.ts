import { QuaysideError } from '../model/errors.ts';
import type { Call } from './call.ts';

/** Listings of one user that wait for the one before them; further ones are rejected. */
const MAX_WAITING = 16;

/**
 * Lists for each user one at a time, from its start until its response has left: a listing of thousands of queues
 * costs processor time and memory that other users' requests need as well.
 */
export class UserTurns {
  /** By user: what resolves when the latest of their listings is over, and how many there are. */
  readonly #users = new Map<string, { last: Promise<void>; count: number }>();

  /**
   * Calls `list` when the user's listings before this one are over; not at all if the client has gone by then.
   * @throws QuaysideError `overloaded`, and what `list` throws
   */
  async run(call: Call, list: () => Promise<void>): Promise<void> {
    const { name } = call.user;
    const turns = this.#users.get(name) ?? { last: Promise.resolve(), count: 0 };
    if (turns.count > MAX_WAITING) {
      throw new QuaysideError(
        'overloaded',
        `Listings run one at a time for each user, and ${MAX_WAITING} are waiting; retry later, or read pages with limit.`,
      );
    }
    this.#users.set(name, turns);
    const before = turns.last;
    const { promise, resolve } = Promise.withResolvers<void>();
    turns.last = promise;
    turns.count += 1;
    const end = (): void => {
      turns.count -= 1;
      if (turns.count === 0) this.#users.delete(name);
      resolve();
    };
    await before;
    if (call.isGone) {
      end();
      return;
    }
    try {
      await list();
    } catch (error) {
      end();
      throw error;
    }
    if (call.answer.closed || call.isGone) end();
    else call.answer.once('close', end);
  }
}
