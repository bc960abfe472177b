import type { Socket } from 'node:net';
import type { CancelTimer, Clock } from '../../model/clock.ts';
import type { SessionCounts } from '../../session/counts.ts';
import type { Cargo } from '../../session/handout.ts';

export interface OutboxOptions {
  readonly clock: Clock;
  readonly counts: SessionCounts;
  readonly stallTimeoutMs: number;
  /** There is room again, or more than before. */
  onRoom(): void;
  /** The peer has taken nothing for too long. */
  onStall(): void;
}

/**
 * Bytes of one write, about. A write that the kernel takes only in part leaves open how much of it the peer
 * saw, so that small writes keep small what a lost connection leaves open.
 */
const PIECE_BYTES = 16 * 1024;
/** Frames from this size on are written from where they are; smaller ones are joined. */
const JOINED_BYTES = 4096;
/** More is handed out while fewer bytes than this wait. With 1,000 slow readers it is 64 MB. */
const ROOM_BYTES = 64 * 1024;

/** Frames that leave in one write. */
interface Piece {
  readonly frames: Buffer[];
  readonly cargo: Cargo[];
  /** Whether its last frame ends something that has cargo. */
  endsInCargo: boolean;
  bytes: number;
}

/**
 * The way out of one connection. What is put in during one turn of the event loop leaves together at its end,
 * in few writes; the next write begins when the kernel has taken the one before, so that it is known which
 * deliveries a lost connection has cost.
 */
export class Outbox {
  readonly #socket: Socket;
  readonly #options: OutboxOptions;
  /** Not written yet; frames are added to the last one until it is large enough. */
  #pieces: Piece[] = [];
  #writing: Piece | null = null;
  #bytes = 0;
  #isFlushPlanned = false;
  #isOver = false;
  #whenEmpty: (() => void) | null = null;
  #cancelStall: CancelTimer | null = null;

  constructor(socket: Socket, options: OutboxOptions) {
    this.#socket = socket;
    this.#options = options;
  }

  /** Bytes that the kernel does not have yet. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Bytes that may be handed out now: none while the peer is behind. */
  get room(): number {
    return this.#writing === null ? ROOM_BYTES - this.#bytes : 0;
  }

  /** Whether the kernel has not taken all of the last write. */
  get isBehind(): boolean {
    return this.#writing !== null;
  }

  /** Adds a whole frame; `cargo` rides on it. */
  add(frame: Buffer, cargo: Cargo | null): void {
    if (this.#isOver) {
      cargo?.lost();
      return;
    }
    const piece = this.#open();
    piece.frames.push(frame);
    piece.bytes += frame.length;
    piece.endsInCargo = cargo !== null;
    if (cargo !== null) piece.cargo.push(cargo);
    this.#count(frame.length);
    if (this.#isFlushPlanned) return;
    this.#isFlushPlanned = true;
    setImmediate(() => {
      this.#isFlushPlanned = false;
      this.#pump();
    });
  }

  /** Calls `then` when all that was added is with the kernel; not at all if the connection is lost. */
  whenEmpty(then: () => void): void {
    if (this.#bytes === 0) then();
    else this.#whenEmpty = then;
  }

  /** Takes out what no write has begun with: whoever is in there hears that it is lost. */
  drop(): void {
    const pieces = this.#pieces;
    this.#pieces = [];
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

  #open(): Piece {
    const last = this.#pieces.at(-1);
    if (last !== undefined && last.bytes < PIECE_BYTES) return last;
    const piece = { frames: [], cargo: [], endsInCargo: false, bytes: 0 };
    this.#pieces.push(piece);
    return piece;
  }

  #count(bytes: number): void {
    this.#bytes += bytes;
    this.#options.counts.outgoingBytes += bytes;
  }

  #pump(): void {
    if (this.#isOver || this.#socket.destroyed) return;
    while (this.#writing === null) {
      const piece = this.#pieces.shift();
      if (piece === undefined) break;
      if (!this.#write(piece)) return;
    }
    if (this.#bytes === 0) this.#tellEmpty();
    this.#options.onRoom();
  }

  /** Answers false where the connection is lost and took nothing of it. */
  #write(piece: Piece): boolean {
    const socket = this.#socket;
    this.#writing = piece;
    const parts = joined(piece.frames);
    if (parts.length > 1) socket.cork();
    for (const [i, part] of parts.entries()) {
      const isLast = i === parts.length - 1;
      socket.write(part, isLast ? (error) => this.#written(piece, error) : undefined);
    }
    if (parts.length > 1) socket.uncork();
    if (socket.errored !== null) {
      this.#writing = null;
      this.#pieces.unshift(piece);
      return false;
    }
    // Most writes are taken whole and at once; the callback of those comes later, to nobody.
    if (socket.writableLength === 0) this.#done(piece);
    else this.#watchStall();
    return true;
  }

  #written(piece: Piece, error: Error | null | undefined): void {
    if (this.#writing !== piece || error) return;
    this.#done(piece);
    this.#pump();
  }

  #tellEmpty(): void {
    const then = this.#whenEmpty;
    this.#whenEmpty = null;
    then?.();
  }

  #done(piece: Piece): void {
    this.#writing = null;
    this.#endStall();
    this.#count(-piece.bytes);
    for (const cargo of piece.cargo) cargo.written();
  }

  #watchStall(): void {
    const { clock, counts, stallTimeoutMs, onStall } = this.#options;
    counts.stalled += 1;
    this.#cancelStall = clock.after(stallTimeoutMs, onStall);
  }

  #endStall(): void {
    if (this.#cancelStall === null) return;
    this.#options.counts.stalled -= 1;
    this.#cancelStall();
    this.#cancelStall = null;
  }
}

/** Small frames that follow each other become one buffer; large ones stay where they are. */
function joined(frames: readonly Buffer[]): Buffer[] {
  if (frames.length === 1) return [...frames];
  const parts: Buffer[] = [];
  let small: Buffer[] = [];
  for (const frame of frames) {
    if (frame.length < JOINED_BYTES) {
      small.push(frame);
      continue;
    }
    if (small.length > 0) parts.push(Buffer.concat(small));
    small = [];
    parts.push(frame);
  }
  if (small.length > 0) parts.push(Buffer.concat(small));
  return parts;
}
