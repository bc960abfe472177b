import type { WriteObserver } from '../session/socket-writer.ts';
import { CHUNK_BYTES, type Chunk, JOINED_BYTES, newChunk, SocketWriter } from '../session/socket-writer.ts';

/** Writes the frames of one AMQP connection. */
export class AmqpWriter extends SocketWriter<Buffer> {
  /** @param observer of the message that ends with this frame */
  add(frame: Buffer, observer: WriteObserver | null): void {
    if (this.isClosed) {
      observer?.lost();
      return;
    }
    const chunk = this.#open();
    chunk.parts.push(frame);
    chunk.endsObserved = observer !== null;
    if (observer !== null) chunk.observers.push(observer);
    this.grow(chunk, frame.length);
  }

  protected override nextChunk(): Chunk<Buffer> | undefined {
    const chunk = this.chunks.shift();
    if (chunk !== undefined && chunk.parts.length > 1) chunk.parts = joined(chunk.parts);
    return chunk;
  }

  #open(): Chunk<Buffer> {
    const last = this.chunks.at(-1);
    if (last !== undefined && last.bytes < CHUNK_BYTES) return last;
    const chunk = newChunk<Buffer>();
    this.chunks.push(chunk);
    return chunk;
  }
}

/** Small frames that follow each other become one buffer; large ones are written from where they are. */
function joined(frames: readonly Buffer[]): Buffer[] {
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
