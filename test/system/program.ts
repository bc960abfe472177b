import type { ChildProcess } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { PassThrough, Writable } from 'node:stream';
import { setTimeout as delay } from 'node:timers/promises';
import { makeLogger, textLine } from '../../src/app/log.ts';
import { main, type ProgramIo } from '../../src/program.ts';
import { spawnOwned } from '../support/owned-process.ts';
import { SERVER_ARGS, SERVER_CACHE } from '../support/server-command.ts';

/** Only prevents a hanging test; nothing is measured with it. */
const PATIENCE_MS = 60_000;

/**
 * Drops root's capabilities to bypass file modes, so that modes apply to root as to other users. setpriv is part of
 * util-linux.
 */
const WITHOUT_MODE_BYPASS = [
  '/usr/bin/setpriv',
  '--bounding-set=-dac_override,-dac_read_search',
  '--inh-caps=-dac_override,-dac_read_search',
  '--',
];

export interface ProgramOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly input?: string | Buffer;
  readonly nodeArgs?: readonly string[];
  /** The umask of the child process; defaults to this process's. */
  readonly umask?: number;
  /** Whether file modes apply to the program even if root runs the test. */
  readonly respectsModes?: boolean;
  /** The file descriptor for standard error, which is then not captured. */
  readonly errorTo?: number;
  /** Whether it runs in a process of its own; the default is that of the folder. */
  readonly ownProcess?: boolean;
}

/** The options that only a process of its own can have. */
const OF_PROCESSES = ['nodeArgs', 'umask', 'respectsModes', 'errorTo'] as const;

/** A temporary folder in which a test runs the program as a user would, any number of times. */
export class Folder {
  readonly path: string;
  readonly #ownProcesses: boolean;
  readonly #programs = new Set<Program>();

  private constructor(path: string, ownProcesses: boolean) {
    this.path = path;
    this.#ownProcesses = ownProcesses;
  }

  /**
   * @param ownProcesses whether each program runs in a process of its own, which takes a quarter of a second of
   * processor time. If not, it runs in this process, with output and signals of its own, unless its options need a
   * process: for tests that do not depend on what the kernel does with a process.
   */
  static async create({ ownProcesses = true } = {}): Promise<Folder> {
    return new Folder(await mkdtemp(join(tmpdir(), 'quayside-program-')), ownProcesses);
  }

  file(name: string): string {
    return join(this.path, name);
  }

  async write(name: string, content: string | object): Promise<string> {
    const text = typeof content === 'string' ? content : JSON.stringify(content);
    await writeFile(this.file(name), text);
    return name;
  }

