/** Reads a page when it is its turn. */
interface PageReader {
  /** Reads a page if it can. */
  fill(): void;
}

/**
 * Lets the browsers of a session read one page at a time, in turn: the elements of a page are in memory together, and the
 * size of each page depends on the capacity that those before it left.
 */
export class PageTurns {
  /** In the order of their turns. One whose client has no capacity keeps its place. */
  readonly #line = new Set<PageReader>();
  #isReading = false;

  /** Gives the reader a place in the line, if it has none. @returns whether it may begin; if not, its `fill` is called later */
  isNext(reader: PageReader): boolean {
    this.#line.add(reader);
    const [first] = this.#line;
    return first === reader && !this.#isReading;
  }

  /** The reader that is next reads a page. */
  begin(reader: PageReader): void {
    this.#line.delete(reader);
    this.#isReading = true;
  }

  /** The page was dealt with. */
  end(): void {
    this.#isReading = false;
    this.#callNext();
  }

  /** The reader wants no page now. */
  skip(reader: PageReader): void {
    if (this.#line.delete(reader) && !this.#isReading) this.#callNext();
  }

  /** The reader has stopped. */
  leave(reader: PageReader): void {
    this.#line.delete(reader);
  }

  #callNext(): void {
    const [first] = this.#line;
    first?.fill();
  }
}
