import type { EngineLog } from '../../engine/engine.ts';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { QueueKey } from '../../model/names.ts';
import { send } from './changes.ts';
import { describe } from './errors.ts';
import type { Ops } from './ids.ts';
import type { Store } from './store.ts';

/** When a claim that may still be on its way takes nothing any more; see `verbs/take.ts`. */
const FIRST_AFTER_MS = 5000;
/** Well before the server deletes what is marked as gone. */
const LAST_AFTER_MS = 200_000;
/** More deliveries than these are left as they are: reserved until their leases end, or lost as pops can be. */
const MOST_WAITING = 20_000;

interface Claim {
  readonly queue: QueueKey;
  readonly op: string;
  readonly ids: readonly string[];
  readonly lastAt: number;
}

export interface UndoHost {
  readonly store: Store;
  readonly ops: Ops;
  readonly clock: Clock;
  readonly log: EngineLog;
  /** Elements of a queue may have become eligible. */
  touched(queue: QueueKey): void;
}

/**
 * Makes takes undone whose callers were told that nobody knows what became of them: what was popped for nobody
 * waits again, in its old place, and so does what was reserved, with no try counted. Best effort.
 */
export class Undo {
  readonly #store: Store;
  readonly #ops: Ops;
  readonly #clock: Clock;
  readonly #log: EngineLog;
  readonly #touched: UndoHost['touched'];
  #claims: Claim[] = [];
  #count = 0;
  #cancel: CancelTimer | null = null;
  #running: Promise<void> | null = null;
  #isStopped = false;

  constructor({ store, ops, clock, log, touched }: UndoHost) {
    this.#store = store;
    this.#ops = ops;
    this.#clock = clock;
    this.#log = log;
    this.#touched = touched;
  }

  /** @param op the name of the claim @param ids what it may have got */
  add(queue: QueueKey, op: string, ids: readonly string[]): void {
    if (this.#isStopped || this.#count + ids.length > MOST_WAITING) return;
    this.#count += ids.length;
    this.#claims.push({ queue, op, ids, lastAt: this.#clock.monotonic() + LAST_AFTER_MS });
    this.#schedule();
  }

  /** Undoes at once what it still can. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    this.#cancel?.();
    this.#cancel = null;
    await this.#running;
    if (this.#claims.length > 0 && this.#store.isUp) await this.#undoAll();
  }

  #schedule(): void {
    if (this.#cancel !== null || this.#running !== null || this.#isStopped) return;
    this.#cancel = this.#clock.after(FIRST_AFTER_MS, () => {
      this.#cancel = null;
      this.#running = this.#undoAll().finally(() => {
        this.#running = null;
        if (this.#claims.length > 0) this.#schedule();
      });
    });
  }

  async #undoAll(): Promise<void> {
    const claims = this.#claims;
    this.#claims = [];
    const statements = claims.map(({ op, ids }) => ({
      updateMany: {
        filter: { _id: { $in: [...ids] }, op },
        update: {
          $set: { state: 'waiting', token: null, op: this.#ops.next() },
          $unset: { until: '' },
        },
      } as const,
    }));
    try {
      await send(this.#store, statements);
      for (const { ids, queue } of claims) {
        this.#count -= ids.length;
        this.#touched(queue);
      }
    } catch (error) {
      this.#log.info(
        { err: describe(error), claims: claims.length },
        'takes of nobody could not be undone yet',
      );
      this.#keep(claims);
    }
  }

  #keep(claims: readonly Claim[]): void {
    const now = this.#clock.monotonic();
    for (const claim of claims) {
      if (claim.lastAt > now) this.#claims.push(claim);
      else this.#count -= claim.ids.length;
    }
  }
}
