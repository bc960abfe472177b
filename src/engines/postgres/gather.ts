import type { Call } from './call.ts';
import type { Queue } from './names.ts';

/** What one round carries at most. A call that is larger by itself travels alone. */
const ROUND_BYTES = 8 * 1024 * 1024;
const ROUND_ROWS = 5000;
const ROUND_CALLS = 2000;

/**
 * What the next round carries, in order, and what is left for later ones. Settled calls are in neither. A queue
 * whose call stays behind keeps its later ones too.
 */
export function gather(pending: readonly Call[]): { calls: Call[]; left: Call[] } {
  const calls: Call[] = [];
  const left: Call[] = [];
  const held = new Set<Queue>();
  const room = new Room();
  for (const call of pending) {
    if (call.settled) continue;
    const goes = !isHeld(call, held) && room.take(call);
    (goes ? calls : left).push(call);
    if (!goes || call.mayGoOn) for (const queue of call.queues()) held.add(queue);
  }
  return { calls, left };
}

function isHeld(call: Call, held: ReadonlySet<Queue>): boolean {
  if (held.size === 0) return false;
  for (const queue of call.queues()) if (held.has(queue)) return true;
  return false;
}

/** One round. */
class Room {
  #bytes = 0;
  #rows = 0;
  #calls = 0;
  #isFull = false;

  /** Answers whether the call still fits. Once one is too large, none after it does. */
  take({ kind: { bytes, rows } }: Call): boolean {
    this.#isFull ||= this.#calls >= ROUND_CALLS;
    this.#isFull ||= this.#calls > 0 && (this.#bytes + bytes > ROUND_BYTES || this.#rows + rows > ROUND_ROWS);
    if (this.#isFull) return false;
    this.#bytes += bytes;
    this.#rows += rows;
    this.#calls += 1;
    return true;
  }
}
