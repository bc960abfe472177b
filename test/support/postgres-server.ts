import { type ChildProcess, execFile, execFileSync, spawnSync } from 'node:child_process';
import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chownSync, existsSync, mkdtempSync, readdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { needDebian } from './debian.ts';
import { freePort } from './free-port.ts';
import { MEMORY_DISK } from './memory-disk.ts';
import { spawnOwned } from './owned-process.ts';

const DEBIAN_FOLDER = '/usr/lib/postgresql';
/** PostgreSQL refuses to run as root; Debian's package creates this user. */
const SERVICE_USER = 'postgres';
const PASSWORD = 'for tests only: /?#@:%';
const READY_TIMEOUT_MS = 60_000;
const MAX_TRIES = 5;
/** A server has a thousand files, and a schema another hundred. */
const PARENT_FOLDER = MEMORY_DISK ?? tmpdir();
/** A standby accepts read-only connections. */
const READY_LINE = /database system is ready to accept (?:read.only )?connections/;

/** Environment variable with a folder from `makeTemplate`, which is copied for each server. */
export const POSTGRES_TEMPLATE = 'TEST_RUN_POSTGRES_TEMPLATE';

export interface PostgresOptions {
  /** Settings of `postgresql.conf`. */
  readonly settings?: Readonly<Record<string, string>>;
  /** Files that the server must own, such as its key. */
  readonly own?: readonly string[];
}

const run = promisify(execFile);

/** Servers whose folders exist. */
const undisposed = new Set<PostgresServer>();
process.on('exit', () => {
  for (const server of undisposed) server.dispose();
});

/** How a server is stopped: `fast` closes connections and writes a checkpoint, `immediate` is a crash. */
export type StopMode = 'fast' | 'immediate';

/**
 * Starts a PostgreSQL server from Debian's binaries, which it installs if they are missing, in a temporary folder, on a
 * free port. It stops the processes that it started, and no others, at the latest when this process ends.
 */
export class PostgresServer {
  readonly folder: string;
  readonly port: number;
  readonly #bin: string;
  readonly #user: { uid: number; gid: number } | null;
  readonly #settings: Readonly<Record<string, string>>;
  #process: ChildProcess | null = null;
  #output = '';

  static async start({ settings = {}, own = [] }: PostgresOptions = {}): Promise<PostgresServer> {
    const bin = findBinaries();
    for (let tries = 1; ; tries++) {
      const server = new PostgresServer(bin, await freePort(), settings);
      for (const file of own) server.#own(file);
      undisposed.add(server);
      try {
        await server.#initialize();
        await server.start();
        return server;
      } catch (error) {
        server.dispose();
        // Another process may take the port before the server uses it: then another port is tried.
        if (tries === MAX_TRIES || !String(error).includes('Address already in use')) throw error;
      }
    }
  }

  /**
   * Creates an initialized data folder for all servers of a run: copying it costs a tenth of `initdb`. It is not started.
   * The caller disposes of it; at the latest, it is removed when this process ends.
   */
  static async makeTemplate(): Promise<PostgresServer> {
    const server = new PostgresServer(findBinaries(), 0, {});
    undisposed.add(server);
    await server.#initialize();
    return server;
  }

  private constructor(bin: string, port: number, settings: Readonly<Record<string, string>>) {
    this.#bin = bin;
    this.port = port;
    this.#settings = settings;
    this.#user = process.getuid?.() === 0 ? { uid: idOf('-u'), gid: idOf('-g') } : null;
    this.folder = mkdtempSync(path.join(PARENT_FOLDER, 'quayside-postgres-'));
    this.#own(this.folder);
  }

  get data(): string {
    return path.join(this.folder, 'data');
  }

  /** Returns a URL with user and password. @param port of a proxy in front of the server */
  url({ port = this.port, parameters = '' }: { port?: number; parameters?: string } = {}): string {
    return `postgres://${SERVICE_USER}:${encodeURIComponent(PASSWORD)}@127.0.0.1:${port}/postgres${parameters}`;
  }

  /** Process id of the server's main process. @throws Error while it does not run */
  get pid(): number {
    const pid = this.#process?.pid;
    if (pid === undefined) throw new Error('PostgreSQL does not run.');
    return pid;
  }

  get password(): string {
    return PASSWORD;
  }

