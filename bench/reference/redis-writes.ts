import { execFile, execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';

const LIBRARY = new URL('./redis-writes.lua', import.meta.url);

/** `redis-benchmark` calling functions that make only the engine's writes (`redis-writes.lua`). */
export class RedisWrites {
  readonly #port: string;
  readonly #keys = ['reference:{q}:h', 'reference:{q}:z'];

  constructor(port: number) {
    this.#port = String(port);
    const source = readFileSync(LIBRARY, 'utf8');
    execFileSync('redis-cli', ['-p', this.#port, 'FUNCTION', 'LOAD', 'REPLACE', source], { stdio: 'ignore' });
  }

  /** Inserts a batch of this value `batches` times. Returns batches per second. */
  insert(batches: number, window: number, batch: number, value: string): Promise<number> {
    return this.#run(
      batches,
      window,
      'reference_insert',
      Array.from({ length: batch }, () => value),
    );
  }

  /** Takes this many batches. Returns batches per second. */
  take(batches: number, window: number, batch: number): Promise<number> {
    return this.#run(batches, window, 'reference_take', [String(batch)]);
  }

  /** @param window concurrent calls over one connection */
  async #run(batches: number, window: number, name: string, args: readonly string[]): Promise<number> {
    const { stdout } = await promisify(execFile)('redis-benchmark', [
      ...['-p', this.#port, '-c', '1', '-P', String(window), '-n', String(batches), '--csv'],
      ...['FCALL', name, '2', ...this.#keys, ...args],
    ]);
    const rate = Number(/^"FCALL[^\n]*?","([\d.]+)"/m.exec(stdout)?.[1]);
    if (!(rate > 0)) throw new Error(`redis-benchmark said: ${stdout.slice(-300)}`);
    return rate;
  }
}
