import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { get } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { spawnOwned } from './owned-process.ts';
import { SERVER_ARGS, SERVER_CACHE } from './server-command.ts';

export interface ServerOptions {
  /** The content of the configuration file; default: {@link trialConfig}. `dataDir` and the port are set here. */
  readonly config?: Readonly<Record<string, unknown>>;
  /** Flags for Node itself, such as `--cpu-prof`. */
  readonly nodeArgs?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

/** How a server process ended: one of the two is null. */
export interface Exit {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
}

const READY_TIMEOUT_MS = 60_000;
const STOP_TIMEOUT_MS = 60_000;
/** Maximum length of the stored output: enough to explain a failure, without filling the memory in a long run. */
const OUTPUT_LIMIT = 200_000;

/** One user `test1` with password `test1`, a plain and a stream namespace, each with its own database file. */
export function trialConfig(): Record<string, unknown> {
  return {
    http: { host: '127.0.0.1', users: { test1: 'test1' } },
    namespaces: {
      N: { url: 'sqlite:N.db' },
      events: { url: 'sqlite:events.db', variant: 'stream', groups: ['default'] },
    },
  };
}

/**
 * Runs the real server as a child process on a free port, with its own temporary folder. It can be started again on the
 * same data after any kind of end. The caller calls {@link dispose}, also after a failure.
 *
 * States: down -> `start` -> up -> `stop`, `kill` -> down. The process may also end by itself.
 */
export class ServerProcess {
  readonly folder: string;
  readonly dataDir: string;
  readonly #options: ServerOptions;
  #child: ChildProcess | null = null;
  #exit: Promise<Exit> | null = null;
  #output = '';
  #port: number | null = null;
  #onListening: (() => void) | null = null;

  private constructor(folder: string, options: ServerOptions) {
    this.folder = folder;
    this.dataDir = path.join(folder, 'data');
    this.#options = options;
  }

  /** Creates the folder and the configuration file, and starts nothing. */
  static async create(options: ServerOptions = {}): Promise<ServerProcess> {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-'));
    const server = new ServerProcess(folder, options);
    const config = options.config ?? trialConfig();
    const http = { host: '127.0.0.1', port: 0, ...(config.http as object | undefined) };
    await writeFile(server.configFile, JSON.stringify({ ...config, http, dataDir: server.dataDir }, null, 2));
    return server;
  }

  /** `create` and `start`; cleans up if the start fails. */
  static async start(options: ServerOptions = {}): Promise<ServerProcess> {
    const server = await ServerProcess.create(options);
    try {
      await server.start();
    } catch (error) {
      await server.dispose();
      throw error;
    }
    return server;
  }

  get configFile(): string {
    return path.join(this.folder, 'config.json');
  }

  /** Id of the running process. @throws Error if none runs */
  get pid(): number {
    const pid = this.#child?.pid;
    if (pid === undefined) throw new Error('The server is not running.');
    return pid;
  }

  /** URL of the process that listens, or of the last one that did. @throws Error before the first start */
  get url(): string {
    if (this.#port === null) throw new Error(`The server does not listen yet.\n${this.#output}`);
    return `http://127.0.0.1:${this.#port}`;
  }

  /** The newest part of the output of all processes, stdout and stderr. */
  get output(): string {
    return this.#output;
  }

  get running(): boolean {
    return this.#child !== null;
  }

  /** Starts the process, and resolves when it is ready. */
  async start(): Promise<void> {
    this.launch();
    await this.ready();
  }

  /** Starts the process and returns immediately, so that a test can disturb the start. */
  launch(): void {
    if (this.#child !== null) throw new Error('The server is already running.');
    this.#port = null;
    const args = [...(this.#options.nodeArgs ?? []), ...SERVER_ARGS, '--config', this.configFile];
    const child = spawnOwned(process.execPath, args, {
      cwd: this.folder,
      env: { ...process.env, NODE_COMPILE_CACHE: SERVER_CACHE, ...this.#options.env },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    this.#exit = once(child, 'exit').then(([code, signal]) => {
      this.#child = null;
      return { code, signal };
    });
    child.stdout?.setEncoding('utf8').on('data', (text: string) => this.#collect(text));
    child.stderr?.setEncoding('utf8').on('data', (text: string) => this.#collect(text));
  }

  /** Resolves when `/readyz` returns 200. @throws Error with the output if the process ends before */
  async ready(): Promise<void> {
    const exited = this.exited().then(({ code, signal }) => {
      throw new Error(
        `The server ended (code ${code}, signal ${signal}) before it was ready.\n${this.#output}`,
      );
    });
    const deadline = AbortSignal.timeout(READY_TIMEOUT_MS);
    const ready = this.#listening().then(() => this.#pollReady(deadline));
    const late = once(deadline, 'abort').then(() => {
      throw new Error(`The server was not ready within ${READY_TIMEOUT_MS} ms.\n${this.#output}`);
    });
    late.catch(() => {});
    await Promise.race([ready, exited, late]);
  }

  /** Resolves when the process is gone. */
  exited(): Promise<Exit> {
    return this.#exit ?? Promise.reject(new Error('The server was never started.'));
  }

  /** `kill -9`; resolves when the process is gone. Does nothing if none runs. */
  async kill(): Promise<void> {
    this.#child?.kill('SIGKILL');
    await this.#exit;
  }

  /** SIGTERM; resolves with how the process ended. @throws Error if it has to be killed */
  async stop(): Promise<Exit> {
    this.#child?.kill('SIGTERM');
    const timeout = new AbortController();
    const late = delay(STOP_TIMEOUT_MS, 'late' as const, { signal: timeout.signal });
    late.catch(() => {});
    const ended = await Promise.race([this.exited(), late]);
    timeout.abort();
    if (ended !== 'late') return ended;
    await this.kill();
    throw new Error(`The server did not stop within ${STOP_TIMEOUT_MS} ms of SIGTERM.\n${this.#output}`);
  }

  /** Kills the process if it runs, checks that it is gone, and removes the folder. May be called repeatedly. */
  async dispose(): Promise<void> {
    const pid = this.#child?.pid;
    await this.kill();
    await rm(this.folder, { recursive: true, force: true });
    if (pid !== undefined && isAlive(pid)) throw new Error(`The server process ${pid} is still there.`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.dispose();
  }

  #collect(text: string): void {
    this.#output = (this.#output + text).slice(-OUTPUT_LIMIT);
    if (this.#port !== null) return;
    const found = /http:\/\/127\.0\.0\.1:(\d+)/.exec(text);
    if (found === null) return;
    this.#port = Number(found[1]);
    this.#onListening?.();
  }

  #listening(): Promise<void> {
    if (this.#port !== null) return Promise.resolve();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#onListening = resolve;
    return promise;
  }

  async #pollReady(deadline: AbortSignal): Promise<void> {
    while (this.running && !deadline.aborted) {
      if ((await statusOf(`${this.url}/readyz`)) === 200) return;
      await delay(10);
    }
  }
}

/** Returns the status of a GET; 0 if there was no response. */
function statusOf(url: string): Promise<number> {
  const { promise, resolve } = Promise.withResolvers<number>();
  const request = get(url, { agent: false }, (answer) => {
    answer.resume();
    resolve(answer.statusCode ?? 0);
  });
  request.on('error', () => resolve(0));
  return promise;
}

/** Whether a process of that id exists. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