  /** Starts the server on its data, however it ended before. Resolves when it accepts connections. */
  async start(): Promise<void> {
    const settings = {
      listen_addresses: '127.0.0.1',
      unix_socket_directories: this.folder,
      // In the data folder: a killed server would leave its segments in /dev/shm.
      dynamic_shared_memory_type: 'mmap',
      // The engine switches it off for its own connections. For the statements of tests, LLVM was loaded and compiled.
      jit: 'off',
      ...this.#settings,
    };
    const flags = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
    const child = spawnOwned(
      path.join(this.#bin, 'postgres'),
      ['-D', this.data, '-p', String(this.port), ...flags],
      {
        ...this.#user,
        cwd: this.folder,
        stdio: ['ignore', 'ignore', 'pipe'],
      },
    );
    this.#process = child;
    this.#output = '';
    const { promise: ready, resolve, reject } = Promise.withResolvers<void>();
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      this.#output += text;
      if (READY_LINE.test(this.#output)) resolve();
    });
    // Not at `exit`: its last output may not have been read yet.
    child.once('close', () => reject(new Error(`PostgreSQL did not start:\n${this.#output}`)));
    const timer = setTimeout(
      () => reject(new Error(`PostgreSQL is not ready:\n${this.#output}`)),
      READY_TIMEOUT_MS,
    );
    try {
      await ready;
    } finally {
      clearTimeout(timer);
    }
    // This process must be able to end while the server runs; `dispose` stops it then.
    child.unref();
    child.stderr.destroy();
  }

  /** Starts a standby that replicates this server. */
  async startStandby(): Promise<PostgresServer> {
    const standby = new PostgresServer(this.#bin, await freePort(), this.#settings);
    undisposed.add(standby);
    const from = ['-h', '127.0.0.1', '-p', String(this.port), '-U', SERVICE_USER];
    const options = ['--write-recovery-conf', '--wal-method=stream', '--checkpoint=fast', '--no-sync'];
    execFileSync(path.join(this.#bin, 'pg_basebackup'), [...from, '-D', standby.data, ...options], {
      ...this.#user,
      cwd: standby.folder,
      env: { ...process.env, PGPASSWORD: PASSWORD },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    await standby.start();
    return standby;
  }

  async stop(mode: StopMode): Promise<void> {
    const child = this.#process;
    if (child === null) return;
    // A test that failed may have left it frozen.
    this.signalAll('SIGCONT');
    this.#process = null;
    const ended = child.exitCode !== null || child.signalCode !== null ? null : once(child, 'exit');
    child.ref();
    child.kill(mode === 'fast' ? 'SIGINT' : 'SIGQUIT');
    await ended;
  }

  /** Freezes or resumes all processes of the server, including sessions. */
  signalAll(signal: 'SIGSTOP' | 'SIGCONT'): void {
    const parent = this.#process?.pid;
    if (parent === undefined) return;
    // The parent first: once it is stopped, it starts no further session, which would not be in the list.
    process.kill(parent, signal);
    const children = execFileSync('ps', ['-o', 'pid=', '--ppid', String(parent)], { encoding: 'utf8' });
    for (const pid of children.split('\n').map(Number).filter(Boolean)) process.kill(pid, signal);
  }

  /** Stops the server immediately and removes its folder. May be called repeatedly. */
  dispose(): void {
    undisposed.delete(this);
    const pid = this.#process?.pid;
    this.#process = null;
    if (!existsSync(this.folder)) return;
    // Waits in a shell, since this may run while the process exits and nothing asynchronous happens any more; the
    // server is then a zombie until the process is gone.
    const isAlive = `ps -o stat= -p ${pid} | grep -qv Z`;
    const end =
      pid === undefined ? '' : `kill -CONT ${pid}; kill -QUIT ${pid}; while ${isAlive}; do sleep 0.02; done;`;
    spawnSync('sh', ['-c', `${end} rm -rf "$0"`, this.folder], { stdio: 'ignore' });
  }

  #own(file: string): void {
    if (this.#user !== null) chownSync(file, this.#user.uid, this.#user.gid);
  }

  async #initialize(): Promise<void> {
    const template = process.env[POSTGRES_TEMPLATE];
    if (template !== undefined) {
      await run('cp', ['-a', path.join(template, 'data'), this.data]);
      return;
    }
    const passwordFile = path.join(this.folder, 'password');
    writeFileSync(passwordFile, verifierOf(PASSWORD));
    this.#own(passwordFile);
    const options = [
      '--auth=scram-sha-256',
      `--pwfile=${passwordFile}`,
      '--encoding=UTF8',
      '--locale=C',
      '--no-sync',
    ];
    await run(path.join(this.#bin, 'initdb'), ['-D', this.data, '-U', SERVICE_USER, ...options], {
      ...this.#user,
      cwd: this.folder,
    });
  }
}

/**
 * What PostgreSQL stores instead of a password, RFC 5803. With one iteration instead of 4096, a client needs 3 ms of
 * processor time less for a login, of which a run has 1,500.
 */
function verifierOf(password: string): string {
  const salt = randomBytes(16);
  const salted = pbkdf2Sync(password, salt, 1, 32, 'sha256');
  const keyOf = (name: string): Buffer => createHmac('sha256', salted).update(name).digest();
  const storedKey = createHash('sha256').update(keyOf('Client Key')).digest();
  const [saltText, stored, server] = [salt, storedKey, keyOf('Server Key')].map((key) =>
    key.toString('base64'),
  );
  return `SCRAM-SHA-256$1:${saltText}$${stored}:${server}`;
}

/** Returns the folder of PostgreSQL's programs, of the newest version. `TEST_POSTGRES_BIN` overrides it. */
function findBinaries(): string {
  return process.env.TEST_POSTGRES_BIN ?? installedBinaries() ?? install() ?? fail();
}

function installedBinaries(): string | null {
  const versions = existsSync(DEBIAN_FOLDER) ? readdirSync(DEBIAN_FOLDER) : [];
  const folders = versions
    .sort((a, b) => Number(b) - Number(a))
    .map((version) => path.join(DEBIAN_FOLDER, version, 'bin'));
  const elsewhere = (process.env.PATH ?? '').split(path.delimiter);
  return [...folders, ...elsewhere].find((folder) => existsSync(path.join(folder, 'initdb'))) ?? null;
}

function install(): string | null {
  needDebian('postgresql');
  return installedBinaries();
}

function fail(): never {
  throw new Error('The tests need PostgreSQL: install it, or put its programs into PATH.');
}

function idOf(flag: '-u' | '-g'): number {
  return Number(execFileSync('id', [flag, SERVICE_USER], { encoding: 'utf8' }));
}
