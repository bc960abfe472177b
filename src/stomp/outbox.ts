import type { Cargo } from '../session/handout.ts';
import { JOINED_BYTES, newPiece, PIECE_BYTES, type Piece, WayOut } from '../session/way-out.ts';

/**
 * The way out of one STOMP connection. Frames gather as one text, which is sealed into its piece once that is
 * large enough, or nothing else waits to be written.
 */
export class Outbox extends WayOut<string | Buffer> {
  /** The end of the last piece, which is still open. */
  #text = '';

  /** Adds a frame, as bytes with one character for each. */
  add(frame: string): void {
    if (this.isOver) return;
    const piece = this.#open;
    this.grow(piece, frame.length);
    piece.endsInCargo = false;
    this.#text += frame;
    this.#seal(PIECE_BYTES);
  }

  /** Adds a frame with a body; the NUL behind it is added here. */
  addMessage(head: string, body: Uint8Array, cargo: Cargo): void {
    if (this.isOver) {
      cargo.lost();
      return;
    }
    const piece = this.#open;
    this.grow(piece, head.length + body.length + 1);
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
    if (this.bytes === 0) this.add('\n');
  }

  protected override nextPiece(): Piece<string | Buffer> | undefined {
    if (this.pieces.length === 1) this.#seal(1);
    const [piece] = this.pieces;
    return piece === undefined || piece.bytes === 0 ? undefined : this.pieces.shift();
  }

  get #open(): Piece<string | Buffer> {
    let piece = this.pieces.at(-1);
    if (piece === undefined) {
      piece = newPiece<string | Buffer>();
      this.pieces.push(piece);
    }
    return piece;
  }

  /** Ends the open piece if it has reached that size. */
  #seal(bytes: number): void {
    const piece = this.#open;
    if (piece.bytes < bytes) return;
    if (this.#text !== '') piece.parts.push(this.#text);
    this.#text = '';
    this.pieces.push(newPiece());
  }
}
