import { CarryError } from './carrier.ts';

/** With its node out of reach for this long a call is refused at once. */
const REFUSE_AFTER_MS = 2_000;
/** And at once, too, while so much waits already for a node that does not answer. */
const MOST_BYTES_IN_VAIN = 16 * 1024 * 1024;
/** A node that answers slowly, or fell silent a moment ago, may have this much. */
const MOST_BYTES = 64 * 1024 * 1024;
/** What a call holds besides its elements. */
const CALL_BYTES = 500;

/** What the calls that are not answered yet hold in memory, and whether one more may join them. */
export class Backlog {
  readonly #nodes: { downMs(slot: number): number };
  #bytes = 0;

  constructor(nodes: { downMs(slot: number): number }) {
    this.#nodes = nodes;
  }

  /** Why a call for this slot is in vain now; null: it is not. */
  refusal(slot: number): CarryError | null {
    const downMs = this.#nodes.downMs(slot);
    const refusal = refusalWhileDown(downMs);
    if (refusal !== null) return refusal;
    if (this.#bytes < (downMs > 0 ? MOST_BYTES_IN_VAIN : MOST_BYTES)) return null;
    return new CarryError('storage-unavailable', 'Redis does not answer as fast as it is called.');
  }

  /** Counts a call that sends so much. */
  add(bytes: number): void {
    this.#bytes += bytes + CALL_BYTES;
  }

  /** It is answered. */
  remove(bytes: number): void {
    this.#bytes -= bytes + CALL_BYTES;
  }
}

/** Why a call is in vain whose node has been out of reach for so long, ms; null: it may come back in time. */
export function refusalWhileDown(downMs: number): CarryError | null {
  if (downMs < REFUSE_AFTER_MS) return null;
  return new CarryError('storage-unavailable', 'Redis cannot be reached now.');
}
