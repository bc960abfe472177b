import { isUtf8 } from 'node:buffer';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { QuaysideError } from '../model/errors.ts';
import { BytePieces } from '../util/byte-pieces.ts';
import type { Clock } from '../util/clock.ts';
import { quote } from '../util/quote.ts';
import type { HttpCall } from './call.ts';
import { IncomingMessage } from './node-http.ts';
import { withinSpan } from './traced-request.ts';

/** What a request buffers before its body is claimed; then its socket waits. */
const UNCLAIMED_BYTES = 65_536;
/** What a request buffers whose body is read in chunks; then its socket waits. */
const UNREAD_BYTES = 262_144;
/** What is read and thrown away after a rejection, so that the client can read its response; then the socket ends. */
const DISCARDED_BYTES = 8 * 1_048_576;

/** Connections on which a body is read in chunks. */
const READ_IN_CHUNKS = new WeakSet<Duplex>();

/** Whether the body that arrives there may take any time, so that Node's limit for a whole request does not apply. */
export function isReadInChunks(socket: Duplex): boolean {
  return READ_IN_CHUNKS.has(socket);
}

/** Connections on which no further request can be read. */
const UNREADABLE = new WeakSet<Duplex>();

/** The event of a socket on which no further request can be read. */
const UNREADABLE_EVENT = 'unreadable';

export function isUnreadable(socket: Duplex): boolean {
  return UNREADABLE.has(socket);
}

export function markUnreadable(socket: Duplex): void {
  UNREADABLE.add(socket);
  socket.emit(UNREADABLE_EVENT);
}

/**
 * Calls `run` when the client has ended its half of a connection, or nothing more of it can be read: a call that waits
 * then ends as if the client had disconnected. @returns a function that prevents it
 */
export function onInputEnd(socket: Duplex, run: () => void): () => void {
  socket.on('end', run);
  socket.on(UNREADABLE_EVENT, run);
  return () => {
    socket.off('end', run);
    socket.off(UNREADABLE_EVENT, run);
  };
}

/**
 * Calls `run` when the server stops reading from a connection for longer than a moment: too much waits to be written on
 * it, or a body on it waits for its reader. Until it reads again it does not see the end of the client's half.
 * @returns a function that prevents it
 */
export function onPause(socket: Socket, run: () => void): () => void {
  const check = (): void => {
    setImmediate(() => {
      if (socket.isPaused()) run();
    });
  };
  socket.on('pause', check);
  return () => socket.off('pause', check);
}

/** Receives a body. One of the two is called, once; none if the client disconnects before its end. */
interface BodyReader {
  bodyEnded(body: Buffer): void;
  /** More came than the limit; the rest is thrown away. */
  bodyTooLarge(): void;
}

/**
 * A request that gathers its body itself.
 *
 * Node's parser passes each chunk of a body to `push`, and null after the last. Taking them here, instead of
 * through the stream's events, saves about a sixth of a small PUT's time (ADR 3). The stream side of this
 * object is never used.
 *
 * States, and who moves it: `unclaimed` (chunks are buffered, up to {@link UNCLAIMED_BYTES}) -> `claim` -> `claimed`
 * (buffered up to the limit), or -> `chunks` -> `chunked` (buffered up to {@link UNREAD_BYTES}) -> `discard`, by the
 * limit or by a rejection -> `discarded`.
 */
export class HttpRequest extends IncomingMessage {
  #state: 'unclaimed' | 'claimed' | 'chunked' | 'discarded' = 'unclaimed';
  #first: Buffer | null = null;
  /** All of them, if it has come in several chunks. */
  #more: BytePieces | null = null;
  #size = 0;
  #limit = 0;
  #isComplete = false;
  #isPaused = false;
  #reader: BodyReader | null = null;
  /** Called when a chunk, or the end, has come. */
  #onChunk: (() => void) | null = null;

  constructor(socket: Socket) {
    super(socket);
    // Tells Node that the body is being consumed; else it would start the stream to get rid of it.
    (this as unknown as { _consuming: boolean })._consuming = true;
  }

