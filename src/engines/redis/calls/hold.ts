import type { Lane } from './lane.ts';

/**
 * Some lanes for one job that takes several flights, or touches several queues: what was called before on any
 * of them is done before, what is called later waits. Joined in all of them in one step, so two holds can
 * never wait for each other.
 */
export class Hold {
  readonly deadlineAt: number;
  readonly #lanes: ReadonlySet<Lane>;
  readonly #arrived = new Set<Lane>();
  readonly #job: () => Promise<void>;
  readonly #giveUp: () => void;
  #over = false;

  /** @param giveUp called instead of the job where a lane let go of the hold before its turn came */
  constructor(lanes: Iterable<Lane>, deadlineAt: number, job: () => Promise<void>, giveUp: () => void) {
    this.#lanes = new Set(lanes);
    this.deadlineAt = deadlineAt;
    this.#job = job;
    this.#giveUp = giveUp;
    for (const lane of this.#lanes) lane.enqueue(this);
  }

  /** Given up: a lane that meets it goes on. */
  get isOver(): boolean {
    return this.#over;
  }

  /** The lane is free for it; with the last one the job begins. */
  arrive(lane: Lane): void {
    this.#arrived.add(lane);
    if (this.#arrived.size < this.#lanes.size) return;
    void this.#job().finally(() => this.#release());
  }

  /** Its time came before its turn. */
  abandon(): void {
    if (this.#over) return;
    this.#giveUp();
    this.#release();
  }

  #release(): void {
    this.#over = true;
    for (const lane of this.#arrived) lane.release();
  }
}
