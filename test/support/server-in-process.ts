import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { makeLogger } from '../../src/app/log.ts';
import { Server } from '../../src/app/server.ts';
import { loadConfig } from '../../src/config/load.ts';
import type { ServerOptions } from './server-process.ts';

/**
 * Runs the server of a configuration in this process: like a `ServerProcess`, for a quarter of the processor time of
 * its start. For tests that send no signals and kill nothing. The caller calls {@link dispose}.
 */
export class ServerInProcess {
  readonly #folder: string;
  readonly #server: Server;
  readonly #lines: readonly string[];

  private constructor(folder: string, server: Server, lines: readonly string[]) {
    this.#folder = folder;
    this.#server = server;
    this.#lines = lines;
  }

  /** Resolves when it is ready; cleans up if the start fails. */
  static async start({ config }: Required<Pick<ServerOptions, 'config'>>): Promise<ServerInProcess> {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-'));
    const file = path.join(folder, 'config.json');
    const http = { host: '127.0.0.1', port: 0, ...(config.http as object | undefined) };
    await writeFile(file, JSON.stringify({ ...config, http, dataDir: path.join(folder, 'data') }));
    const loaded = await loadConfig({ file, env: {}, cwd: folder });
    const lines: string[] = [];
    const log = makeLogger('info', { write: (line: string) => lines.push(line) });
    for (const warning of loaded.warnings) log.warn({}, warning);
    const server = new Server(loaded.config, { log, version: 'test', errorAt: loaded.errorAt });
    const started = new ServerInProcess(folder, server, lines);
    try {
      await server.start();
    } catch (error) {
      await started.dispose();
      throw error;
    }
    return started;
  }

  get url(): string {
    return this.#server.url;
  }

  /** Addresses of its other front ends, by name. */
  get otherUrls(): Readonly<Record<string, string>> {
    return this.#server.otherUrls;
  }

  /** The lines of its log. */
  get output(): string {
    return this.#lines.join('');
  }

  /** Stops it and removes its folder. May be called repeatedly. */
  async dispose(): Promise<void> {
    await this.#server.stop();
    await rm(this.#folder, { recursive: true, force: true });
  }
}
