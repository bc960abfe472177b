import {
  DeadlineQueue,
  Expiring,
  isUnreachable,
  NOT_REACHABLE,
  unavailable,
  unknownOutcome,
} from '../../engine/calls.ts';
import type { Clock } from '../../util/clock.ts';
import { TIMEOUT_MS } from './batcher.ts';
import { ConnectionLost, Refused, refusedError } from './errors.ts';
import type { Link } from './link.ts';
import type { Query, Row } from './statement.ts';

/** Calls without a reply, at most. Each is small, so a count bounds their memory. */
const MAX_CALLS = 5000;

const NO_CONNECTION = new ConnectionLost('There is no connection.');
const NO_REPLY = new ConnectionLost('No reply in time.');

class Call extends Expiring {
  readonly query: Query;
  readonly changes: boolean;
  readonly deadlineAt: number;
  isSent = false;
  readonly resolve: (rows: Row[]) => void;
  readonly reject: (error: Error) => void;
  readonly #side: Side;

  constructor(
    side: Side,
    { query, changes, deadlineAt }: { query: Query; changes: boolean; deadlineAt: number },
    { resolve, reject }: { resolve: (rows: Row[]) => void; reject: (error: Error) => void },
  ) {
    super();
    this.#side = side;
    this.query = query;
    this.changes = changes;
    this.deadlineAt = deadlineAt;
    this.resolve = resolve;
    this.reject = reject;
  }

  expire(): void {
    this.#side.onExpired(this);
  }
}

/**
 * The auxiliary connection, for all that is not about the elements of one queue and must not delay those: definitions,
 * statistics, signals, housekeeping. Each query is a transaction of its own; they are executed in the order in which they are sent.
 */
export class Side {
  readonly #link: Link;
  readonly #deadlines: DeadlineQueue;
  /** Those that are not settled. */
  readonly #calls = new Set<Call>();
  #stopped = false;

  constructor(link: Link, clock: Clock) {
    this.#link = link;
    this.#deadlines = new DeadlineQueue(clock, TIMEOUT_MS);
  }

  /** A query that changes nothing. @throws QuaysideError `storage-unavailable` */
  ask(query: Query): Promise<Row[]> {
    return this.#run(query, false);
  }

  /** A change. @throws QuaysideError `storage-unavailable`, `outcome-unknown` */
  change(query: Query): Promise<Row[]> {
    return this.#run(query, true);
  }

  /** There is a connection again. */
  resume(): void {
    for (const call of [...this.#calls]) if (!call.isSent) this.#send(call);
  }

  /** Rejects calls that wait for a connection, and closes it after the others. */
  async stop(): Promise<void> {
    this.#stopped = true;
    for (const call of [...this.#calls]) if (!call.isSent) this.#fail(call, NO_CONNECTION);
    await this.#link.stop();
    this.#deadlines.stop();
  }

  onExpired(call: Call): void {
    this.#fail(call, NO_REPLY);
    if (call.isSent) this.#link.drop('it does not reply');
  }

  #run(query: Query, changes: boolean): Promise<Row[]> {
    if (this.#stopped || isUnreachable(this.#link.awayMs) || this.#calls.size >= MAX_CALLS)
      return Promise.reject(unavailable(NOT_REACHABLE, NO_CONNECTION));
    return new Promise((resolve, reject) => {
      const deadlineAt = this.#deadlines.next();
      const call = new Call(this, { query, changes, deadlineAt }, { resolve, reject });
      this.#calls.add(call);
      this.#deadlines.add(call);
      this.#send(call);
    });
  }

  #send(call: Call): void {
    const { connection } = this.#link;
    if (connection === null) return;
    call.isSent = true;
    connection.query(call.query.statement, call.query.values).then(
      (rows) => {
        this.#settle(call);
        call.resolve(rows);
      },
      (error: Error) => this.#fail(call, error),
    );
  }

  #fail(call: Call, error: Error): void {
    this.#settle(call);
    if (error instanceof Refused) call.reject(refusedError(error, false));
    else call.reject(call.isSent && call.changes ? unknownOutcome(error) : unavailable(NOT_REACHABLE, error));
  }

  #settle(call: Call): void {
    this.#calls.delete(call);
    this.#deadlines.remove(call);
  }
}
