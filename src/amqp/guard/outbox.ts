import type { Cargo } from '../../session/handout.ts';
import { JOINED_BYTES, newPiece, PIECE_BYTES, type Piece, WayOut } from '../../session/way-out.ts';

/** The way out of one AMQP connection, frame by frame. */
export class Outbox extends WayOut<Buffer> {
  /** Adds a whole frame; `cargo` rides on it. */
  add(frame: Buffer, cargo: Cargo | null): void {
    if (this.isOver) {
      cargo?.lost();
      return;
    }
    const piece = this.#open();
    piece.parts.push(frame);
    piece.endsInCargo = cargo !== null;
    if (cargo !== null) piece.cargo.push(cargo);
    this.grow(piece, frame.length);
  }

  protected override nextPiece(): Piece<Buffer> | undefined {
    const piece = this.pieces.shift();
    if (piece !== undefined) piece.parts = joined(piece.parts);
    return piece;
  }

  #open(): Piece<Buffer> {
    const last = this.pieces.at(-1);
    if (last !== undefined && last.bytes < PIECE_BYTES) return last;
    const piece = newPiece<Buffer>();
    this.pieces.push(piece);
    return piece;
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
