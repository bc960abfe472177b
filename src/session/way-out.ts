import type { Socket } from 'node:net';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { SessionCounts } from './counts.ts';
import type { Cargo } from './handout.ts';

export interface WayOutOptions {
  readonly clock: Clock;
  readonly counts: SessionCounts;
  readonly stallTimeoutMs: number;
  /** There is room again, or more than before. */
  onRoom(): void;
  /** The client has taken nothing for too long. */
  onStall(): void;
}

/**
 * Bytes of one write, about. A write that the kernel takes only in part leaves open how much of it the client
 * saw, so that small writes keep small what a lost connection leaves open.
 */
export const PIECE_BYTES = 16 * 1024;
/** Buffers from this size on are written from where they are; smaller ones are joined with what surrounds them. */
export const JOINED_BYTES = 4096;
/** More is handed out while fewer bytes than this wait. With 1,000 slow readers it is 64 MB. */
const ROOM_BYTES = 64 * 1024;

/** Frames that leave in one write. Texts have one character for each byte. */
export interface Piece<Part> {
  parts: Part[];
  readonly cargo: Cargo[];
  /** Whether the last frame ends something that has cargo. */
  endsInCargo: boolean;
  bytes: number;
}

export function newPiece<Part>(): Piece<Part> {
  return { parts: [], cargo: [], endsInCargo: false, bytes: 0 };
}

/**
 * The way out of one connection; each protocol adds its frames to `pieces`. What is added during one turn of the
 * event loop leaves together at its end, in few writes; the next write begins when the kernel has taken the one
 * before, so that it is known which frames a lost connection has cost.
 */
export abstract class WayOut<Part extends string | Buffer> {
  /** Not written yet; frames are added to the last one until it is large enough. */
  protected readonly pieces: Piece<Part>[] = [];
  readonly #socket: Socket;
  readonly #options: WayOutOptions;
  #writing: Piece<Part> | null = null;
  #bytes = 0;
  #isFlushPlanned = false;
  #isOver = false;
  #whenEmpty: (() => void) | null = null;
  #cancelStall: CancelTimer | null = null;

  constructor(socket: Socket, options: WayOutOptions) {
    this.#socket = socket;
    this.#options = options;
  }

  /** Takes out the next piece, ready to be written; undefined where there is none. */
  protected abstract nextPiece(): Piece<Part> | undefined;

  /** Bytes that the kernel does not have yet. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Bytes that may be handed out now: none while the client is behind. */
  get room(): number {
    return this.#writing === null ? ROOM_BYTES - this.#bytes : 0;
  }

  /** Whether the kernel has not taken all of the last write. */
  get isBehind(): boolean {
    return this.#writing !== null;
  }

  /** The connection is lost, or cut: nothing more is added. */
  protected get isOver(): boolean {
    return this.#isOver;
  }

  /** Calls `then` when all that was added is with the kernel; not at all if the connection is lost. */
  whenEmpty(then: () => void): void {
    if (this.#bytes === 0) then();
    else this.#whenEmpty = then;
  }

  /** Takes out what no write has begun with: whoever is in there hears that it is lost. */
  drop(): void {
    const pieces = this.pieces.splice(0);
    for (const { bytes } of pieces) this.#count(-bytes);
    for (const { cargo } of pieces) for (const one of cargo) one.lost();
  }

  /** The connection is lost, or cut: whoever is still in here hears so. */
  abandon(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#endStall();
    // Of the write under way an unknown part is with the kernel; only its last frame cannot be whole there.
    if (this.#writing?.endsInCargo) this.#writing.cargo.at(-1)?.lost();
    this.drop();
    this.#count(-this.#bytes);
  }

  /** So many bytes were added to a piece: they leave at the end of this turn. */
  protected grow(piece: Piece<Part>, bytes: number): void {
    piece.bytes += bytes;
    this.#count(bytes);
    if (this.#isFlushPlanned) return;
    this.#isFlushPlanned = true;
    setImmediate(() => {
      this.#isFlushPlanned = false;
      this.#pump();
    });
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    this.#options.counts.outgoingBytes += bytes;
  }

  #pump(): void {
    if (this.#isOver || this.#socket.destroyed) return;
    while (this.#writing === null) {
      const piece = this.nextPiece();
      if (piece === undefined) break;
      if (!this.#write(piece)) return;
    }
    if (this.#bytes === 0) this.#tellEmpty();
    this.#options.onRoom();
  }

  /** Answers false where the connection is lost and took nothing of it. */
  #write(piece: Piece<Part>): boolean {
    const socket = this.#socket;
    this.#writing = piece;
    const { parts } = piece;
    if (parts.length > 1) socket.cork();
    for (const [i, part] of parts.entries()) {
      const isLast = i === parts.length - 1;
      socket.write(part, 'latin1', isLast ? (error) => this.#written(piece, error) : undefined);
    }
    if (parts.length > 1) socket.uncork();
    if (socket.errored !== null) {
      this.#writing = null;
      this.pieces.unshift(piece);
      return false;
    }
    // Most writes are taken whole and at once; the callback of those comes later, to nobody.
    if (socket.writableLength === 0) this.#done(piece);
    else this.#watchStall();
    return true;
  }

  #written(piece: Piece<Part>, error: Error | null | undefined): void {
    if (this.#writing !== piece || error) return;
    this.#done(piece);
    this.#pump();
  }

  #tellEmpty(): void {
    const then = this.#whenEmpty;
    this.#whenEmpty = null;
    then?.();
  }

  #done(piece: Piece<Part>): void {
    this.#writing = null;
    this.#endStall();
    this.#count(-piece.bytes);
    for (const cargo of piece.cargo) cargo.written();
  }

  #watchStall(): void {
    this.#options.counts.stalled += 1;
    this.#planLook();
  }

  /** A large body is one write: while the kernel takes of it, however slowly, the client reads. */
  #planLook(): void {
    const { clock, stallTimeoutMs, onStall } = this.#options;
    const left = untaken(this.#socket);
    this.#cancelStall = clock.after(stallTimeoutMs, () => {
      if (untaken(this.#socket) === left) onStall();
      else this.#planLook();
    });
  }

  #endStall(): void {
    if (this.#cancelStall === null) return;
    this.#options.counts.stalled -= 1;
    this.#cancelStall();
    this.#cancelStall = null;
  }
}

/** Of a socket, what Node itself looks at before it says that one has timed out. TLS has the TCP one within it. */
interface Handle {
  readonly writeQueueSize?: number;
  readonly _parent?: Handle;
}

/** Bytes that were written and the kernel does not have. */
function untaken(socket: Socket): number | undefined {
  const { _handle: handle } = socket as unknown as { readonly _handle?: Handle | null };
  return (handle?._parent ?? handle)?.writeQueueSize;
}
