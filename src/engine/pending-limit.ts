import type { QuaysideError } from '../model/errors.ts';
import { NOT_REACHABLE, unavailable } from './store-failures.ts';

/** Once a server is unreachable for this long, a call to it is rejected at once: it would most likely wait in vain. */
export const UNREACHABLE_MS = 2_000;
/** What unsettled calls may hold together: a server that does not reply gets no more than this. */
const MAX_BYTES = 64 * 1024 * 1024;
/** And while there is no connection: most of what gathers then is in vain. */
const MAX_BYTES_UNREACHABLE = 16 * 1024 * 1024;
/** What a call holds in addition to its elements. */
const CALL_BYTES = 500;

const NO_CONNECTION = new Error('There is no connection.');
const TOO_MUCH = new Error('Too much waits for a reply.');

/** Whether calls to a server that has been unreachable for so long are in vain. */
export function isUnreachable(downMs: number): boolean {
  return downMs > UNREACHABLE_MS;
}

/** The bytes of memory that the unsettled calls of this node hold, and whether one more call may join them. */
export class PendingLimit {
  #bytes = 0;

  /**
   * Why a call is rejected now, as `storage-unavailable`; null: it may join.
   * @param downMs for how long its server has been unreachable; 0 while it is reachable
   */
  rejection(downMs: number): QuaysideError | null {
    if (isUnreachable(downMs)) return unavailable(NOT_REACHABLE, NO_CONNECTION);
    if (this.#bytes < (downMs > 0 ? MAX_BYTES_UNREACHABLE : MAX_BYTES)) return null;
    return unavailable('The store does not reply as fast as it is called; nothing was changed.', TOO_MUCH);
  }

  add(bytes: number): void {
    this.#bytes += CALL_BYTES + bytes;
  }

  /** The call is settled. */
  remove(bytes: number): void {
    this.#bytes -= CALL_BYTES + bytes;
  }
}
