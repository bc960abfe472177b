import { NOT_REACHABLE, unavailable } from '../../engine/store-failures.ts';
import type { QuaysideError } from '../../model/errors.ts';
import type { CallKind } from './call.ts';
import { ConnectionLost } from './errors.ts';

/** Where there has been no connection for this long, calls are refused at once: none of them would wait in vain. */
const FAIL_FAST_AFTER_MS = 2000;
/** What calls that have no answer yet may hold together. A server that stands still gets no more than this. */
const MOST_BYTES = 64 * 1024 * 1024;
/** And while there is no connection: what gathers then is mostly in vain. */
const MOST_BYTES_AWAY = 16 * 1024 * 1024;
/** What a call holds besides what it sends. */
const CALL_BYTES = 500;

/** Which calls of this node wait for an answer, as bytes of memory, and whether one more may join them. */
export class Backlog {
  readonly #link: { readonly awayMs: number };
  #bytes = 0;

  constructor(link: { readonly awayMs: number }) {
    this.#link = link;
  }

  /** Whether the server has been away for so long that nobody waits for it any more. */
  get isInVain(): boolean {
    return this.#link.awayMs > FAIL_FAST_AFTER_MS;
  }

  /** Why a call cannot be taken now: a `storage-unavailable`; null where it can. */
  refusal(): QuaysideError | null {
    const { awayMs } = this.#link;
    if (this.isInVain) return unavailable(NOT_REACHABLE, new ConnectionLost('There is no connection.'));
    if (this.#bytes < (awayMs > 0 ? MOST_BYTES_AWAY : MOST_BYTES)) return null;
    return unavailable('The store does not answer as fast as it is called; nothing was changed.', TOO_MUCH);
  }

  /** A call waits. Answers what to call once, when it has its answer. */
  add({ bytes }: CallKind): () => void {
    const held = CALL_BYTES + bytes;
    this.#bytes += held;
    return () => {
      this.#bytes -= held;
    };
  }
}

const TOO_MUCH = new Error('Too much waits for an answer.');
