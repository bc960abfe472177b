import { write } from 'node:fs';
import { promisify } from 'node:util';
import { MessageChannel } from 'node:worker_threads';
import type { Clock } from '../util/clock.ts';

/** What is buffered for a reader that is slow, or a disk that is full, in characters; further lines are dropped. */
const MAX_BUFFERED = 4 * 1024 * 1024;
const MAX_CHUNK = 64 * 1024;
/** After a pipe was full. */
const RETRY_MS = 100;

const writeTo = promisify(write);

/**
 * Writes lines to a file descriptor. Nothing here ever blocks: if the reader does not take them, lines are buffered up
 * to a bound, and then dropped and counted. What a failed write left is tried again with the next line.
 */
export class LogSink {
  readonly #fd: number;
  readonly #clock: Clock;
  readonly #onDropped: (lines: number) => void;
  #lines: string[] = [];
  #buffered = 0;
  #dropped = 0;
  /** Of a chunk that was written in part, or not at all. */
  #rest: Buffer = Buffer.alloc(0);
  #writing: Promise<void> | null = null;

  /** @param onDropped called with the number of lines that are missing, once lines are written again */
  constructor(fd: number, clock: Clock, onDropped: (lines: number) => void) {
    this.#fd = fd;
    this.#clock = clock;
    this.#onDropped = onDropped;
  }

  write(line: string): void {
    if (this.#buffered + line.length > MAX_BUFFERED) {
      this.#dropped += 1;
      return;
    }
    this.#buffered += line.length;
    this.#lines.push(line);
    this.#startWriting();
  }

  /** Resolves when all lines are written, when the file takes none, or after `ms`. Never rejects. */
  async flush(ms: number): Promise<void> {
    this.#startWriting();
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const cancel = this.#clock.after(ms, resolve);
    // Timers do not keep the process alive, and while a pipe is full there may be nothing else that does.
    const { port1: alive } = new MessageChannel();
    alive.on('message', () => {});
    await Promise.race([this.#writing, late]);
    alive.close();
    cancel();
  }

  #startWriting(): void {
    if (this.#lines.length === 0 && this.#rest.length === 0) return;
    this.#writing ??= this.#writeAll();
  }

  async #writeAll(): Promise<void> {
    for (;;) {
      if (this.#rest.length === 0) {
        if (this.#lines.length === 0) {
          // Here and not in a `finally` behind this function: a line that came between the two would wait for the next one.
          this.#writing = null;
          return;
        }
        this.#rest = Buffer.from(this.#nextChunk());
      }
      try {
        const { bytesWritten } = await writeTo(this.#fd, this.#rest);
        this.#rest = this.#rest.subarray(bytesWritten);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') {
          this.#writing = null;
          return;
        }
        await new Promise<void>((resolve) => this.#clock.after(RETRY_MS, resolve));
      }
    }
  }

  #nextChunk(): string {
    let length = 0;
    const count = this.#lines.findIndex((line) => {
      length += line.length;
      return length > MAX_CHUNK;
    });
    const chunk = this.#lines.splice(0, count === -1 ? this.#lines.length : Math.max(1, count)).join('');
    this.#buffered -= chunk.length;
    const dropped = this.#dropped;
    this.#dropped = 0;
    if (dropped > 0) this.#onDropped(dropped);
    return chunk;
  }
}
