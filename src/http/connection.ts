import type { Duplex } from 'node:stream';
import type { User } from '../access/user.ts';
import { malformedRequest, type QuaysideError } from '../model/errors.ts';

const NOT_A_REQUEST =
  'The bytes behind this request are not a request, so its connection is closed before the response has ended. Check the Content-Length, which counts bytes.';
const HALF_CLOSED =
  'The client closed its sending side before the response had ended. Keep it open until then: otherwise the client looks like one that has disconnected.';

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
  /** Why no further request can be read; null: it can. */
  #unreadable: QuaysideError | null = null;

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

  /** Whether no further request can be read. */
  get isUnreadable(): boolean {
    return this.#unreadable !== null;
  }

  /**
   * Notes that no further request can be read. A call that waits ends as if the client had disconnected.
   * @param reason the error with which it ends; by default, the bytes that follow the last request are not a request
   */
  markUnreadable(reason = malformedRequest(NOT_A_REQUEST)): void {
    this.#unreadable = reason;
    this.waitingCall?.onInputEnd();
  }

  /**
   * Parses nothing more of what the client sends, not even what has arrived together with the present request.
   * @param reason the error of calls that cannot wait because of this
   */
  stopParsing(reason: QuaysideError): void {
    this.markUnreadable(reason);
    stopParser(this.#socket);
  }

  /** Whether the client has closed its half of the connection, or nothing more can be read from it. */
  get hasInputEnded(): boolean {
    return this.#socket.readableEnded || this.isUnreadable;
  }

  /** The error of a call that cannot wait, since the input has ended. */
  inputEnded(): QuaysideError {
    return this.#unreadable ?? malformedRequest(HALF_CLOSED);
  }
}

/** Node's parser of a connection, as far as it is used here. Node uses it again for later connections. */
interface Parser {
  /** Called with each request once its head is parsed. */
  onIncoming: (request: { upgrade: boolean }) => number;
  /** The index of the function that is called with each chunk of a body. */
  readonly constructor: { readonly kOnBody: number };
  [kOnBody: number]: unknown;
}

/** What the parser expects from `onIncoming` if another protocol follows the request: it then stops. */
const STOP = 2;

/**
 * Makes the parser of a connection that is about to be closed skip what it has read of further requests and of the
 * present body. There may be 10,000 chunks in one read, of which each took 2 µs.
 */
export function stopParser(socket: Duplex): void {
  const { parser } = socket as Duplex & { readonly parser?: Parser | null };
  if (!parser) return;
  const { kOnBody } = parser.constructor;
  const onBody = parser[kOnBody];
  if (onBody === null) return;
  parser[kOnBody] = null;
  socket.once('close', () => {
    parser[kOnBody] = onBody;
  });
  parser.onIncoming = (request) => {
    request.upgrade = false;
    return STOP;
  };
}
