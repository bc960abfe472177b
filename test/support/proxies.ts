import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { needDebian } from './debian.ts';
import { spawnOwned } from './owned-process.ts';

const READY_MS = 60_000;

/** Debian's nginx and HAProxy, named as the language of their configuration's blocks in Markdown. */
export type ProxyKind = 'nginx' | 'haproxy';

/** A reverse proxy with a configuration given by a test, in its own folder, without the system's configuration. */
export class ReverseProxy {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  readonly #folder: string;

  private constructor(child: ChildProcess, folder: string) {
    this.#child = child;
    this.#ended = once(child, 'close');
    this.#folder = folder;
  }

  /**
   * Starts a proxy. Resolves when it accepts connections at the port.
   * @param config for nginx the content of `http`, for HAProxy everything except `global`
   * @throws Error with its output if it rejects the configuration
   */
  static async start(kind: ProxyKind, config: string, port: number): Promise<ReverseProxy> {
    const program = ensureInstalled(kind);
    const folder = mkdtempSync(join(tmpdir(), `quayside-${kind}-`));
    const file = join(folder, `${kind}.conf`);
    writeFileSync(file, kind === 'nginx' ? nginxFile(folder, config) : `${config}\n`);
    const args = kind === 'nginx' ? ['-p', folder, '-c', file, '-e', 'stderr'] : ['-db', '-f', file];
    const child = spawnOwned(program, args, { stdio: ['ignore', 'pipe', 'pipe'] });
    const proxy = new ReverseProxy(child, folder);
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        output = (output + text).slice(-20_000);
      });
    }
    const end = performance.now() + READY_MS;
    while (!(await accepts(port))) {
      if (child.exitCode === null && performance.now() < end) {
        await delay(20);
        continue;
      }
      await proxy.stop();
      throw new Error(`${kind} does not listen.\n${output}`);
    }
    return proxy;
  }

  async stop(): Promise<void> {
    // SIGTERM is a fast shutdown for both; requests in flight are cut.
    this.#child.kill('SIGTERM');
    await this.#ended;
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** Configures one process in the foreground, which writes only to its folder. */
function nginxFile(folder: string, config: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((name) => {
    mkdirSync(join(folder, name));
    return `${name}_temp_path ${join(folder, name)};`;
  });
  return `daemon off;
master_process off;
pid ${join(folder, 'nginx.pid')};
events { worker_connections 256; }
http {
access_log off;
${temporary.join('\n')}
${config}
}
`;
}

function ensureInstalled(kind: ProxyKind): string {
  const found = programOf(kind);
  if (found !== null) return found;
  needDebian(kind);
  return programOf(kind) ?? kind;
}

/** Debian's folder of both programs is not in every user's PATH. */
function programOf(kind: ProxyKind): string | null {
  const folders = [...(process.env.PATH ?? '').split(':'), '/usr/sbin'];
  return folders.map((folder) => join(folder, kind)).find((file) => existsSync(file)) ?? null;
}

async function accepts(port: number): Promise<boolean> {
  const socket = connect(port, '127.0.0.1');
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}
