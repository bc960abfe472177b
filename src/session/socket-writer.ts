import type { Duplex } from 'node:stream';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { JOINED_BYTES } from '../util/sockets.ts';
import type { SessionCounts } from './server.ts';

/** Is notified once whether bytes given to a {@link SocketWriter} were written. */
export interface WriteObserver {
  /** The client may have seen all of the bytes: the kernel has them, or may have. */
  written(): void;
  /** The kernel does not have all of the bytes, and never will. */
  lost(): void;
}

/**
 * The observer of a frame that belongs to elements although nothing depends on its write: a part of an element, a
 * browsed element, or the frame that ends a drain or a browse. `dropElements` drops such frames, too.
 */
export const UNOBSERVED: WriteObserver = { written: () => {}, lost: () => {} };

/** A TCP or TLS socket, or a stream that runs over one. */
export interface ClientSocket extends Duplex {
  /** The socket that a stream runs over; undefined if this is the socket itself. */
  readonly transport?: Duplex;
  /** Bytes of an incomplete message of this stream, as `ClientSession.receivingBytes`; undefined: it has none. */
  readonly receivingBytes?: number;
  /** Called when the client has logged in. */
  onLogin?(user: string): void;
}

export interface WriterOptions {
  readonly clock: Clock;
  readonly counts: SessionCounts;
  /** Called when capacity may have grown. */
  onCapacity(): void;
}

/**
 * Approximate size of one write. If the kernel takes only a part of a write and the connection is lost, it is unknown
 * how much the client saw; small writes keep that uncertainty small.
 */
const CHUNK_BYTES = 16 * 1024;
/** If a client reads none of the bytes that wait for it for this long, its connection is cut. */
export const STALL_TIMEOUT_MS = 90_000;
/** Consumers send more while fewer bytes than this wait. With 1,000 slow readers, up to 64 MB wait. */
const CAPACITY_BYTES = 64 * 1024;

/** A part of a frame. A string has one character per byte. */
type WrittenPart = string | Buffer;

interface WrittenFrame {
  readonly parts: readonly WrittenPart[];
  /** Null if the frame does not belong to an element. */
  readonly observer: WriteObserver | null;
}

/** Frames that are sent in one write. */
interface Chunk {
  frames: WrittenFrame[];
  bytes: number;
}

/**
 * Writes frames to one connection. Frames added in one turn of the event loop are sent at its end, in few writes. The
 * next write starts when the kernel has taken the previous one, so that after the connection is lost, it is known which
 * frames were lost with it.
 */
export class SocketWriter {
  /** Chunks not written yet; frames are added to the last one until it has `CHUNK_BYTES`. */
  readonly #chunks: Chunk[] = [];
  readonly #socket: ClientSocket;
  readonly #options: WriterOptions;
  #writing: Chunk | null = null;
  #bytes = 0;
  #isFlushPlanned = false;
  /** `end` was called: further frames are rejected. */
  #isEnded = false;
  #isClosed = false;
  #onEmpty: (() => void) | null = null;
  #cancelStall: CancelTimer | null = null;

  constructor(socket: ClientSocket, options: WriterOptions) {
    this.#socket = socket;
    this.#options = options;
  }

  /** Bytes that the kernel does not have yet. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Bytes of elements that may be added now: none while the client is behind. */
  get capacity(): number {
    return this.#writing === null ? CAPACITY_BYTES - this.#bytes : 0;
  }

