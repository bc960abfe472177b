import { write } from 'node:fs';
import { promisify } from 'node:util';
import { MessageChannel } from 'node:worker_threads';
import type { Clock } from '../util/clock.ts';

/** What is kept for a reader that is slow, or a disk that is full, in characters; further lines are left out. */
const KEPT_MOST = 4 * 1024 * 1024;
const PIECE_MOST = 64 * 1024;
/** After a pipe was full. */
const AGAIN_MS = 100;

const writeTo = promisify(write);

/**
 * Lines on their way to a file descriptor. Nothing here ever blocks: where nobody takes the lines they are kept up
 * to a bound, and then left out and counted. What a failed write left is tried again with the next line.
 */
export class LogSink {
  readonly #fd: number;
  readonly #clock: Clock;
  readonly #leftOut: (lines: number) => void;
  #lines: string[] = [];
  #kept = 0;
  #lost = 0;
  /** Of a piece that was written in part, or not at all. */
  #rest: Buffer = Buffer.alloc(0);
  #working: Promise<void> | null = null;

  /** @param leftOut called with the number of lines that are missing, once there is room again */
  constructor(fd: number, clock: Clock, leftOut: (lines: number) => void) {
    this.#fd = fd;
    this.#clock = clock;
    this.#leftOut = leftOut;
  }

  write(line: string): void {
    if (this.#kept + line.length > KEPT_MOST) {
      this.#lost += 1;
      return;
    }
    this.#kept += line.length;
    this.#lines.push(line);
    this.#work();
  }

  /** Resolves when all lines are written, when the file takes none, or after `ms`. Never rejects. */
  async flush(ms: number): Promise<void> {
    this.#work();
    const { promise: late, resolve } = Promise.withResolvers<void>();
    const cancel = this.#clock.after(ms, resolve);
    // Timers do not keep the process alive, and while a pipe is full there may be nothing else that does.
    const { port1: alive } = new MessageChannel();
    alive.on('message', () => {});
    await Promise.race([this.#working, late]);
    alive.close();
    cancel();
  }

  #work(): void {
    this.#working ??= this.#writeAll().finally(() => {
      this.#working = null;
    });
  }

  async #writeAll(): Promise<void> {
    for (;;) {
      if (this.#rest.length === 0) {
        if (this.#lines.length === 0) return;
        this.#rest = Buffer.from(this.#nextPiece());
      }
      try {
        const { bytesWritten } = await writeTo(this.#fd, this.#rest);
        this.#rest = this.#rest.subarray(bytesWritten);
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code !== 'EAGAIN') return;
        await new Promise<void>((resolve) => this.#clock.after(AGAIN_MS, resolve));
      }
    }
  }

  #nextPiece(): string {
    let length = 0;
    const count = this.#lines.findIndex((line) => {
      length += line.length;
      return length > PIECE_MOST;
    });
    const piece = this.#lines.splice(0, count === -1 ? this.#lines.length : Math.max(1, count)).join('');
    this.#kept -= piece.length;
    const lost = this.#lost;
    this.#lost = 0;
    if (lost > 0) this.#leftOut(lost);
    return piece;
  }
}
