import { type ChildProcess, execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { chownSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { needDebian } from './debian.ts';
import { freePort } from './free-port.ts';
import { spawnOwned } from './owned-process.ts';

const PROGRAM = '/usr/sbin/pgbouncer';

/** Debian's PgBouncer in front of a PostgreSQL server, in its own folder, without the system's configuration. */
export class PgBouncer {
  readonly port: number;
  readonly #child: ChildProcess;
  readonly #folder: string;

  private constructor(port: number, child: ChildProcess, folder: string) {
    this.port = port;
    this.#child = child;
    this.#folder = folder;
  }

  /**
   * Starts it. Resolves when it accepts connections.
   * @param url of the server: PgBouncer connects as its user, whatever the client's name and password
   */
  static async start(url: string, mode: 'session' | 'transaction'): Promise<PgBouncer> {
    if (!existsSync(PROGRAM)) needDebian('pgbouncer');
    const folder = mkdtempSync(join(tmpdir(), 'quayside-pgbouncer-'));
    const file = join(folder, 'pgbouncer.ini');
    const port = await freePort();
    const server = new URL(url);
    const password = decodeURIComponent(server.password).replaceAll("'", "''");
    writeFileSync(
      file,
      `[databases]
* = host=${server.hostname} port=${server.port} user=${server.username} password='${password}'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = ${port}
unix_socket_dir =
auth_type = any
pool_mode = ${mode}
`,
    );
    // It does not run as root.
    const user = process.getuid?.() === 0 ? { uid: idOf('-u'), gid: idOf('-g') } : {};
    if (user.uid !== undefined) for (const path of [folder, file]) chownSync(path, user.uid, user.gid);
    const child = spawnOwned(PROGRAM, [file], { ...user, stdio: ['ignore', 'ignore', 'pipe'] });
    const bouncer = new PgBouncer(port, child, folder);
    const output: string[] = [];
    if (child.stderr === null) throw new Error('PgBouncer has no output.');
    for await (const line of createInterface(child.stderr)) {
      output.push(line);
      if (!line.includes('process up')) continue;
      child.stderr.resume();
      return bouncer;
    }
    await bouncer.stop();
    throw new Error(`PgBouncer does not run.\n${output.join('\n')}`);
  }

  async stop(): Promise<void> {
    const { exitCode, signalCode } = this.#child;
    const ended = exitCode === null && signalCode === null ? once(this.#child, 'close') : null;
    // SIGTERM ends it at once, connections included.
    this.#child.kill('SIGTERM');
    await ended;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

function idOf(kind: '-u' | '-g'): number {
  return Number(execFileSync('id', [kind, 'postgres'], { encoding: 'utf8' }));
}
