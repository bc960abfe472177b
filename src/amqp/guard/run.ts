const EMPTY: Buffer = Buffer.alloc(0);

/** Frames on their way to rhea: those that lie next to each other are handed over at once, without a copy. */
export class Run {
  readonly #feed: (bytes: Buffer) => void;
  #bytes: Buffer = EMPTY;
  #start = 0;
  #end = 0;

  constructor(feed: (bytes: Buffer) => void) {
    this.#feed = feed;
  }

  add(bytes: Buffer, start: number, end: number): void {
    if (bytes !== this.#bytes || start !== this.#end) {
      this.flush();
      this.#bytes = bytes;
      this.#start = start;
    }
    this.#end = end;
  }

  flush(): void {
    const bytes = this.#bytes.subarray(this.#start, this.#end);
    this.#bytes = EMPTY;
    this.#start = 0;
    this.#end = 0;
    if (bytes.length > 0) this.#feed(bytes);
  }
}
