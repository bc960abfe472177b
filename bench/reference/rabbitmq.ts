import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { needDebian } from '../../test/support/debian.ts';

/** Debian's wrapper switches to the user `rabbitmq`; the script that it calls runs as the current user. */
const PROGRAM = '/usr/lib/rabbitmq/bin/rabbitmq-server';
const START_MS = 60_000;

/**
 * A separate RabbitMQ in a temporary folder and on free ports: Debian's, with its plugins for STOMP, AMQP 1.0 and
 * shovels.
 */
export class RabbitServer {
  readonly stompPort: number;
  /** For AMQP 0.9.1 and 1.0. */
  readonly amqpPort: number;
  readonly user = 'guest';
  readonly password = 'guest';
  readonly #folder: string;
  readonly #epmdPort: number;
  readonly #child: ChildProcess;

  private constructor(folder: string, ports: Ports, child: ChildProcess) {
    this.stompPort = ports.stomp;
    this.amqpPort = ports.amqp;
    this.#folder = folder;
    this.#epmdPort = ports.epmd;
    this.#child = child;
  }

  /**
   * Installs the package if it is missing. The caller calls {@link stop}.
   * @param shovels configuration of shovels, as Erlang terms
   */
  static async start(note: (line: string) => void, shovels = '[]'): Promise<RabbitServer> {
    needDebian('rabbitmq-server');
    const folder = mkdtempSync(join(tmpdir(), 'quayside-rabbitmq-'));
    const ports = await freePorts();
    const env = environment(folder, ports, shovels);
    const child = spawn(PROGRAM, [], { cwd: folder, env, stdio: 'ignore' });
    const server = new RabbitServer(folder, ports, child);
    try {
      await server.#listens();
    } catch (error) {
      await server.stop();
      throw error;
    }
    note(`RabbitMQ ${versionIn(folder)} listens`);
    return server;
  }

  /** The process id of the Erlang VM. @throws Error if it is not running */
  get pid(): number {
    return Number(readFileSync(join(this.#folder, 'pid'), 'utf8'));
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const gone = once(this.#child, 'exit');
      process.kill(this.pid, 'SIGTERM');
      await gone;
    }
    // The port mapper would keep running otherwise.
    execFileSync('epmd', ['-port', String(this.#epmdPort), '-kill'], { stdio: 'ignore' });
    rmSync(this.#folder, { recursive: true });
  }

  async #listens(): Promise<void> {
    const until = performance.now() + START_MS;
    while (performance.now() < until) {
      if (this.#child.exitCode !== null) break;
      if ((await answers(this.stompPort)) && (await answers(this.amqpPort))) return;
      await delay(200);
    }
    throw new Error(`RabbitMQ did not start; its log is in ${this.#folder}.`);
  }
}

interface Ports {
  readonly stomp: number;
  readonly amqp: number;
  readonly distribution: number;
  readonly epmd: number;
}

function environment(folder: string, ports: Ports, shovels: string): NodeJS.ProcessEnv {
  const file = (name: string): string => join(folder, name);
  writeFileSync(
    file('rabbitmq.conf'),
    `listeners.tcp.1 = 127.0.0.1:${ports.amqp}\nstomp.listeners.tcp.1 = 127.0.0.1:${ports.stomp}\n`,
  );
  writeFileSync(file('enabled_plugins'), '[rabbitmq_stomp,rabbitmq_amqp1_0,rabbitmq_shovel].\n');
  writeFileSync(file('advanced.config'), `[{rabbitmq_shovel,[{shovels,${shovels}}]}].\n`);
  return {
    ...process.env,
    HOME: folder,
    ERL_EPMD_ADDRESS: '127.0.0.1',
    ERL_EPMD_PORT: String(ports.epmd),
    RABBITMQ_NODENAME: 'quayside-bench@localhost',
    RABBITMQ_DIST_PORT: String(ports.distribution),
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: '-kernel inet_dist_use_interface {127,0,0,1}',
    RABBITMQ_MNESIA_BASE: file('mnesia'),
    RABBITMQ_LOG_BASE: file('log'),
    RABBITMQ_CONFIG_FILE: file('rabbitmq.conf'),
    RABBITMQ_ADVANCED_CONFIG_FILE: file('advanced.config'),
    RABBITMQ_ENABLED_PLUGINS_FILE: file('enabled_plugins'),
    RABBITMQ_PID_FILE: file('pid'),
  };
}

function versionIn(folder: string): string {
  const log = readFileSync(join(folder, 'log', 'quayside-bench@localhost.log'), 'utf8');
  return /Starting RabbitMQ ([\d.]+)/.exec(log)?.[1] ?? '';
}

async function freePorts(): Promise<Ports> {
  const [stomp = 0, amqp = 0, distribution = 0, epmd = 0] = await Promise.all([1, 2, 3, 4].map(freePort));
  return { stomp, amqp, distribution, epmd };
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  server.close();
  await once(server, 'close');
  return typeof address === 'object' && address !== null ? address.port : 0;
}

/** Whether a server listens on the port. */
export function answers(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy();
      resolve(true);
    });
    socket.on('error', () => resolve(false));
  });
}
