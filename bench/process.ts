import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

/** CPU time used by a process since its start, µs. The kernel counts in steps of 10 ms. */
export interface CpuTime {
  readonly total: number;
  /** CPU time of the main thread alone, which limits a server whose storage runs on a thread of its own. */
  readonly mainThread: number;
}

const TICK_US = 10_000;

export function cpuTimeOf(pid: number): CpuTime {
  const read = (file: string): number => {
    // The second field is the command in parentheses, which may contain spaces; start after it.
    const fields = readFileSync(file, 'latin1').split(') ')[1]?.split(' ') ?? [];
    return (Number(fields[11]) + Number(fields[12])) * TICK_US;
  };
  return { total: read(`/proc/${pid}/stat`), mainThread: read(`/proc/${pid}/task/${pid}/stat`) };
}

/** Resident memory of a process, bytes. */
export function residentBytesOf(pid: number): number {
  const found = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, 'latin1'));
  return Number(found?.[1]) * 1024;
}

/** A bench program in a process of its own, which shares neither heap nor event loop with others. */
export class Helper {
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess) {
    this.#child = child;
  }

  /** Starts a program that sends one message when it is ready. Returns the helper with that message. */
  static async start<Ready>(program: URL, args: readonly string[]): Promise<[Helper, Ready]> {
    const child = fork(fileURLToPath(program), args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    const ready = once(child, 'message').then(([message]) => message as Ready);
    const gone = once(child, 'exit').then(([code]) => {
      throw new Error(`${program.pathname} ended with code ${code} before it was ready.`);
    });
    const message = await Promise.race([ready, gone]);
    gone.catch(() => {});
    return [new Helper(child), message];
  }

  get pid(): number {
    if (this.#child.pid === undefined) throw new Error('The helper process is not running.');
    return this.#child.pid;
  }

  /** Sends a message and resolves with the next reply. @throws Error if the program ends instead */
  async ask<Reply>(message: object): Promise<Reply> {
    const abort = new AbortController();
    const reply = once(this.#child, 'message', { signal: abort.signal }).then(([answer]) => answer as Reply);
    const gone = once(this.#child, 'exit', { signal: abort.signal }).then(([code, signal]): never => {
      throw new Error(`A program of the bench ended with ${code ?? signal} before it had replied.`);
    });
    this.#child.send(message);
    try {
      return await Promise.race([reply, gone]);
    } finally {
      abort.abort();
      await Promise.allSettled([reply, gone]);
    }
  }

  async stop(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const gone = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await gone;
  }
}
