import { type Duplex, Readable } from 'node:stream';
import { strangersOf } from '../access/networks.ts';
import type { User } from '../access/user.ts';
import { malformedRequest, type QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { Fifo } from '../util/fifo.ts';
import type { InputTurns } from '../util/input-turns.ts';
import type { HttpRequest } from './request.ts';

const NOT_A_REQUEST =
  'The bytes behind this request are not a request, so its connection is closed before the response has ended. Check the Content-Length, which counts bytes.';
const HALF_CLOSED =
  'The client closed its sending side before the response had ended. Keep it open until then: otherwise the client looks like one that has disconnected.';

/** How long a request takes before it starts, most of it in Node's parser, ms. */
const PARSE_MS = 0.015;
/** How long the parser takes for a chunk of a body, not counting its bytes, ms. */
const CHUNK_MS = 0.003;
/** Bytes that are parsed before the time is checked again, not counting those of a body of known length. */
const PART_BYTES = 4096;
const EMPTY = Buffer.alloc(0);

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

/** How busy the server is with what its clients send. */
export interface InputLoad {
  readonly turns: InputTurns;
  readonly clock: Pick<Clock, 'monotonic'>;
  /** Whether clients had to wait for others within the last seconds. */
  readonly isHigh: boolean;
  /** Notes that a client has to wait. */
  note(): void;
}

/**
 * A connection. It keeps the call that waits, so that the two listeners of its socket serve all calls.
 */
export class HttpConnection {
  /** Null: none. There is at most one: the next one starts after its response. */
  waitingCall: WaitingCall | null = null;
  /** Pipelined requests that wait for earlier responses. */
  waitingReads = 0;
  /** The user for whom the connection is counted; null: none yet. */
  countedFor: string | null = null;
  /** A call has a time limit of its own, so that Node's for a whole request does not apply. */
  hasOwnTimeLimit = false;
  readonly #socket: HttpSocket;
  readonly #load: InputLoad;
  /** Why no further request can be read; null: it can. */
  #unreadable: QuaysideError | null = null;
  /** Requests that start when other clients have been served, in order. */
  readonly #deferred = new Fifo<() => void>();
  /** Other clients are served before anything more is parsed. */
  #isYielding = false;
  /** Passes bytes to Node's parser; null: the parser reads from the socket itself. */
  #parse: ((bytes: Buffer) => void) | null = null;
  /** Bytes that follow those that are being parsed. */
  #unparsed: Buffer = EMPTY;

  constructor(socket: Duplex, load: InputLoad) {
    this.#socket = socket as HttpSocket;
    this.#load = load;
    socket.on('end', () => this.waitingCall?.onInputEnd());
    socket.on('pause', () => {
      if (this.waitingCall === null || this.#isYielding) return;
      setImmediate(() => {
        if (this.isPaused) this.waitingCall?.onPause?.();
      });
    });
  }

  /** Counts a chunk of a body that is not the first one. A client may send 10,000 of one byte in one read. */
  countChunk(): void {
    const { turns } = this.#load;
    turns.count(CHUNK_MS);
    if (turns.isUsedUp) this.#yieldToOthers();
  }

  /** Starts a request now, or when other clients have been served; not if the connection is closed then. */
  startInTurn(start: () => void): void {
    if (this.#deferred.length === 0 && !this.#load.turns.isUsedUp) this.#count(PARSE_MS, start);
    else {
      this.#deferred.push(start);
      this.#yieldToOthers();
    }
  }

  /** Does what a request waited for until the end of its body. */
  endBody(work: () => void): void {
    this.#count(0, work);
    if (this.#load.turns.isUsedUp) this.#yieldToOthers();
  }

  /**
   * Responds, when other clients have been served, to a client that closed its half of the connection, most often
   * because it is gone. Thousands may disconnect at once, and a response takes 50 µs.
   */
  respondInTurn(respond: () => void): void {
    this.#wait(() => this.#count(0, respond));
  }

  #count(baseMs: number, work: () => void): void {
    const { turns, clock } = this.#load;
    const startedAt = clock.monotonic();
    work();
    turns.count(baseMs + clock.monotonic() - startedAt);
  }

  /**
   * Passes what the client sends to the parser in parts from now on, as the time allows. By default, the parser reads
   * from the socket itself, 64 KiB at a time, which may be 2,600 requests. That takes 8 µs less for each request.
   */
  meter(): void {
    const socket = this.#socket;
    const { parser } = socket;
    const [parse] = socket.listeners('data');
    if (this.#parse !== null || !parser || parse === undefined) return;
    this.#parse = parse as (bytes: Buffer) => void;
    parser.unconsume();
    socket.off('data', this.#parse);
    // Not by the socket's own method, with which Node would end the use of its parser's reader for good.
    Readable.prototype.on.call(socket, 'data', this.#onData);
  }

  /** Call when the connection is handed over to another protocol, whose parser reads from the socket. */
  handOver(): void {
    const socket = this.#socket;
    socket.off('data', this.#onData);
    // In front of what was read later. The new parser puts what Node has passed on with the request in front of this.
    if (this.#unparsed.length > 0) socket.unshift(this.#unparsed);
  }

  readonly #onData = (bytes: Buffer): void => {
    const socket = this.#socket;
    this.#unparsed = bytes;
    while (this.#unparsed.length > 0) {
      if (!this.#isBlocked && this.#load.turns.isUsedUp) this.#yieldToOthers();
      if (this.#isYielding || this.#isBlocked) {
        socket.pause();
        socket.unshift(this.#unparsed);
        break;
      }
      const part = this.#unparsed.subarray(0, PART_BYTES + (socket.parser?.incoming?.bytesLeft ?? 0));
      this.#unparsed = this.#unparsed.subarray(part.length);
      this.#parse?.(part);
      // Handed over, or closed.
      if (!socket.parser || socket.destroyed) break;
    }
    this.#unparsed = EMPTY;
    if (!this.#load.isHigh && socket.readableLength === 0) this.#unmeter();
  };

  /** Node has paused reading until the client reads its responses, or a request until its body is read. */
  get #isBlocked(): boolean {
    const socket = this.#socket;
    return socket._paused === true || socket.isPaused();
  }

  /**
   * Lets the parser read from the socket itself again. Not while reading is paused: the stream of the socket may still
   * fill its buffer then, which the parser does not have. Nor after `destroy`: Node aborts the process if the parser is
   * to read from a closed socket.
   */
  #unmeter(): void {
    const socket = this.#socket;
    const { parser } = socket;
    if (this.#parse === null || !parser || socket.destroyed || this.#isYielding || this.#isBlocked) return;
    socket.off('data', this.#onData);
    Readable.prototype.on.call(socket, 'data', this.#parse);
    this.#parse = null;
    parser.consume(socket._handle);
  }

  #yieldToOthers(): void {
    this.#load.note();
    if (this.#isYielding) return;
    this.#isYielding = true;
    this.meter();
    this.#socket.pause();
    this.#wait(this.#continue);
  }

  #wait(proceed: () => void): void {
    this.#load.turns.wait(this.countedFor ?? strangersOf(this.#socket.remoteAddress ?? ''), proceed);
  }

  readonly #continue = (): void => {
    const socket = this.#socket;
    const { turns } = this.#load;
    if (socket.destroyed) return;
    while (this.#deferred.length > 0 && !turns.isUsedUp)
      this.#count(PARSE_MS, this.#deferred.shift() as () => void);
    if (this.#deferred.length > 0) {
      this.#wait(this.#continue);
      return;
    }
    this.#isYielding = false;
    // Resumed once the client has read its responses, or the body of a request is read.
    if (socket._paused === true || socket.parser?.incoming?.isBlocking === true) {
      this.waitingCall?.onPause?.();
      return;
    }
    socket.resume();
    // Emits what was read before, so that it is parsed in this turn and not with that of all others that continue.
    socket.read();
  };

  /** Whether reading is paused for longer than it takes to serve other clients. */
  get isPaused(): boolean {
    return !this.#isYielding && this.#socket.isPaused();
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
   * Parses nothing more of what the client sends, not even what has arrived together with the present request, and
   * starts no request that was parsed before.
   * @param reason the error of calls that cannot wait because of this
   */
  stopParsing(reason: QuaysideError): void {
    this.markUnreadable(reason);
    this.#deferred.clear();
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

/** A socket of Node's HTTP server. */
interface HttpSocket extends Duplex {
  readonly remoteAddress?: string;
  /** Null once the connection is closed or upgraded. */
  readonly parser?: Parser | null;
  /** Node has paused parsing until the client reads its responses. */
  readonly _paused?: boolean;
  readonly _handle: unknown;
}

/** Node's parser of a connection, as far as it is used here. Node uses it again for later connections. */
interface Parser {
  /** Called with each request once its head is parsed. */
  onIncoming: (request: { upgrade: boolean }) => number;
  /** The index of the function that is called with each chunk of a body. */
  readonly constructor: { readonly kOnBody: number };
  /** The request whose body is being parsed; null: none. */
  readonly incoming: HttpRequest | null;
  /** Makes the parser read from a socket itself. */
  consume(handle: unknown): void;
  /** Makes the bytes of its socket events of the socket. */
  unconsume(): void;
  [kOnBody: number]: unknown;
}

/** What the parser expects from `onIncoming` if another protocol follows the request: it then stops. */
const STOP = 2;

/**
 * Makes the parser of a connection that is about to be closed skip what it has read of further requests and of the
 * present body. There may be 10,000 chunks in one read, of which each took 2 µs.
 */
export function stopParser(socket: Duplex): void {
  const { parser } = socket as HttpSocket;
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
