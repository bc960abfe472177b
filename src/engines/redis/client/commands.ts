import type { Clock } from '../../../model/clock.ts';
import type { Carrier } from './carrier.ts';
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

  /** @throws CarryError */
  read(key: string, name: string, args: readonly Arg[], withinMs = DEADLINE_MS): Promise<Reply> {
    return this.#run(key, name, args, { writes: false, repeatable: true, withinMs });
  }

  /** Doing it twice is as doing it once. @throws CarryError */
  write(key: string, name: string, args: readonly Arg[]): Promise<Reply> {
    return this.#run(key, name, args, { writes: true, repeatable: true, withinMs: DEADLINE_MS });
  }

  /** Never sent twice: without an answer its outcome is unknown. @throws CarryError */
  writeOnce(key: string, name: string, args: readonly Arg[], withinMs = DEADLINE_MS): Promise<Reply> {
    return this.#run(key, name, args, { writes: true, repeatable: false, withinMs });
  }

  /** What the clock shows of the server that has the key. */
  serverTime(key: string): number {
    return this.#carrier.serverTime(slotOf(key));
  }

  async #run(
    key: string,
    name: string,
    args: readonly Arg[],
    { writes, repeatable, withinMs }: { writes: boolean; repeatable: boolean; withinMs: number },
  ): Promise<Reply> {
    const { reply } = await this.#carrier.carry({
      slot: slotOf(key),
      name,
      args: () => args,
      writes,
      repeatable,
      deadlineAt: this.#clock.monotonic() + withinMs,
    });
    return reply;
  }
}
