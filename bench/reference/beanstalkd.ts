import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { needDebian } from '../../test/support/debian.ts';
import type { LoadResult } from '../load/http-load.ts';
import { cpuTimeOf } from '../process.ts';
import { answers, freePort } from './rabbitmq.ts';

const START_MS = 10_000;
/** Puts that a connection sends before it reads their replies. */
const PIPELINE = 100;

/** A separate beanstalkd in a temporary folder, whose log is synced after each write (`-f0`). */
export class Beanstalkd {
  readonly port: number;
  readonly #folder: string;
  readonly #child: ChildProcess;

  private constructor(port: number, folder: string, child: ChildProcess) {
    this.port = port;
    this.#folder = folder;
    this.#child = child;
  }

  /** Installs the package if it is missing. The caller calls {@link stop}. */
  static async start(): Promise<Beanstalkd> {
    needDebian('beanstalkd');
    const folder = mkdtempSync(join(tmpdir(), 'quayside-beanstalkd-'));
    const port = await freePort();
    const args = ['-l', '127.0.0.1', '-p', String(port), '-b', folder, '-f0'];
    const child = spawn('beanstalkd', args, { stdio: 'ignore' });
    const until = performance.now() + START_MS;
    while (!(await answers(port))) {
      if (performance.now() > until || child.exitCode !== null) throw new Error('beanstalkd did not start.');
    }
    return new Beanstalkd(port, folder, child);
  }

  get pid(): number {
    if (this.#child.pid === undefined) throw new Error('beanstalkd is not running.');
    return this.#child.pid;
  }

  /** Stores jobs over a few connections, pipelined. */
  async fill(body: string, count: number): Promise<void> {
    let left = count;
    await this.#over(4, async (connection) => {
      while (left > 0) {
        const some = Math.min(PIPELINE, left);
        left -= some;
        await connection.ask(`put 0 0 120 ${body.length}\r\n${body}\r\n`.repeat(some), some);
      }
    });
  }

  /** Puts jobs on each connection, in pipelined groups. */
  async put(body: string, connections: number, seconds: number): Promise<LoadResult> {
    const before = cpuTimeOf(this.pid);
    const from = performance.now();
    let done = 0;
    const commands = `put 0 0 120 ${body.length}\r\n${body}\r\n`.repeat(PIPELINE);
    await this.#over(connections, async (connection) => {
      while (performance.now() < from + seconds * 1000) {
        await connection.ask(commands, PIPELINE);
        done += PIPELINE;
      }
    });
    const after = cpuTimeOf(this.pid);
    const cpu = {
      total: (after.total - before.total) / done,
      mainThread: (after.mainThread - before.mainThread) / done,
    };
    return { requests: done, perSecond: (done * 1000) / (performance.now() - from), cpu };
  }

  /** Reserves and deletes jobs one after the other on each connection. */
  async work(connections: number, seconds: number, atMost: number): Promise<LoadResult> {
    const before = cpuTimeOf(this.pid);
    const from = performance.now();
    let [started, done] = [0, 0];
    await this.#over(connections, async (connection) => {
      while (performance.now() < from + seconds * 1000 && started++ < atMost) {
        const [reserved = ''] = await connection.ask('reserve\r\n', 1);
        const [deleted] = await connection.ask(`delete ${reserved.split(' ')[1]}\r\n`, 1);
        if (deleted !== 'DELETED') throw new Error(`beanstalkd replied ${reserved}, ${deleted}`);
        done += 1;
      }
    });
    const after = cpuTimeOf(this.pid);
    const cpu = {
      total: (after.total - before.total) / done,
      mainThread: (after.mainThread - before.mainThread) / done,
    };
    return { requests: done, perSecond: (done * 1000) / (performance.now() - from), cpu };
  }

  async stop(): Promise<void> {
    const gone = once(this.#child, 'exit');
    this.#child.kill('SIGTERM');
    await gone;
    rmSync(this.#folder, { recursive: true });
  }

  async #over(count: number, run: (connection: Connection) => Promise<void>): Promise<void> {
    const opened = await Promise.all(Array.from({ length: count }, () => Connection.open(this.port)));
    try {
      await Promise.all(opened.map(run));
    } finally {
      for (const connection of opened) connection.close();
    }
  }
}

/** A connection that sends commands and reads the first line of each reply. */
class Connection {
  readonly #socket: Socket;
  #text = '';
  #lines: string[] = [];
  #missing = 0;
  #waiting: PromiseWithResolvers<string[]> | null = null;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on('data', (chunk) => this.#read(chunk.toString('latin1')));
    socket.on('close', () => this.#waiting?.reject(new Error('beanstalkd closed the connection.')));
    socket.on('error', () => {});
  }

  static async open(port: number): Promise<Connection> {
    const socket = connect({ port, host: '127.0.0.1', noDelay: true });
    await once(socket, 'connect');
    return new Connection(socket);
  }

  /** Resolves with the first lines of this many replies. */
  ask(commands: string, replies: number): Promise<string[]> {
    this.#waiting = Promise.withResolvers();
    this.#missing = replies;
    this.#socket.write(commands, 'latin1');
    return this.#waiting.promise;
  }

  close(): void {
    this.#socket.destroy();
  }

  #read(chunk: string): void {
    this.#text += chunk;
    while (this.#missing > 0) {
      const end = this.#text.indexOf('\r\n');
      if (end === -1) return;
      const line = this.#text.slice(0, end);
      // The job's body follows this line.
      const body = line.startsWith('RESERVED ') ? Number(line.split(' ')[2]) + 2 : 0;
      if (this.#text.length < end + 2 + body) return;
      this.#text = this.#text.slice(end + 2 + body);
      this.#lines.push(line);
      this.#missing -= 1;
    }
    const lines = this.#lines;
    this.#lines = [];
    this.#waiting?.resolve(lines);
  }
}
