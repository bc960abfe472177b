import type { QuaysideError } from '../model/errors.ts';
import type { Namespace } from './namespace.ts';

/** A user's turn to take large elements from the engine. */
export interface TakeTurn {
  /** How long the user waited for the turn, ms. */
  readonly waitedMs: number;
  end(): void;
}

/** How a wait queue reacts when a user's turn starts, or does not start in time. */
export interface TurnListener {
  /** A user's turn has started. The listener must use it, or release it. */
  onTurn(): void;
  onLate(user: string, error: QuaysideError): void;
}

/**
 * The turns of users whose consumers wait in one wait queue for large elements. Such consumers stay in the wait queue
 * until their user's turn starts, so that they do not delay those of other users, and can leave or time out.
 */
export class TakeTurns {
  readonly #ns: Namespace;
  readonly #listener: TurnListener;
  readonly #awaited = new Set<string>();
  /** Turns that have started and are not used by a take yet. */
  readonly #begun = new Map<string, TakeTurn>();

  constructor(namespace: Namespace, listener: TurnListener) {
    this.#ns = namespace;
    this.#listener = listener;
  }

  /** Whether the user is waiting for a turn. */
  isAwaitedBy(user: string | null): boolean {
    return user !== null && this.#awaited.has(user);
  }

  /**
   * Returns the user's turn for a take of about this many bytes. Null if the user has to wait; the listener is called
   * when the turn starts.
   */
  begin(user: string, bytes: number): TakeTurn | null {
    const begun = this.#begun.get(user);
    if (begun !== undefined) {
      this.#begun.delete(user);
      return begun;
    }
    if (this.#awaited.has(user)) return null;
    const end = this.#ns.tryRead(user, bytes);
    if (end !== null) return { waitedMs: 0, end };
    void this.#wait(user, bytes);
    return null;
  }

  /** Keeps a turn for the user's next take, since this one does not need it. */
  keep(user: string, turn: TakeTurn): void {
    this.#begun.set(user, turn);
  }

  /** Ends the turns that are not used by a take. */
  release(): void {
    for (const turn of this.#begun.values()) turn.end();
    this.#begun.clear();
  }

  async #wait(user: string, bytes: number): Promise<void> {
    const { clock } = this.#ns;
    const startedAt = clock.monotonic();
    this.#awaited.add(user);
    let end: () => void;
    try {
      end = await this.#ns.read(user, bytes);
    } catch (error) {
      this.#awaited.delete(user);
      this.#listener.onLate(user, error as QuaysideError);
      return;
    }
    this.#awaited.delete(user);
    this.#begun.set(user, { waitedMs: clock.monotonic() - startedAt, end });
    this.#listener.onTurn();
  }
}
