import type { Socket } from 'node:net';
import type { CancelTimer, Clock } from '../model/clock.ts';
import type { SessionCounts } from '../session/counts.ts';
import type { Cargo } from '../session/handout.ts';

export interface OutboxOptions {
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
const PIECE_BYTES = 16 * 1024;
/** Bodies from this size on are written from where they are; smaller ones are joined with what surrounds them. */
const JOINED_BYTES = 4096;
/** Subscriptions hand out more while fewer bytes than this wait. With 1,000 slow readers it is 64 MB. */
const ROOM_BYTES = 64 * 1024;

/** Frames that leave in one write. */
interface Piece {
  readonly parts: (string | Buffer)[];
  readonly cargo: Cargo[];
  /** Whether the last frame is a MESSAGE. */
  endsInCargo: boolean;
  bytes: number;
}

/**
 * The way out of one connection. What is put in during one turn of the event loop leaves together at its end,
 * in few writes; the next write begins when the kernel has taken the one before, so that it is known which
 * frames a lost connection has cost.
 */
export class Outbox {
  readonly #socket: Socket;
  readonly #options: OutboxOptions;
  /** Sealed pieces; the last one is still open. */
  readonly #pieces: Piece[] = [];
  #text = '';
  #writing: Piece | null = null;
  #bytes = 0;
  #flushPlanned = false;
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

  /** Bytes that subscriptions may add now: none while the client is behind. */
  get room(): number {
    return this.#writing === null ? ROOM_BYTES - this.#bytes : 0;
  }

  /** Adds a frame, as bytes with one character for each. */
  add(frame: string): void {
    if (this.#isOver) return;
    this.#grow(frame.length);
    this.#open.endsInCargo = false;
    this.#text += frame;
    this.#seal(PIECE_BYTES);
  }

  /** Adds a frame with a body; the NUL behind it is added here. */
  addMessage(head: string, body: Uint8Array, cargo: Cargo): void {
    if (this.#isOver) {
      cargo.lost();
      return;
    }
    this.#grow(head.length + body.length + 1);
    const piece = this.#open;
    piece.cargo.push(cargo);
    piece.endsInCargo = true;
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length < JOINED_BYTES) {
      this.#text += `${head}${bytes.toString('latin1')}\0`;
    } else {
      piece.parts.push(this.#text + head, bytes);
      this.#text = '\0';
    }
    this.#seal(PIECE_BYTES);
  }

  /** Sends a line end if nothing else is on its way, which would say as well that this side is alive. */
  beat(): void {
    if (this.#bytes === 0) this.add('\n');
  }

  /** Calls `then` when all that was added is with the kernel; not at all if the connection is lost. */
  whenEmpty(then: () => void): void {
    if (this.#bytes === 0) then();
    else this.#whenEmpty = then;
  }

  /** The connection is lost, or cut: whoever is still in here hears so. */
  abandon(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#endStall();
    this.#options.counts.outgoingBytes -= this.#bytes;
    this.#bytes = 0;
    // Of the write under way an unknown part is with the kernel; only its last frame cannot be whole there.
    if (this.#writing?.endsInCargo) this.#writing.cargo.at(-1)?.lost();
    for (const { cargo } of this.#pieces.splice(0)) for (const one of cargo) one.lost();
  }

  get #open(): Piece {
    let piece = this.#pieces.at(-1);
    if (piece === undefined) {
      piece = newPiece();
      this.#pieces.push(piece);
    }
    return piece;
  }

  #grow(bytes: number): void {
    this.#open.bytes += bytes;
    this.#bytes += bytes;
    this.#options.counts.outgoingBytes += bytes;
    if (this.#flushPlanned) return;
    this.#flushPlanned = true;
    setImmediate(() => {
      this.#flushPlanned = false;
      this.#pump();
    });
  }

  /** Ends the open piece if it has reached that size. */
  #seal(bytes: number): void {
    const piece = this.#open;
    if (piece.bytes < bytes) return;
    if (this.#text !== '') piece.parts.push(this.#text);
    this.#text = '';
    this.#pieces.push(newPiece());
  }

  #pump(): void {
    if (this.#isOver || this.#socket.destroyed) return;
    while (this.#writing === null) {
      if (this.#pieces.length === 1) this.#seal(1);
      const piece = this.#pieces[0];
      if (piece === undefined || piece.bytes === 0) break;
      if (!this.#write(piece)) return;
      this.#pieces.shift();
    }
    if (this.#bytes === 0) this.#tellEmpty();
    this.#options.onRoom();
  }

  /** Answers false where the connection is lost and took nothing of it. */
  #write(piece: Piece): boolean {
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
    this.#bytes -= piece.bytes;
    this.#options.counts.outgoingBytes -= piece.bytes;
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

function newPiece(): Piece {
  return { parts: [], cargo: [], endsInCargo: false, bytes: 0 };
}