  /** Called by the parser only. Returns false if the socket has to wait. */
  override push(chunk: Buffer | null): boolean {
    if (chunk === null) {
      this.#isComplete = true;
      if (this.#state === 'claimed') this.#finish();
      this.#onChunk?.();
      return true;
    }
    this.#size += chunk.length;
    if (this.#state === 'discarded') {
      this.#first = null;
      if (this.#size > DISCARDED_BYTES) this.socket.destroy();
      return true;
    }
    if (this.#state === 'claimed' && this.#size > this.#limit) {
      this.#overflow();
      return true;
    }
    if (this.#more !== null) this.#more.append(chunk);
    else if (this.#first === null) this.#first = chunk;
    else {
      this.#more = new BytePieces();
      this.#more.append(this.#first);
      this.#more.append(chunk);
    }
    if (this.#state === 'unclaimed' && this.#size > UNCLAIMED_BYTES) this.#isPaused = true;
    if (this.#state === 'chunked' && this.#size > UNREAD_BYTES) this.#isPaused = true;
    this.#onChunk?.();
    return !this.#isPaused;
  }

  /** From now on the body is `reader`'s, which may be called before this returns. Called at most once. */
  claim(limit: number, reader: BodyReader): void {
    this.#state = 'claimed';
    this.#limit = limit;
    this.#reader = reader;
    if (this.#size > limit) this.#overflow();
    else if (this.#isComplete) this.#finish();
    if (this.#isPaused) this.#resume();
  }

  /**
   * From now on the body is read in chunks of what has come; the socket waits for a reader that is slow. Called at most
   * once, in place of `claim`. Ends early if the client disconnects, see `complete`, or the body is discarded.
   * @param maxIdleMs how long the reader waits for the client; the time that the reader itself takes is not limited
   * @throws QuaysideError `request-timeout` if no chunk comes for so long
   */
  async *chunks(clock: Clock, maxIdleMs: number): AsyncGenerator<Buffer, void, undefined> {
    this.#state = 'chunked';
    const { socket } = this;
    const wake = (): void => this.#onChunk?.();
    socket.once('close', wake);
    READ_IN_CHUNKS.add(socket);
    try {
      while (this.#state === 'chunked') {
        const chunk = this.#more === null ? this.#first : this.#more.take();
        this.#first = null;
        this.#more = null;
        this.#size = 0;
        if (chunk !== null) yield chunk;
        else if (this.#isComplete || socket.destroyed) return;
        else {
          const { promise, resolve, reject } = Promise.withResolvers<void>();
          const cancel = clock.after(maxIdleMs, () => reject(idle(maxIdleMs)));
          this.#onChunk = resolve;
          if (this.#isPaused) this.#resume();
          await promise.finally(cancel);
        }
      }
    } finally {
      READ_IN_CHUNKS.delete(socket);
      this.#onChunk = null;
      socket.off('close', wake);
    }
  }

  /** Throws the body, or the rest of it, away. Harmless at any time. */
  discard(): void {
    this.#state = 'discarded';
    this.#first = null;
    this.#more = null;
    this.#size = 0;
    this.#reader = null;
    this.#onChunk?.();
    if (this.#isPaused) this.#resume();
  }

  #finish(): void {
    const reader = this.#reader;
    this.#reader = null;
    const body = this.#more === null ? (this.#first ?? EMPTY) : this.#more.take();
    this.#first = null;
    this.#more = null;
    reader?.bodyEnded(body);
  }

  #overflow(): void {
    const reader = this.#reader;
    this.discard();
    reader?.bodyTooLarge();
  }

  #resume(): void {
    this.#isPaused = false;
    this.socket.resume();
  }
}

const EMPTY = Buffer.alloc(0);

// Node keeps the last request of an idle connection alive until its stream has ended. Ours never starts, so
// its end is the parser's.
Object.defineProperty(HttpRequest.prototype, 'readableEnded', {
  get(this: HttpRequest): boolean {
    return this.complete;
  },
});

// Node asks each request for this one header, and would build an object of all of them to find it (ADR 3).
// All other code reads headers from `rawHeaders`, by `readHead`.
Object.defineProperty(HttpRequest.prototype, 'headers', {
  get(this: HttpRequest): { readonly expect?: string } {
    const { rawHeaders } = this;
    for (let at = 0; at < rawHeaders.length; at += 2) {
      const name = rawHeaders[at];
      if (name?.length === EXPECT.length && name.toLowerCase() === EXPECT) {
        return { expect: rawHeaders[at + 1] ?? '' };
      }
    }
    return NOTHING;
  },
});

const EXPECT = 'expect';
const NOTHING = Object.freeze({});

/**
 * Reads the body of a request; `take` is called once, with all of it, and not at all if the client disconnects
 * before its end. A body over `limit` bytes is answered with 413: at once if the request declares it,
 * else as soon as so much has arrived. If the user is gone by its end, the call fails.
 */
export function readBody(call: HttpCall, limit: number, take: (body: Buffer) => void): void {
  const end = (body: Buffer): void => {
    try {
      call.renewUser();
      take(body);
    } catch (error) {
      call.fail(error);
    }
  };
  claimBody(call, limit, {
    // The parser calls it, for which the request is over.
    bodyEnded: call.span === null ? end : (body) => withinSpan(call, () => end(body)),
    bodyTooLarge: () => call.fail(moreThan(limit)),
  });
}

/**
 * The same as a promise, for bodies that are read in a larger piece of work. Resolves to null if the client disconnects
 * before the end of the body: that work may hold a turn that other requests wait for.
 * @throws QuaysideError `body-too-large`, and as `HttpCall.renewUser`
 */
export async function wholeBody(call: HttpCall, limit: number): Promise<Buffer | null> {
  const { socket } = call.request;
  if (socket.destroyed) return null;
  const { promise, resolve, reject } = Promise.withResolvers<Buffer | null>();
  const onClose = (): void => resolve(null);
  socket.once('close', onClose);
  try {
    claimBody(call, limit, { bodyEnded: resolve, bodyTooLarge: () => reject(moreThan(limit)) });
    const body = await promise;
    if (body !== null) call.renewUser();
    return body;
  } finally {
    socket.off('close', onClose);
  }
}

/** @throws QuaysideError `body-too-large` if the request declares more than `limit` bytes */
function claimBody(call: HttpCall, limit: number, reader: BodyReader): void {
  const { request, head, response } = call;
  rejectIfLonger(call, limit);
  if (head.expect !== null && request.httpVersionMinor > 0) response.writeContinue();
  request.claim(limit, reader);
}

/** @throws QuaysideError `body-too-large` if the request declares more than `limit` bytes */
export function rejectIfLonger({ head: { contentLength } }: HttpCall, limit: number): void {
  if (contentLength > limit) throw tooLarge(limit, `has ${contentLength} bytes`);
}

function idle(maxMs: number): QuaysideError {
  return new QuaysideError('request-timeout', `Nothing of the body came for ${maxMs / 1000} s, the limit.`);
}

function moreThan(limit: number): QuaysideError {
  return tooLarge(limit, `has more than ${limit} bytes`);
}

function tooLarge(limit: number, what: string): QuaysideError {
  return new QuaysideError('body-too-large', `The body ${what}. At most ${limit} are allowed.`, {
    extra: { limit },
  });
}

/**
 * Reads a JSON body of at most `maxBytes`. Resolves when `take` has dealt with it, or the client has disconnected
 * before its end. Rejects with `body-too-large`, `invalid-body` and what `take` rejects with.
 */
export async function readJson(
  call: HttpCall,
  maxBytes: number,
  take: (payload: unknown) => Promise<void>,
): Promise<void> {
  const body = await wholeBody(call, maxBytes);
  if (body !== null) await take(parseJson(body));
}

/** @throws QuaysideError `invalid-body` */
export function parseJson(body: Buffer): unknown {
  if (!isUtf8(body))
    throw new QuaysideError('invalid-body', 'The body is not UTF-8. It must be JSON in UTF-8.');
  try {
    return JSON.parse(body.toString('utf8'));
  } catch (error) {
    throw new QuaysideError(
      'invalid-body',
      `The body is not JSON: ${quote((error as SyntaxError).message)}.`,
    );
  }
}