  /** Adds a frame. @param observer that of the element which the frame contains or ends; null if there is none */
  add(observer: WriteObserver | null, ...parts: readonly WrittenPart[]): void {
    if (this.#isEnded || this.#isClosed) {
      observer?.lost();
      return;
    }
    this.#append({ parts, observer });
    if (this.#isFlushPlanned) return;
    this.#isFlushPlanned = true;
    setImmediate(() => {
      this.#isFlushPlanned = false;
      this.#flush();
    });
  }

  /**
   * Drops all elements of which no byte was written. Call when the session ends: the client would ignore them, or could
   * not settle them. Other frames stay.
   */
  dropElements(): void {
    const waiting = this.#chunks.splice(0).flatMap(({ frames }) => frames);
    const lost: WriteObserver[] = [];
    for (const frame of waiting) {
      this.#count(-lengthOf(frame));
      if (frame.observer === null) this.#append(frame);
      else lost.push(frame.observer);
    }
    for (const observer of lost) observer.lost();
  }

  /**
   * Rejects further frames, so that a late result of the engine is not sent after the closing frame. Calls `then` when
   * the kernel has all bytes; never if the connection is lost.
   */
  end(then: () => void): void {
    this.#isEnded = true;
    if (this.#bytes === 0) then();
    else this.#onEmpty = then;
  }

  /** Call when the connection is closed or lost: frames that were not written are lost. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#endStall();
    const lost = [this.#writing, ...this.#chunks].flatMap((chunk) => chunk?.frames ?? []);
    this.#chunks.length = 0;
    this.#count(-this.#bytes);
    for (const { observer } of lost) observer?.lost();
  }

  #append(frame: WrittenFrame): void {
    let chunk = this.#chunks.at(-1);
    if (chunk === undefined || chunk.bytes >= CHUNK_BYTES) {
      if (chunk !== undefined) chunk.frames = withoutOverhead(chunk.frames);
      chunk = { frames: [], bytes: 0 };
      this.#chunks.push(chunk);
    }
    chunk.frames.push(frame);
    const bytes = lengthOf(frame);
    chunk.bytes += bytes;
    this.#count(bytes);
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    this.#options.counts.outgoingBytes += bytes;
  }

  #flush(): void {
    if (this.#isClosed || this.#socket.destroyed) return;
    while (this.#writing === null) {
      const chunk = this.#chunks.shift();
      if (chunk === undefined) break;
      if (!this.#write(chunk)) return;
    }
    if (this.#bytes === 0) {
      const then = this.#onEmpty;
      this.#onEmpty = null;
      then?.();
    }
    this.#options.onCapacity();
  }

  /** @returns false if the connection is lost and took no byte of the chunk */
  #write(chunk: Chunk): boolean {
    const socket = this.#socket;
    this.#writing = chunk;
    const parts = joinParts(chunk.frames);
    if (parts.length > 1) socket.cork();
    for (const [i, part] of parts.entries()) {
      const isLast = i === parts.length - 1;
      socket.write(part, 'latin1', isLast ? (error) => this.#written(chunk, error) : undefined);
    }
    if (parts.length > 1) socket.uncork();
    if (socket.errored !== null) {
      this.#writing = null;
      this.#chunks.unshift(chunk);
      return false;
    }
    // The kernel takes most writes immediately and in full; their callbacks run later and change nothing.
    if (socket.writableLength === 0) this.#done(chunk);
    else {
      // The kernel has an unknown part of the chunk. Only the last frame is certainly not complete there.
      const last = chunk.frames.pop();
      for (const { observer } of chunk.frames.splice(0)) observer?.written();
      if (last !== undefined) chunk.frames.push(last);
      this.#options.counts.stalled += 1;
      this.#planStallCheck();
    }
    return true;
  }

  #written(chunk: Chunk, error: Error | null | undefined): void {
    if (this.#writing !== chunk || error) return;
    this.#done(chunk);
    this.#flush();
  }

  #done(chunk: Chunk): void {
    this.#writing = null;
    this.#endStall();
    this.#count(-chunk.bytes);
    for (const { observer } of chunk.frames) observer?.written();
  }

  /** A large body is one write: while the kernel takes more of it, however slowly, the client is reading. */
  #planStallCheck(): void {
    const before = unsentBytes(this.#socket);
    this.#cancelStall = this.#options.clock.after(STALL_TIMEOUT_MS, () => {
      if (unsentBytes(this.#socket) === before) this.#socket.destroy();
      else this.#planStallCheck();
    });
  }

  #endStall(): void {
    if (this.#cancelStall === null) return;
    this.#options.counts.stalled -= 1;
    this.#cancelStall();
    this.#cancelStall = null;
  }
}

/**
 * Joins adjacent frames that belong to no element. A client that does not read may accumulate very many small ones, and
 * each retains more than its bytes: the client's frame that its strings are parts of, or the pool of small buffers.
 */
function withoutOverhead(frames: readonly WrittenFrame[]): WrittenFrame[] {
  const joined: WrittenFrame[] = [];
  let run: WrittenPart[] = [];
  const endRun = (): void => {
    if (run.length > 0) joined.push({ parts: [concatParts(run)], observer: null });
    run = [];
  };
  for (const frame of frames) {
    if (frame.observer === null) run.push(...frame.parts);
    else {
      endRun();
      joined.push(frame);
    }
  }
  endRun();
  return joined;
}

function concatParts(parts: readonly WrittenPart[]): Buffer {
  const bytes = Buffer.allocUnsafeSlow(lengthOf({ parts }));
  let offset = 0;
  for (const part of parts) {
    if (typeof part === 'string') bytes.write(part, offset, 'latin1');
    else bytes.set(part, offset);
    offset += part.length;
  }
  return bytes;
}

function lengthOf({ parts }: Pick<WrittenFrame, 'parts'>): number {
  let bytes = 0;
  for (const part of parts) bytes += part.length;
  return bytes;
}

/**
 * Joins adjacent strings, and adjacent small buffers. Larger buffers are written without a copy.
 */
function joinParts(frames: readonly WrittenFrame[]): readonly WrittenPart[] {
  const written: WrittenPart[] = [];
  let text = '';
  let small: Buffer[] = [];
  const endRun = (): void => {
    if (text !== '') written.push(text);
    if (small.length > 0) written.push(small.length === 1 ? (small[0] as Buffer) : Buffer.concat(small));
    text = '';
    small = [];
  };
  for (const { parts } of frames) {
    for (const part of parts) {
      const isText = typeof part === 'string';
      if (isText ? small.length > 0 : text !== '' || part.length >= JOINED_BYTES) endRun();
      if (isText) text += part;
      else if (part.length < JOINED_BYTES) small.push(part);
      else written.push(part);
    }
  }
  endRun();
  return written;
}

/** Node's internal handle of a socket, which Node itself checks before a timeout. A TLS handle wraps that of TCP. */
interface Handle {
  readonly writeQueueSize?: number;
  readonly _parent?: Handle;
}

/** Bytes that were written but not taken by the kernel; undefined if the socket has no handle. */
function unsentBytes(socket: ClientSocket): number | undefined {
  const { _handle: handle } = (socket.transport ?? socket) as { readonly _handle?: Handle | null };
  return (handle?._parent ?? handle)?.writeQueueSize;
}
