import type { CancelTimer, Clock } from '../util/clock.ts';

/** A node as others see it. */
export interface NodeInfo {
  readonly id: string;
  /** Name of its machine. */
  readonly host: string;
  readonly pid: number;
  readonly version: string;
  /** ms since 1970, by its own clock. */
  readonly startedAt: number;
}

/** What a node configures for a namespace: option name to a short text of its value. */
export type Configured = Readonly<Record<string, string>>;

/** Another node of a namespace. */
export interface Peer {
  readonly info: NodeInfo;
  readonly configured: Configured;
}

export interface PeersParts {
  readonly clock: Clock;
  /** Tells the others that this node is there; `first` asks them to say so too. */
  readonly greet: (first: boolean) => void;
}

/** A node tells that it is there this often. */
export const GREETING_MS = 2_000;
/** One that was silent for three greetings is taken to be gone. */
const SILENT_MS = 3 * GREETING_MS + GREETING_MS / 2;

/**
 * The other nodes of a namespace, by what they say of themselves on its channel. Nothing correct depends on
 * it: it says whom to ask for a list, and whom to wait for.
 */
export class Peers {
  readonly #parts: PeersParts;
  readonly #seen = new Map<string, Peer & { readonly at: number }>();
  #timer: CancelTimer | null = null;

  constructor(parts: PeersParts) {
    this.#parts = parts;
  }

  start(): void {
    this.#parts.greet(true);
    this.#greetLater();
  }

  stop(): void {
    this.#timer?.();
    this.#timer = null;
    this.#seen.clear();
  }

  /** Returns whether this is news: a node that was not there, or that configures something else than before. */
  saw(peer: Peer): boolean {
    const { id } = peer.info;
    const known = this.#seen.get(id);
    this.#seen.set(id, { ...peer, at: this.#parts.clock.monotonic() });
    return known === undefined || JSON.stringify(known.configured) !== JSON.stringify(peer.configured);
  }

  gone(id: string): void {
    this.#seen.delete(id);
  }

  /** Those who are there. */
  list(): Peer[] {
    const oldest = this.#parts.clock.monotonic() - SILENT_MS;
    for (const [id, { at }] of this.#seen) if (at < oldest) this.#seen.delete(id);
    return [...this.#seen.values()];
  }

  #greetLater(): void {
    this.#timer = this.#parts.clock.after(GREETING_MS, () => {
      this.#parts.greet(false);
      this.#greetLater();
    });
  }
}
