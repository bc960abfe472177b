/**
 * Bytes that all exchanges of a node have under way together. Who would pass the bound waits, in turn; what alone
 * is more than all of it is let in when nothing else is under way.
 */
export class Budget {
  readonly #bytes: number;
  #used = 0;
  readonly #waiting: { readonly bytes: number; readonly enter: () => void }[] = [];

  constructor(bytes: number) {
    this.#bytes = bytes;
  }

  /** Resolves when there is room; `leave` gives it back. */
  async enter(bytes: number): Promise<void> {
    if (this.#waiting.length === 0 && this.#hasRoom(bytes)) {
      this.#used += bytes;
      return;
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push({ bytes, enter: resolve });
    await promise;
  }

  leave(bytes: number): void {
    this.#used -= bytes;
    for (let first = this.#waiting[0]; first !== undefined; first = this.#waiting[0]) {
      if (!this.#hasRoom(first.bytes)) return;
      this.#waiting.shift();
      this.#used += first.bytes;
      first.enter();
    }
  }

  #hasRoom(bytes: number): boolean {
    return this.#used === 0 || this.#used + bytes <= this.#bytes;
  }
}
