/**
 * What must be taken back in memory when a transaction is rolled back. Most transactions change nothing
 * that needs it: a new queue or lane, and the first change of a lane's counts.
 */
export class Undo {
  readonly #steps: (() => void)[] = [];
  /** Grows with each transaction, so that a holder can tell whether it already left a step for this one. */
  transaction = 0;

  add(step: () => void): void {
    this.#steps.push(step);
  }

  committed(): void {
    this.#steps.length = 0;
    this.transaction++;
  }

  rolledBack(): void {
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) step();
    this.transaction++;
  }
}
