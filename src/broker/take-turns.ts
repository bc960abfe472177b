import type { QuaysideError } from '../model/errors.ts';
import type { Namespace } from './namespace.ts';

/** A user's turn to take from the engine. */
export interface TakeTurn {
  /** How long it was waited for. */
  readonly waitedMs: number;
  end(): void;
}

/** What a wait queue does when the turn of a user comes, or does not come in time. */
export interface TurnListener {
  /** The user's turn has begun: it is to be used, or released. */
  onTurn(): void;
  onLate(user: string, error: QuaysideError): void;
}

/**
 * The turns of users whose consumers wait in one wait queue for large elements. They stay in the wait queue until their
 * turn comes, so that they delay no consumer of another user there, and may leave or time out.
 */
export class TakeTurns {
  readonly #ns: Namespace;
  readonly #listener: TurnListener;
  readonly #awaited = new Set<string>();
  /** Turns that have begun and that no take uses yet. */
  readonly #begun = new Map<string, TakeTurn>();

  constructor(namespace: Namespace, listener: TurnListener) {
    this.#ns = namespace;
    this.#listener = listener;
  }

  /** Whether the user waits for a turn. */
  isAwaitedBy(user: string | null): boolean {
    return user !== null && this.#awaited.has(user);
  }

  /** The turn of the user, for a take of about so many bytes; null: the listener is called when it comes. */
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

  /** A take does not need its turn after all. */
  keep(user: string, turn: TakeTurn): void {
    this.#begun.set(user, turn);
  }

  /** Ends the turns that no take uses. */
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
