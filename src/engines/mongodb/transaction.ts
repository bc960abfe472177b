import type { ClientSession } from 'mongodb';
import type { Clock } from '../../model/clock.ts';
import { fromDriver, isConflict, isUnknownCommit, Lost, Refused } from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { Store } from './store.ts';

/** How often a transaction is made again that met another one. */
const MOST_ATTEMPTS = 8;
/** How often a commit is asked for again whose answer did not come. It takes effect once. */
const MOST_COMMITS = 3;
const PAUSE_MS = 5;

/** A commit that may have taken effect. Any other error means that nothing of the transaction happened. */
export class CommitUnknown extends Lost {}

/** Who answers for a transaction hears when its outcome is open, and when it no longer is. */
export interface CommitSteps {
  /** Called right before a commit is asked for; nothing happens where it throws. */
  begin(): void;
  /** Nothing of it happened after all. */
  undone(): void;
}

const NOBODY: CommitSteps = { begin: () => {}, undone: () => {} };

/**
 * Runs several operations as one: all of them take effect, durably, or none does.
 * @param run makes the operations with the session; called again where another transaction came in between
 * @throws CommitUnknown, Lost, Refused
 */
export async function transact<T>(
  store: Store,
  clock: Clock,
  run: (session: ClientSession) => Promise<T>,
  steps: CommitSteps = NOBODY,
): Promise<T> {
  store.assertUp();
  const session = store.client.startSession({ causalConsistency: false });
  try {
    for (let attempt = 1; ; attempt++) {
      try {
        return await attemptOnce(store, session, run, steps);
      } catch (error) {
        if (!(error instanceof CommitUnknown)) steps.undone();
        if (error instanceof CommitUnknown || !isConflict(error)) throw fromDriver(error);
        if (attempt >= MOST_ATTEMPTS || !store.isUp) {
          throw new Refused(0, 'The transaction met others too often.');
        }
        await pause(clock, attempt * PAUSE_MS);
      }
    }
  } finally {
    // Ends the transaction on the server, too, where it is still open.
    session.endSession().catch(() => {});
  }
}

async function attemptOnce<T>(
  { settings: { writeConcern } }: Store,
  session: ClientSession,
  run: (session: ClientSession) => Promise<T>,
  steps: CommitSteps,
): Promise<T> {
  session.startTransaction({
    readConcern: { level: 'snapshot' },
    readPreference: 'primary',
    writeConcern,
    maxCommitTimeMS: MAX_TIME_MS,
  });
  let result: T;
  try {
    result = await run(session);
    steps.begin();
  } catch (error) {
    await session.abortTransaction().catch(() => {});
    throw error;
  }
  await commit(session);
  return result;
}

async function commit(session: ClientSession): Promise<void> {
  for (let asked = 1; ; asked++) {
    try {
      await session.commitTransaction();
      return;
    } catch (error) {
      if (isConflict(error)) throw error;
      if (!isUnknownCommit(error)) {
        const fault = fromDriver(error);
        throw fault instanceof Refused ? fault : new CommitUnknown('The commit was not answered.', error);
      }
      if (asked >= MOST_COMMITS) throw new CommitUnknown('The commit was not answered.', error);
    }
  }
}

function pause(clock: Clock, ms: number): Promise<void> {
  return new Promise((resolve) => {
    clock.after(ms, resolve);
  });
}
