import type { Duplex } from 'node:stream';
import type { User } from '../access/user.ts';
import { malformedRequest, type QuaysideError } from '../model/errors.ts';

/** A call that waits for elements or events. */
export interface WaitingCall {
  /** The client has closed its half of the connection, or nothing more can be read from it. */
  onInputEnd(): void;
  /**
   * The server has paused reading for longer than a moment: too much waits to be written, or a body waits for its
   * reader. While paused, it does not notice that the client closes its half.
   */
  onPause?(): void;
  /** Users were reloaded, or API tokens have ended. @param affected null: any user */
  renewUser?(affected: ReadonlySet<User> | null): void;
}

/** What Node's parser expects from `onIncoming` if another protocol follows the request: it then stops. */
const STOP = 2;

/**
 * A connection on which there was a request. It keeps the call that waits, so that the two listeners of its socket
 * serve all calls.
 */
export class HttpConnection {
  /** Null: none. There is at most one: the next one starts after its response. */
  waitingCall: WaitingCall | null = null;
  /** Pipelined requests that wait for earlier responses. */
  waitingReads = 0;
  /** The user for whom the connection is counted; null: none yet. */
  countedFor: string | null = null;
  readonly #socket: Duplex;
  #isUnreadable = false;

  constructor(socket: Duplex) {
    this.#socket = socket;
    socket.on('end', () => this.waitingCall?.onInputEnd());
    socket.on('pause', () => {
      if (this.waitingCall === null) return;
      setImmediate(() => {
        if (socket.isPaused()) this.waitingCall?.onPause?.();
      });
    });
  }

  /** Whether the bytes that follow the last request are not a request. */
  get isUnreadable(): boolean {
    return this.#isUnreadable;
  }

  /** Notes that no further request can be read. A call that waits ends as if the client had disconnected. */
  markUnreadable(): void {
    this.#isUnreadable = true;
    this.waitingCall?.onInputEnd();
  }

  /** Parses no further requests, not even those that have arrived together with the present one. */
  stopParsing(): void {
    this.markUnreadable();
    // Internal to Node: called with each request once its head is parsed.
    const { parser } = this.#socket as Duplex & { parser?: { onIncoming: () => number } | null };
    if (parser) parser.onIncoming = () => STOP;
  }

  /** Whether the client has closed its half of the connection, or nothing more can be read from it. */
  get hasInputEnded(): boolean {
    return this.#socket.readableEnded || this.#isUnreadable;
  }

  /** The error of a call that cannot wait, since the input has ended. */
  inputEnded(): QuaysideError {
    return malformedRequest(
      this.#isUnreadable
        ? 'The bytes behind this request are not a request, so its connection is closed before the response has ended. Check the Content-Length, which counts bytes.'
        : 'The client closed its sending side before the response had ended. Keep it open until then: otherwise the client looks like one that has disconnected.',
    );
  }
}
