import type { Socket } from 'node:net';
import type { Cargo } from '../session/handout.ts';
import {
  JOINED_BYTES,
  newPiece,
  PIECE_BYTES,
  type Piece,
  WayOut,
  type WayOutOptions,
} from '../session/way-out.ts';

/**
 * The way out of one STOMP connection. Frames gather as one text, which is sealed into its piece once that is
 * large enough, or nothing else waits to be written.
 */
export class Outbox extends WayOut<string | Buffer> {
  /** The end of the last piece, which is still open. */
  #text = '';
  /**
   * What stands behind the last octet of each frame's body. A lost connection may cost no more than its LF: then a
   * popped element that the client has seen returns to its queue, as one does of which any other part is missing.
   */
  readonly #frameEnd: string;

  /** @param trailingNewline one LF follows each frame: PHP's extension reads it, and loses a frame without it */
  constructor(socket: Socket, options: WayOutOptions, trailingNewline: boolean) {
    super(socket, options);
    this.#frameEnd = trailingNewline ? '\0\n' : '\0';
  }

  /** Adds a frame up to its NUL, as bytes with one character for each. */
  add(frame: string): void {
    this.#add(frame + this.#frameEnd);
  }

  /** Adds a frame with a body. */
  addMessage(head: string, body: Uint8Array, cargo: Cargo): void {
    if (this.isOver) {
      cargo.lost();
      return;
    }
    const piece = this.#open;
    this.grow(piece, head.length + body.length + this.#frameEnd.length);
    piece.cargo.push(cargo);
    piece.endsInCargo = true;
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length < JOINED_BYTES) {
      this.#text += `${head}${bytes.toString('latin1')}${this.#frameEnd}`;
    } else {
      piece.parts.push(this.#text + head, bytes);
      this.#text = this.#frameEnd;
    }
    this.#seal(PIECE_BYTES);
  }

  /** Sends a line end if nothing else is on its way, which would say as well that this side is alive. */
  beat(): void {
    if (this.bytes === 0) this.#add('\n');
  }

  protected override nextPiece(): Piece<string | Buffer> | undefined {
    if (this.pieces.length === 1) this.#seal(1);
    const [piece] = this.pieces;
    return piece === undefined || piece.bytes === 0 ? undefined : this.pieces.shift();
  }

  #add(text: string): void {
    if (this.isOver) return;
    const piece = this.#open;
    this.grow(piece, text.length);
    piece.endsInCargo = false;
    this.#text += text;
    this.#seal(PIECE_BYTES);
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
