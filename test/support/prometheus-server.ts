import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { freePort } from './free-port.ts';
import { spawnOwned } from './owned-process.ts';

/** One series in the result of a query. */
export interface QueryResult {
  readonly metric: Readonly<Record<string, string>>;
  readonly value: readonly [at: number, value: string];
}

/** Debian's Prometheus, which scrapes one Quayside server every second. */
export class PrometheusServer {
  readonly #folder: string;
  readonly #process: ChildProcess;
  readonly #url: string;

  private constructor(folder: string, process: ChildProcess, url: string) {
    this.#folder = folder;
    this.#process = process;
    this.#url = url;
  }

  /** Resolves when it is ready. @param target the address of the server, as `http://127.0.0.1:3444` */
  static async start(target: string, credentials: string): Promise<PrometheusServer> {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-scrape-'));
    const port = await freePort();
    const [username, password] = credentials.split(':');
    const file = path.join(folder, 'prometheus.yml');
    const job = {
      job_name: 'quayside',
      scrape_interval: '1s',
      basic_auth: { username, password },
      static_configs: [{ targets: [new URL(target).host] }],
    };
    await writeFile(file, JSON.stringify({ scrape_configs: [job] }));
    const args = [
      `--config.file=${file}`,
      `--storage.tsdb.path=${path.join(folder, 'data')}`,
      `--web.listen-address=127.0.0.1:${port}`,
    ];
    const child = spawnOwned('prometheus', args, { stdio: ['ignore', 'ignore', 'pipe'] });
    const server = new PrometheusServer(folder, child, `http://127.0.0.1:${port}`);
    let log = '';
    for await (const line of createInterface({ input: child.stderr })) {
      log += `${line}\n`;
      if (!line.includes('ready to receive web requests')) continue;
      // Discard further output, so that a full pipe does not block it.
      child.stderr.resume();
      return server;
    }
    await server.stop();
    throw new Error(`Prometheus ended:\n${log}`);
  }

  /** Evaluates an expression now, and returns its series. @throws Error if it cannot be evaluated */
  async query(expression: string): Promise<readonly QueryResult[]> {
    const response = await fetch(`${this.#url}/api/v1/query?query=${encodeURIComponent(expression)}`);
    const { status, error, data } = (await response.json()) as {
      readonly status: string;
      readonly error?: string;
      readonly data?: { readonly result: readonly QueryResult[] };
    };
    if (status !== 'success') throw new Error(`${expression}: ${error}`);
    return data?.result ?? [];
  }

  async stop(): Promise<void> {
    if (this.#process.exitCode === null && this.#process.signalCode === null) {
      const ended = once(this.#process, 'exit');
      this.#process.kill();
      await ended;
    }
    await rm(this.#folder, { recursive: true, force: true });
  }
}
