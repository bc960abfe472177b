import { readFile } from 'node:fs/promises';
import type { CancelTimer, Clock } from '../util/clock.ts';
import { replaceFile } from '../util/files.ts';
import type { FrontEndLog } from '../util/log.ts';
import { putLast } from '../util/put-last.ts';
import type { Service } from '../util/service.ts';

/** How long a pair counts as known after its last successful login. */
const KNOWN_MS = 30 * 24 * 3_600_000;
/** Minimum age before a pair's timestamp is updated, so that frequent logins do not rewrite the file each time. */
const UPDATE_INTERVAL_MS = 24 * 3_600_000;
/** Beyond this, the pairs with the oldest timestamps are evicted. */
const MAX_PAIRS = 10_000;
/** Delay before the file is written, so that many changes share one write. */
const WRITE_DELAY_MS = 10_000;

/**
 * Pairs of user name and network with a login in the last 30 days, which failed logins of others cannot lock out.
 * Stored in a file because all clients log in again after a restart. It contains nothing that helps to log in.
 */
export class KnownLogins implements Service {
  readonly #path: string;
  readonly #clock: Clock;
  readonly #log: Pick<FrontEndLog, 'warn'>;
  /** Last successful login of each pair, ms since 1970; oldest first. */
  readonly #pairs = new Map<string, number>();
  #cancelWrite: CancelTimer | null = null;
  #writing: Promise<void> = Promise.resolve();

  constructor(path: string, clock: Clock, log: Pick<FrontEndLog, 'warn'>) {
    this.#path = path;
    this.#clock = clock;
    this.#log = log;
  }

  /** Reads the file. If it is unreadable, logs a warning; later logins rebuild it. */
  async start(): Promise<void> {
    try {
      const pairs = readPairs(JSON.parse(await readFile(this.#path, 'utf8')));
      for (const [pair, at] of pairs.sort(([, a], [, b]) => a - b)) this.#pairs.set(pair, at);
    } catch (err) {
      if ((err as NodeJS.ErrnoException).code === 'ENOENT') return;
      this.#log.warn({ err }, `${this.#path} cannot be read: recent logins are not exempt from limits`);
    }
  }

  async stop(): Promise<void> {
    if (this.#cancelWrite !== null) {
      this.#cancelWrite();
      this.#startWrite();
    }
    await this.#writing;
  }

  has(name: string, network: string): boolean {
    const at = this.#pairs.get(keyOf(name, network));
    return at !== undefined && this.#clock.now() - at < KNOWN_MS;
  }

  /** Records a successful login of the name from the network. */
  add(name: string, network: string): void {
    const key = keyOf(name, network);
    const now = this.#clock.now();
    const at = this.#pairs.get(key);
    if (at !== undefined && Math.abs(now - at) < UPDATE_INTERVAL_MS) return;
    putLast(this.#pairs, key, now, MAX_PAIRS);
    this.#cancelWrite ??= this.#clock.after(WRITE_DELAY_MS, () => this.#startWrite());
  }

  #startWrite(): void {
    this.#cancelWrite = null;
    this.#writing = this.#writing.then(() => this.#write());
  }

  /** Never rejects. */
  async #write(): Promise<void> {
    const now = this.#clock.now();
    const logins = [...this.#pairs]
      .filter(([, at]) => now - at < KNOWN_MS)
      .map(([key, at]) => [...JSON.parse(key), new Date(at).toISOString()]);
    try {
      await replaceFile(this.#path, `${JSON.stringify({ logins }, null, 1)}\n`);
    } catch (err) {
      this.#log.warn({ err }, `${this.#path} cannot be written: a restart forgets recent logins`);
    }
  }
}

function keyOf(name: string, network: string): string {
  return JSON.stringify([name, network]);
}

/** @throws Error for content that this class does not write */
function readPairs(content: unknown): [pair: string, at: number][] {
  const logins = (content as { logins?: unknown } | null)?.logins;
  if (!Array.isArray(logins)) throw new Error('it has no list of logins');
  return logins.slice(0, MAX_PAIRS).map((login: unknown) => {
    const [name, network, at] = Array.isArray(login) ? login : [];
    const time = Date.parse(at);
    if (typeof name !== 'string' || typeof network !== 'string' || Number.isNaN(time)) {
      throw new Error('it has a login without name, network or time');
    }
    return [keyOf(name, network), time];
  });
}
