import { overloaded } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';

/** Bodies of up to this size are not counted, nor is as much of what one session sent. */
export const UNCOUNTED_BYTES = 65_536;

/**
 * Bytes of bodies that are being read or stored: of one user, and of all. Further bodies wait, unread in their sockets.
 * A user who has less than the guaranteed bytes never waits for other users, whose clients may take a minute to send.
 */
const BODY_BYTES_PER_USER = 128 * 1_048_576;
const BODY_BYTES = 2 * BODY_BYTES_PER_USER;
const GUARANTEED_BODY_BYTES = 16 * 1_048_576;
/** Bodies of one user, those of sessions included, that may wait; further ones over HTTP are rejected. */
const MAX_WAITING_BODIES = 1000;
/**
 * How long a body waits for its place, ms. Clients may keep the bytes of others for any time, and a connection that is
 * not read from does not notice that its own client has gone.
 */
export const MAX_PLACE_WAIT_MS = 60_000;

/** Limits the bytes of bodies that all front ends together hold in memory, by user. */
export function bodyLimit(clock: Pick<Clock, 'after'>): ConcurrencyLimit {
  return new ConcurrencyLimit({
    perKey: BODY_BYTES_PER_USER,
    total: BODY_BYTES,
    guaranteed: GUARANTEED_BODY_BYTES,
    maxWaiting: MAX_WAITING_BODIES,
    timeout: { clock, ms: MAX_PLACE_WAIT_MS },
    rejection: () =>
      overloaded(
        `Bodies and transactions of one user may occupy ${BODY_BYTES_PER_USER} bytes. Others occupied them for ${MAX_PLACE_WAIT_MS} ms, or ${MAX_WAITING_BODIES} bodies are waiting; retry later, or send fewer at a time.`,
      ),
  });
}

/** The error for bytes that would stay in memory for as long as a client likes, and so cannot wait. */
export function tooManyBytes(): Error {
  return overloaded(
    `Bodies and transactions of one user may occupy ${BODY_BYTES_PER_USER} bytes; end other transactions, then retry.`,
  );
}

interface BodyPlaceOptions {
  readonly limit: ConcurrencyLimit;
  /** Called when the place that `hold` did not get is free. */
  onGranted(): void;
  /** Called instead, with `overloaded`, if it waited for `MAX_PLACE_WAIT_MS`. */
  onTimeout(error: unknown): void;
}

/**
 * What one session counts of the body that it receives. It waits for its place only while it has none: if sessions
 * that have begun to receive could wait, all of them might wait for each other.
 */
export class BodyPlace {
  readonly #options: BodyPlaceOptions;
  #resize: ((size: number) => void) | null = null;
  /** Null: it does not wait. */
  #cancelWait: (() => void) | null = null;

  constructor(options: BodyPlaceOptions) {
    this.#options = options;
  }

  /**
   * Counts so many bytes of a user, the same one each time; 0 ends the count.
   * @returns whether they may be received now; if not, `onGranted` is called once they may
   */
  hold(user: string, size: number): boolean {
    if (this.#resize !== null) {
      this.#resize(size);
      if (size === 0) this.#resize = null;
      return true;
    }
    if (size === 0) {
      this.#stopWaiting();
      return true;
    }
    if (this.#cancelWait !== null) return false;
    const end = this.#options.limit.tryEnter(user, { size });
    if (end === null) this.#wait(user, size);
    else this.#start(user, size, end);
    return end !== null;
  }

  /** Any number may wait: the limit of connections bounds them, and they hold no more than others. */
  #wait(user: string, size: number): void {
    const { limit, onGranted, onTimeout } = this.#options;
    const onWait = (cancel: () => void): void => {
      this.#cancelWait = cancel;
    };
    // It may have been given up since it was granted, or since its time ended.
    limit.enter(user, { size, maxWaiting: Number.POSITIVE_INFINITY, onWait }).then(
      (end) => {
        if (this.#cancelWait === null) {
          end();
          return;
        }
        this.#cancelWait = null;
        this.#start(user, size, end);
        onGranted();
      },
      (error: unknown) => {
        if (this.#cancelWait === null) return;
        this.#cancelWait = null;
        onTimeout(error);
      },
    );
  }

  /** No effect on a place that was granted. */
  #stopWaiting(): void {
    this.#cancelWait?.();
    this.#cancelWait = null;
  }

  #start(user: string, size: number, end: () => void): void {
    this.#resize = this.#options.limit.track(user);
    this.#resize(size);
    end();
  }
}
