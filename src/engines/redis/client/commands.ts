import type { Clock } from '../../../model/clock.ts';
import { refusalWhileDown } from './backlog.ts';
import type { Cargo, Carrier } from './carrier.ts';
import type { Arg, Reply } from './connection.ts';
import { slotOf } from './slots.ts';

/** A call of a storage port is answered within this time, ms: with an error if need be. */
export const DEADLINE_MS = 4_500;

/** Plain commands on one key. */
export class Commands {
  readonly #carrier: Carrier;
  readonly #clock: Clock;

  constructor(carrier: Carrier, clock: Clock) {
    this.#carrier = carrier;
    this.#clock = clock;
  }

  /** For a call that is made now: until when it is answered, by the monotonic clock. */
  deadline(withinMs = DEADLINE_MS): number {
    return this.#clock.monotonic() + withinMs;
  }

  /** @throws CarryError */
  read(key: string, name: string, args: readonly Arg[], deadlineAt = this.deadline()): Promise<Reply> {
    return this.#run(key, name, args, { writes: false, repeatable: true, deadlineAt });
  }

  /** Doing it twice is as doing it once. @throws CarryError */
  write(key: string, name: string, args: readonly Arg[], deadlineAt = this.deadline()): Promise<Reply> {
    return this.#run(key, name, args, { writes: true, repeatable: true, deadlineAt });
  }

  /** Never sent twice: without an answer its outcome is unknown. @throws CarryError */
  writeOnce(key: string, name: string, args: readonly Arg[], deadlineAt = this.deadline()): Promise<Reply> {
    return this.#run(key, name, args, { writes: true, repeatable: false, deadlineAt });
  }

  /** What the clock shows of the server that has the key. */
  serverTime(key: string): number {
    return this.#carrier.serverTime(slotOf(key));
  }

  async #run(
    key: string,
    name: string,
    args: readonly Arg[],
    how: Pick<Cargo, 'writes' | 'repeatable' | 'deadlineAt'>,
  ): Promise<Reply> {
    const slot = slotOf(key);
    const refusal = refusalWhileDown(this.#carrier.downMs(slot));
    if (refusal !== null) throw refusal;
    const { reply } = await this.#carrier.carry({ slot, name, args: () => args, ...how });
    return reply;
  }
}
