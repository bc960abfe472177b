import type { WriteObserver } from '../session/socket-writer.ts';
import {
  CHUNK_BYTES,
  type Chunk,
  type ClientSocket,
  JOINED_BYTES,
  newChunk,
  SocketWriter,
  type WriterOptions,
} from '../session/socket-writer.ts';

/**
 * Writes the frames of one STOMP connection. They gather as one string, which is added to its chunk once that is
 * large enough, or nothing else waits to be written.
 */
export class StompWriter extends SocketWriter {
  /** The end of the last chunk, which is still open. */
  #text = '';
  /**
   * What follows the last octet of each frame's body. A lost connection may cost no more than its LF: then a popped
   * element that the client has seen returns to its queue, as one does of which any other part is missing.
   */
  readonly #frameEnd: string;

  /** @param trailingNewline one LF follows each frame: PHP's extension reads it, and loses a frame without it */
  constructor(socket: ClientSocket, options: WriterOptions, trailingNewline: boolean) {
    super(socket, options);
    this.#frameEnd = trailingNewline ? '\0\n' : '\0';
  }

  /** Adds a frame up to its NUL, as bytes with one character for each. */
  add(frame: string): void {
    this.#add(frame + this.#frameEnd);
  }

  /** Adds a frame with a body. */
  addMessage(head: string, body: Uint8Array, observer: WriteObserver): void {
    if (this.isClosed) {
      observer.lost();
      return;
    }
    const chunk = this.#open;
    this.grow(chunk, head.length + body.length + this.#frameEnd.length);
    chunk.observers.push(observer);
    chunk.endsObserved = true;
    const bytes = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
    if (bytes.length < JOINED_BYTES) {
      this.#text += `${head}${bytes.toString('latin1')}${this.#frameEnd}`;
    } else {
      chunk.parts.push(this.#text + head, bytes);
      this.#text = this.#frameEnd;
    }
    this.#seal(CHUNK_BYTES);
  }

  /** Sends a line end unless other bytes wait to be written, which show as well that this side is alive. */
  beat(): void {
    if (this.bytes === 0) this.#add('\n');
  }

  protected override nextChunk(): Chunk<string | Buffer> | undefined {
    if (this.chunks.length === 1) this.#seal(1);
    const [chunk] = this.chunks;
    return chunk === undefined || chunk.bytes === 0 ? undefined : this.chunks.shift();
  }

  #add(text: string): void {
    if (this.isClosed) return;
    const chunk = this.#open;
    this.grow(chunk, text.length);
    chunk.endsObserved = false;
    this.#text += text;
    this.#seal(CHUNK_BYTES);
  }

  get #open(): Chunk<string | Buffer> {
    let chunk = this.chunks.at(-1);
    if (chunk === undefined) {
      chunk = newChunk<string | Buffer>();
      this.chunks.push(chunk);
    }
    return chunk;
  }

  /** Ends the open chunk if it has reached that size. */
  #seal(bytes: number): void {
    const chunk = this.#open;
    if (chunk.bytes < bytes) return;
    if (this.#text !== '') chunk.parts.push(this.#text);
    this.#text = '';
    this.chunks.push(newChunk());
  }
}
