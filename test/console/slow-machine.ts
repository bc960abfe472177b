import { readdirSync, readFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import { setTimeout as delay } from 'node:timers/promises';
import type { Page } from 'playwright-core';
import { type Random, seededRandom } from '../support/random.ts';

/** The maximum delay of a chunk of a request or response. */
const MAX_LATE_MS = 400;
/** How long the browser, or this process with the server in it, is stopped, and the time between two stops. */
const STOP_MS = [100, 500] as const;
const BETWEEN_STOPS_MS = [500, 3_000] as const;
/**
 * The factor by which the browser slows down a page. It does so by busy waiting, so that a larger factor slows down
 * everything else as well.
 */
const SLOWER = [1, 4] as const;

/**
 * Simulates a busy machine and a slow network: responses are late, and the browser and the server stop at any moment.
 * The tests of the console must pass in every order of events that this causes.
 */
export class SlowMachine {
  readonly #random: Random;
  readonly #proxy: Server;
  readonly #sockets = new Set<Socket>();
  #timer: NodeJS.Timeout | undefined;

  private constructor(seed: number, server: URL) {
    this.#random = seededRandom(seed);
    this.#proxy = createServer((client) => {
      const upstream = connect(Number(server.port), server.hostname);
      this.#passLate(client, upstream);
      this.#passLate(upstream, client);
    });
  }

  /** @param url of the server, which is in this process */
  static async start(seed: number, url: string): Promise<SlowMachine> {
    const machine = new SlowMachine(seed, new URL(url));
    await new Promise<void>((resolve) => machine.#proxy.listen(0, '127.0.0.1', resolve));
    machine.#stopLater();
    return machine;
  }

  /** The URL of the server for pages that are to be slow. */
  get url(): string {
    return `http://127.0.0.1:${(this.#proxy.address() as AddressInfo).port}`;
  }

  async slowDown(page: Page): Promise<void> {
    const devtools = await page.context().newCDPSession(page);
    await devtools.send('Emulation.setCPUThrottlingRate', { rate: this.#random.between(...SLOWER) });
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#proxy.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Forwards each chunk with a delay, in order. */
  #passLate(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    from.setNoDelay(true);
    let last: Promise<unknown> = Promise.resolve();
    const later = (pass: () => void): void => {
      last = Promise.all([last, delay(this.#random.between(0, MAX_LATE_MS))]).then(pass);
    };
    from.on('data', (data) => later(() => to.writable && to.write(data)));
    from.on('end', () => later(() => to.end()));
    from.on('error', () => {});
    from.on('close', () => {
      this.#sockets.delete(from);
      later(() => to.destroy());
    });
  }

  #stopLater(): void {
    this.#timer = setTimeout(
      () => {
        const ms = this.#random.between(...STOP_MS);
        if (this.#random.chance(0.5)) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
        else this.#stopBrowser(ms);
        this.#stopLater();
      },
      this.#random.between(...BETWEEN_STOPS_MS),
    );
  }

  /** Stops all processes of the browser or some, such as that of a page or of the network. */
  #stopBrowser(ms: number): void {
    const all = browserProcesses();
    const stopped = this.#random.chance(0.5) ? all : all.filter(() => this.#random.chance(0.3));
    for (const pid of stopped) signalTo(pid, 'SIGSTOP');
    setTimeout(() => {
      for (const pid of stopped) signalTo(pid, 'SIGCONT');
    }, ms);
  }
}

/** Ignores a process that has ended, such as that of a closed page. */
function signalTo(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {}
}

/** The process ids of the browser that this process has started. */
function browserProcesses(): readonly number[] {
  const parents = new Map<number, number>();
  const names = new Map<number, string>();
  for (const pid of readdirSync('/proc').map(Number).filter(Boolean)) {
    try {
      const [, name = '', parent] =
        /\((.*)\) \S (\d+)/s.exec(readFileSync(`/proc/${pid}/stat`, 'utf8')) ?? [];
      names.set(pid, name);
      parents.set(pid, Number(parent));
    } catch {}
  }
  const isOurs = (pid: number | undefined): boolean =>
    pid !== undefined && (pid === process.pid || isOurs(parents.get(pid)));
  return [...names].filter(([pid, name]) => name.startsWith('chrom') && isOurs(pid)).map(([pid]) => pid);
}
