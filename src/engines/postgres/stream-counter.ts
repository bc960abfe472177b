import { CALL_TIMEOUT_MS, inTime, NOT_REACHABLE, unavailable } from '../../engine/calls.ts';
import type { QueueCounts } from '../../engine/storage.ts';
import type { Clock } from '../../util/clock.ts';
import { ConcurrencyLimit } from '../../util/concurrency-limit.ts';
import { ConnectionLost } from './connection.ts';
import type { AuxiliaryConnection } from './link.ts';
import type { Operation } from './operations.ts';
import type { RegisteredQueue } from './registry.ts';

const NO_REPLY = new ConnectionLost('No reply in time.');

/**
 * Counts streams on the auxiliary connection, one at a time: a count may take half a second, and neither calls about
 * elements nor the other work of that connection should wait for more than one. Callers may list a whole namespace
 * concurrently; counts that wait too long time out by themselves.
 */
export class StreamCounter {
  readonly #auxiliary: AuxiliaryConnection;
  readonly #clock: Clock;
  readonly #operation: Operation<RegisteredQueue, QueueCounts>;
  readonly #limit = new ConcurrencyLimit({
    perKey: 1,
    maxWaiting: Number.POSITIVE_INFINITY,
    rejection: timeoutError,
  });

  constructor(
    auxiliary: AuxiliaryConnection,
    clock: Clock,
    operation: Operation<RegisteredQueue, QueueCounts>,
  ) {
    this.#auxiliary = auxiliary;
    this.#clock = clock;
    this.#operation = operation;
  }

  /**
   * @param earlierCalls resolves after all calls made earlier
   * @throws QuaysideError `storage-unavailable`
   */
  count(queue: RegisteredQueue, earlierCalls: Promise<void>): Promise<QueueCounts> {
    const deadlineAt = this.#clock.monotonic() + CALL_TIMEOUT_MS;
    // Awaits `before` before it waits for its turn: otherwise a rejection during another count would be unhandled.
    const counts = earlierCalls.then(() => this.#limit.run('', () => this.#read(queue, deadlineAt)));
    return inTime(this.#clock, counts, timeoutError);
  }

  async #read(queue: RegisteredQueue, deadlineAt: number): Promise<QueueCounts> {
    const leftMs = deadlineAt - this.#clock.monotonic();
    if (leftMs <= 0) throw timeoutError();
    const { values, read } = this.#operation.prepare([queue], leftMs);
    const [result] = read(await this.#auxiliary.query({ statement: this.#operation.statement, values }));
    return result as QueueCounts;
  }
}

function timeoutError(): Error {
  return unavailable(NOT_REACHABLE, NO_REPLY);
}
