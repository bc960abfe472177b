/**
 * A session pauses reading while this many items, or bytes, of its client are pending in the engine. An item is an
 * element being inserted or settled, a page of a browser, or a reply that waits for other items. One frame may add
 * many: a cumulative ACK settles up to 65,536 elements.
 */
const MAX_PENDING_ITEMS = 4096;
const MAX_PENDING_BYTES = 4 * 1024 * 1024;
/** Counts a session's engine calls that have no result yet. */
export class PendingWork {
  /** How many of the items are elements that return to their queue after their client or consumer has gone. */
  returning = 0;
  readonly #onChange: () => void;
  #items = 0;
  #bytes = 0;
  #onIdle: (() => void)[] = [];

  /** @param onChange called after each `end`: a session that paused because of `isFull` may resume */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  get isFull(): boolean {
    return this.#items >= MAX_PENDING_ITEMS || this.#bytes >= MAX_PENDING_BYTES;
  }

  get isIdle(): boolean {
    return this.#items === 0;
  }

  /** Whether every frame of the client has an outcome. */
  get hasNoFrames(): boolean {
    return this.#items === this.returning;
  }

  /** Call when the engine is called. @param items see {@link MAX_PENDING_ITEMS} */
  begin(items: number, bytes: number): void {
    this.#items += items;
    this.#bytes += bytes;
  }

  /** Call when the result is known, with the arguments of `begin`. */
  end(items: number, bytes: number): void {
    this.#items -= items;
    this.#bytes -= bytes;
    if (this.isIdle) {
      const waiting = this.#onIdle;
      this.#onIdle = [];
      for (const then of waiting) then();
    }
    this.#onChange();
  }

  /** Calls `then` as soon as nothing is pending. */
  whenIdle(then: () => void): void {
    if (this.isIdle) then();
    else this.#onIdle.push(then);
  }
}
