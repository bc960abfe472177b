import { Fifo } from './fifo.ts';

/** How long the input of all clients may take in one turn of the event loop, ms; then further clients wait. */
const MAX_INPUT_MS = 20;
/** The same for clients that have waited; the last one may exceed it. */
const MAX_WAITED_MS = 5;

/**
 * Divides the time in which the main thread parses and starts what clients send: HTTP requests, frames of STOMP and
 * AMQP, chunks of WebSockets. Clients wait whose input has taken long, or arrives after that of others has taken long
 * in the same turn of the event loop. Few of them continue in each turn: if all did, everything else would wait as many
 * times longer as there are such clients. Users take turns, however many clients they have.
 */
export class InputTurns {
  /** By user, in the order of their turns. */
  readonly #waiting = new Map<string, Fifo<() => void>>();
  /** How long input has taken in this turn of the event loop. Less than 1 ms may be of earlier turns. */
  #usedMs = 0;
  #maxMs = MAX_INPUT_MS;
  #isResetPlanned = false;
  #isNextPlanned = false;

  /** Whether clients whose input arrives now have to wait. */
  get isUsedUp(): boolean {
    return this.#usedMs >= this.#maxMs;
  }

  /** Counts the time that input took, or will take. */
  count(ms: number): void {
    this.#usedMs += ms;
    // Not after each request or frame: an immediate costs a turn of the event loop.
    if (this.#isResetPlanned || this.#usedMs < 1) return;
    this.#isResetPlanned = true;
    setImmediate(() => {
      this.#isResetPlanned = false;
      this.#usedMs = 0;
    });
  }

  /** Calls `proceed` when other clients have been served. @param user or `strangersOf` before the login */
  wait(user: string, proceed: () => void): void {
    let ofUser = this.#waiting.get(user);
    if (ofUser === undefined) {
      ofUser = new Fifo();
      this.#waiting.set(user, ofUser);
    }
    ofUser.push(proceed);
    this.#planNext();
  }

  #planNext(): void {
    if (this.#isNextPlanned) return;
    this.#isNextPlanned = true;
    setImmediate(this.#next);
  }

  readonly #next = (): void => {
    this.#isNextPlanned = false;
    this.#usedMs = 0;
    this.#maxMs = MAX_WAITED_MS;
    // Clients that wait again while this runs are not served twice.
    let left = 0;
    for (const { length } of this.#waiting.values()) left += length;
    for (; left > 0 && !this.isUsedUp; left -= 1) this.#shift()?.();
    this.#maxMs = MAX_INPUT_MS;
    if (this.#waiting.size > 0) this.#planNext();
  };

  #shift(): (() => void) | undefined {
    const [first] = this.#waiting;
    if (first === undefined) return undefined;
    const [user, ofUser] = first;
    this.#waiting.delete(user);
    const proceed = ofUser.shift();
    if (ofUser.length > 0) this.#waiting.set(user, ofUser);
    return proceed;
  }
}
