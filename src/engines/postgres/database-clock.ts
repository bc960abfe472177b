import type { Clock } from '../../util/clock.ts';
import type { Connection } from './connection.ts';
import { number, type Statement } from './statement.ts';

const READ: Statement = { name: 'ping', text: 'SELECT now_ms()' };

/**
 * The database's clock as last seen, carried on by this process's own. Only a hint, never behind what was
 * seen: whatever decides about an element asks the database.
 */
export class DatabaseClock {
  readonly #clock: Clock;
  #seen = Number.NEGATIVE_INFINITY;
  #seenAt = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** @throws Refused, ConnectionLost */
  async read(connection: Connection): Promise<void> {
    const [row] = await connection.query(READ, []);
    this.see(number(row ?? [], 0));
  }

  see(now: number): void {
    this.#seen = now;
    this.#seenAt = this.#clock.monotonic();
  }

  /** About what the database's clock shows now; -Infinity where nothing was seen yet. */
  get now(): number {
    return this.#seen + this.#clock.monotonic() - this.#seenAt;
  }
}