  /** Starts the command of `npm start -- ARGS` in this folder. */
  launch(args: readonly string[], options: ProgramOptions = {}): Program {
    const { ownProcess = this.#ownProcesses || OF_PROCESSES.some((name) => options[name] !== undefined) } =
      options;
    const program = new (ownProcess ? ProgramProcess : ProgramHere)(this.path, args, options);
    this.#programs.add(program);
    return program;
  }

  /** Runs the program and waits for its end. */
  async run(args: readonly string[], options: ProgramOptions = {}): Promise<Program> {
    const program = this.launch(args, options);
    await program.ended;
    return program;
  }

  /** Starts the program and resolves when it listens. */
  async serve(args: readonly string[], options: ProgramOptions = {}): Promise<Program> {
    const env = { QUAYSIDE_HTTP__PORT: '0', ...options.env };
    const program = this.launch(args, { ...options, env });
    await program.untilPrinted(/listens on/);
    return program;
  }

  /** Kills programs that still run and removes the folder. */
  async dispose(): Promise<void> {
    for (const program of this.#programs) await program.kill();
    await rm(this.path, { recursive: true });
  }
}

/** One run of the program with its captured output. */
export abstract class Program {
  /** Resolves with the exit code, null if a signal ended it, when all its output is captured. */
  abstract readonly ended: Promise<number | null>;
  abstract readonly pid: number;
  stdout = '';
  stderr = '';
  /** Null while it runs, and if a signal ended it. */
  code: number | null = null;
  readonly #listeners = new Set<() => void>();
  #isClosed = false;

  abstract signal(signal: NodeJS.Signals): void;

  abstract kill(): Promise<void>;

  protected capture(stream: 'stdout' | 'stderr', text: string): void {
    this[stream] += text;
    for (const listener of this.#listeners) listener();
  }

  protected close(code: number | null): void {
    this.code = code;
    this.#isClosed = true;
    for (const listener of this.#listeners) listener();
  }

  /** The URL that it printed as its address. @throws Error if it has not printed one */
  get url(): string {
    const found = /listens on (\S+)/.exec(this.stdout)?.[1];
    if (found === undefined) throw new Error(`The program printed no address.\n${this.stdout}${this.stderr}`);
    return found;
  }

  /** Sends SIGTERM and resolves with the exit code. */
  async stop(): Promise<number | null> {
    this.signal('SIGTERM');
    return this.ended;
  }

  /** Sends the signal repeatedly, like a user who presses Ctrl-C several times. Resolves with the exit code. */
  async signalUntilEnded(signal: NodeJS.Signals): Promise<number | null> {
    while (!this.#isClosed) {
      this.signal(signal);
      await delay(20);
    }
    return this.ended;
  }

  /** Resolves when one of its outputs matches the pattern. Rejects if the program ends before that. */
  untilPrinted(pattern: RegExp): Promise<void> {
    return this.#until(() => pattern.test(this.stdout) || pattern.test(this.stderr), `never said ${pattern}`);
  }

  /** Resolves when `isEnough` accepts the log lines so far. Rejects if the program ends before that. */
  untilLogged(isEnough: (lines: Record<string, unknown>[]) => boolean): Promise<void> {
    return this.#until(() => isEnough(this.logged()), 'never logged what was waited for');
  }

  /** The log lines so far, parsed. */
  logged(): Record<string, unknown>[] {
    const whole = this.stderr.slice(0, this.stderr.lastIndexOf('\n') + 1);
    return whole
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line));
  }

  async #until(isSo: () => boolean, otherwise: string): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const fail = (why: string): void =>
      reject(new Error(`${why}; it ${otherwise}.\n${this.stdout}${this.stderr}`));
    const check = (): void => {
      if (isSo()) resolve();
      else if (this.#isClosed) fail('The program ended');
    };
    const patience = setTimeout(() => fail('The time is up'), PATIENCE_MS);
    this.#listeners.add(check);
    check();
    try {
      await promise;
    } finally {
      clearTimeout(patience);
      this.#listeners.delete(check);
    }
  }
}

class ProgramProcess extends Program {
  readonly ended: Promise<number | null>;
  readonly #child: ChildProcess;

  constructor(
    cwd: string,
    args: readonly string[],
    { env, input = '', nodeArgs = [], errorTo, umask, respectsModes = false }: ProgramOptions,
  ) {
    super();
    const [program = process.execPath, ...before] =
      respectsModes && process.getuid?.() === 0 ? [...WITHOUT_MODE_BYPASS, process.execPath] : [];
    const ownUmask = umask === undefined ? null : process.umask(umask);
    this.#child = spawnOwned(program, [...before, ...nodeArgs, ...SERVER_ARGS, ...args], {
      cwd,
      env: { ...process.env, NODE_COMPILE_CACHE: SERVER_CACHE, ...env },
      stdio: ['pipe', 'pipe', errorTo ?? 'pipe'],
    });
    if (ownUmask !== null) process.umask(ownUmask);
    this.#child.stdin?.end(input);
    for (const stream of ['stdout', 'stderr'] as const) {
      this.#child[stream]?.setEncoding('utf8').on('data', (text: string) => this.capture(stream, text));
    }
    // Not at `exit`, because the last lines may still be in the pipes then.
    this.ended = once(this.#child, 'close').then(([code]) => {
      this.close(code);
      return code;
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.ended;
  }
}

/** A program in this process: its output, its signals and its exit are its own, everything else is the process's. */
class ProgramHere extends Program {
  readonly ended: Promise<number | null>;
  readonly pid = process.pid;
  readonly #signals = new EventEmitter();

  constructor(cwd: string, args: readonly string[], { env, input = '' }: ProgramOptions) {
    super();
    const output = (stream: 'stdout' | 'stderr') =>
      new Writable({
        write: (chunk, _encoding, done) => {
          this.capture(stream, String(chunk));
          done();
        },
      });
    const exited = Promise.withResolvers<number>();
    const io: ProgramIo = {
      stdin: new PassThrough().end(input),
      stdout: output('stdout'),
      stderr: output('stderr'),
      env: { ...process.env, ...env },
      cwd: () => cwd,
      on: (signal, listener) => this.#signals.on(signal, listener),
      exit: exited.resolve,
      serving: {
        events: this.#signals,
        createLog: ({ level, format }) => ({
          logger: makeLogger(
            level,
            { write: (line) => this.capture('stderr', line) },
            format === 'text' ? textLine : undefined,
          ),
          flush: async () => {},
        }),
      },
    };
    this.ended = Promise.race([main(args, io), exited.promise]).then((code) => {
      this.close(code);
      return code;
    });
  }

  /** A signal that nothing listens to would end a process, and is ignored here. */
  signal(signal: NodeJS.Signals): void {
    this.#signals.emit(signal, signal);
  }

  /** Stops it by SIGTERM, once it listens to that. */
  async kill(): Promise<void> {
    while (this.code === null && this.#signals.listenerCount('SIGTERM') === 0) await delay(5);
    this.signal('SIGTERM');
    await this.ended;
  }
}
