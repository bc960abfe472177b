import { isUnreachable } from '../../engine/pending-limit.ts';
import { NOT_REACHABLE, unavailable, unknownOutcome } from '../../engine/store-failures.ts';
import type { Clock } from '../../util/clock.ts';
import { ConnectionLost, Refused, refusedError } from './errors.ts';
import type { Link } from './link.ts';
import type { Query, Row } from './statement.ts';

/** As in `batcher.ts`: a caller has its result, or a clear error, within this time. */
const ANSWER_WITHIN_MS = 4500;
/** Calls without an answer, at most. Each is small, so a count bounds their memory. */
const MOST_CALLS = 5000;

/** A call that has no connection yet. */
interface Waiting {
  readonly resume: () => void;
  readonly refuse: () => void;
}

/**
 * The second connection, for all that is not about the elements of one queue and must not hold those up:
 * definitions, statistics, signals, housekeeping. Each query is a transaction of its own; there is no order
 * among them but that in which they are sent.
 */
export class Side {
  readonly #link: Link;
  readonly #clock: Clock;
  readonly #waiting = new Set<Waiting>();
  #calls = 0;
  #stopped = false;

  constructor(link: Link, clock: Clock) {
    this.#link = link;
    this.#clock = clock;
  }

  /** A question. @throws QuaysideError `storage-unavailable` */
  ask(query: Query): Promise<Row[]> {
    return this.#run(query, false);
  }

  /** A change. @throws QuaysideError `storage-unavailable`, `outcome-unknown` */
  change(query: Query): Promise<Row[]> {
    return this.#run(query, true);
  }

  /** There is a connection again. */
  resume(): void {
    for (const { resume } of [...this.#waiting]) resume();
  }

  /** Nobody waits for a connection any more. */
  stop(): void {
    this.#stopped = true;
    for (const { refuse } of [...this.#waiting]) refuse();
  }

  async #run(query: Query, changes: boolean): Promise<Row[]> {
    if (this.#stopped || isUnreachable(this.#link.awayMs)) throw away();
    if (this.#calls >= MOST_CALLS) throw unavailable(NOT_REACHABLE, new Error('Too many calls wait.'));
    this.#calls += 1;
    try {
      return await this.#send(query, changes);
    } finally {
      this.#calls -= 1;
    }
  }

  #send({ statement, values }: Query, changes: boolean): Promise<Row[]> {
    return new Promise((resolve, reject) => {
      let isSent = false;
      const lost = (error: Error): Error =>
        changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error);
      const cancel = this.#clock.after(ANSWER_WITHIN_MS, () => {
        this.#waiting.delete(waiting);
        reject(isSent ? lost(new ConnectionLost('No answer in time.')) : away());
        if (isSent) this.#link.drop('it does not answer');
      });
      const waiting: Waiting = {
        refuse: () => {
          this.#waiting.delete(waiting);
          cancel();
          reject(away());
        },
        resume: () => {
          const { connection } = this.#link;
          if (connection === null) return;
          this.#waiting.delete(waiting);
          isSent = true;
          connection.query(statement, values).then(
            (rows) => {
              cancel();
              resolve(rows);
            },
            (error: unknown) => {
              cancel();
              reject(
                error instanceof Refused ? refusedError(error, { inserts: false }) : lost(asError(error)),
              );
            },
          );
        },
      };
      this.#waiting.add(waiting);
      waiting.resume();
    });
  }
}

function away(): Error {
  return unavailable(NOT_REACHABLE, new ConnectionLost('There is no connection.'));
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}
