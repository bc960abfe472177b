/**
 * How long the running step may still take. It counts the thread's processor time, so that a busy machine
 * does not make a good selector look bad: the watchdog on the main thread bounds the wall time. The wall
 * clock is looked at first, since it costs a third of the other and runs at least as fast.
 */
export class Deadline {
  #budgetMs = 0;
  #allowanceMs = 0;
  #startCpu = process.threadCpuUsage();
  /** Before this moment the budget cannot be used up. */
  #notBefore = 0;
  #passed = false;

  /** Starts a step of at most `budgetMs`, and what is granted later. */
  start(budgetMs: number): void {
    this.#budgetMs = budgetMs;
    this.#allowanceMs = 0;
    this.#startCpu = process.threadCpuUsage();
    this.#notBefore = performance.now() + budgetMs;
    this.#passed = false;
  }

  /** Adds to the running step's budget. */
  grant(ms: number): void {
    this.#allowanceMs += ms;
  }

  /** Processor time that the running step has used, ms. */
  get usedMs(): number {
    const { user, system } = process.threadCpuUsage(this.#startCpu);
    return (user + system) / 1000;
  }

  /** Whether the step has used up its budget. Once true it stays so until the next step. */
  get passed(): boolean {
    if (this.#passed) return true;
    const now = performance.now();
    if (now < this.#notBefore) return false;
    const leftMs = this.#budgetMs + this.#allowanceMs - this.usedMs;
    this.#passed = leftMs <= 0;
    this.#notBefore = now + Math.max(leftMs, 1);
    return this.#passed;
  }
}
