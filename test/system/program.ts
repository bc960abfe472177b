import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { spawnOwned } from '../support/owned-process.ts';
import { SERVER_ARGS, SERVER_CACHE } from '../support/server-command.ts';

/** Only for a test that would otherwise hang; nothing is measured with it. */
const PATIENCE_MS = 60_000;

/**
 * Of Debian's util-linux. Root may open any file, whatever its mode, and loses that here: the mode counts as for other
 * users.
 */
const OBEYING_MODES = [
  '/usr/bin/setpriv',
  '--bounding-set=-dac_override,-dac_read_search',
  '--inh-caps=-dac_override,-dac_read_search',
  '--',
];

export interface ProgramOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly input?: string;
  readonly nodeArgs?: readonly string[];
  /** In place of this program's own. */
  readonly umask?: number;
  /** Whether the modes of files and folders bind it also if root runs the test. */
  readonly obeysModes?: boolean;
  /** A file descriptor that takes standard error in place of this program. */
  readonly errorTo?: number;
}

/** A folder of its own, in which the program is run as a user would, any number of times. */
export class Folder {
  readonly path: string;
  readonly #programs = new Set<Program>();

  private constructor(path: string) {
    this.path = path;
  }

  static async create(): Promise<Folder> {
    return new Folder(await mkdtemp(join(tmpdir(), 'quayside-program-')));
  }

  file(name: string): string {
    return join(this.path, name);
  }

  async write(name: string, content: string | object): Promise<string> {
    const text = typeof content === 'string' ? content : JSON.stringify(content);
    await writeFile(this.file(name), text);
    return name;
  }

  /** Starts what `npm start -- ARGS` runs, here. */
  launch(args: readonly string[], options: ProgramOptions = {}): Program {
    const program = new Program(this.path, args, options);
    this.#programs.add(program);
    return program;
  }

  /** Runs it to its end. */
  async run(args: readonly string[], options: ProgramOptions = {}): Promise<Program> {
    const program = this.launch(args, options);
    await program.ended;
    return program;
  }

  /** Starts it and resolves when it listens. */
  async serve(args: readonly string[], options: ProgramOptions = {}): Promise<Program> {
    const env = { QUAYSIDE_HTTP__PORT: '0', ...options.env };
    const program = this.launch(args, { ...options, env });
    await program.says(/listens on/);
    return program;
  }

  /** Ends what still runs and removes the folder. */
  async dispose(): Promise<void> {
    for (const program of this.#programs) await program.kill();
    await rm(this.path, { recursive: true });
  }
}

/** One run of the program, both outputs apart. */
export class Program {
  readonly ended: Promise<number | null>;
  stdout = '';
  stderr = '';
  /** Null while it runs, and where a signal ended it. */
  code: number | null = null;
  readonly #child: ChildProcess;
  readonly #listeners = new Set<() => void>();
  #isClosed = false;

  constructor(
    cwd: string,
    args: readonly string[],
    { env, input = '', nodeArgs = [], errorTo, umask, obeysModes = false }: ProgramOptions,
  ) {
    const [program = process.execPath, ...before] =
      obeysModes && process.getuid?.() === 0 ? [...OBEYING_MODES, process.execPath] : [];
    const ownUmask = umask === undefined ? null : process.umask(umask);
    this.#child = spawnOwned(program, [...before, ...nodeArgs, ...SERVER_ARGS, ...args], {
      cwd,
      env: { ...process.env, NODE_COMPILE_CACHE: SERVER_CACHE, ...env },
      stdio: ['pipe', 'pipe', errorTo ?? 'pipe'],
    });
    if (ownUmask !== null) process.umask(ownUmask);
    this.#child.stdin?.end(input);
    this.#child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.stdout += text;
      for (const listener of this.#listeners) listener();
    });
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.stderr += text;
      for (const listener of this.#listeners) listener();
    });
    this.ended = once(this.#child, 'close').then(([code]) => {
      this.code = code;
      // Not at its exit: its last lines may still be in the pipes then.
      this.#isClosed = true;
      for (const listener of this.#listeners) listener();
      return code;
    });
  }

  /** What it printed as the address that it listens on. */
  get url(): string {
    const found = /listens on (\S+)/.exec(this.stdout)?.[1];
    if (found === undefined) throw new Error(`It does not listen.\n${this.stdout}${this.stderr}`);
    return found;
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  signal(signal: NodeJS.Signals): void {
    this.#child.kill(signal);
  }

  /** SIGTERM; answers the exit code. */
  async stop(): Promise<number | null> {
    this.signal('SIGTERM');
    return this.ended;
  }

  async kill(): Promise<void> {
    this.signal('SIGKILL');
    await this.ended;
  }

  /** Resolves when one of its outputs holds the pattern. @throws Error where it ends before */
  says(pattern: RegExp): Promise<void> {
    return this.#until(() => pattern.test(this.stdout) || pattern.test(this.stderr), `never said ${pattern}`);
  }

  /** Resolves when the log lines so far are as a test waits for. @throws Error where it ends before */
  logs(isEnough: (lines: Record<string, unknown>[]) => boolean): Promise<void> {
    return this.#until(() => isEnough(this.logged()), 'never logged what was waited for');
  }

  /** Log lines so far, each as what it says. */
  logged(): Record<string, unknown>[] {
    const whole = this.stderr.slice(0, this.stderr.lastIndexOf('\n') + 1);
    return whole
      .split('\n')
      .filter((line) => line.startsWith('{'))
      .map((line) => JSON.parse(line));
  }

  async #until(isSo: () => boolean, otherwise: string): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const tell = (why: string): void =>
      reject(new Error(`${why}; it ${otherwise}.\n${this.stdout}${this.stderr}`));
    const look = (): void => {
      if (isSo()) resolve();
      else if (this.#isClosed) tell('The program ended');
    };
    const patience = setTimeout(() => tell('Too much time went by'), PATIENCE_MS);
    this.#listeners.add(look);
    look();
    try {
      await promise;
    } finally {
      clearTimeout(patience);
      this.#listeners.delete(look);
    }
  }
}
