import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';

/** A code block of a documentation page. */
export interface Block {
  readonly language: string;
  readonly text: string;
}

/** A shell that gets one command at a time, as if a user pasted them. */
export class Shell {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  #printed = '';
  #errors = '';
  #onOutput = (): void => {};

  constructor(cwd: string, env: Readonly<Record<string, string>>) {
    this.#child = spawn('sh', [], { cwd, env, stdio: 'pipe' });
    this.#ended = once(this.#child, 'close');
    this.#child.stdout?.setEncoding('utf8').on('data', (text: string) => {
      this.#printed += text;
      this.#onOutput();
    });
    this.#child.stderr?.setEncoding('utf8').on('data', (text: string) => {
      this.#errors += text;
    });
  }

  /** Resolves with what the command printed. @throws Error if it failed */
  async run(command: string): Promise<string> {
    this.#printed = '';
    this.#errors = '';
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    this.#onOutput = () => {
      const end = /\n<end (\d+)>\n$/.exec(this.#printed);
      if (end === null) return;
      if (end[1] === '0') resolve(this.#printed.slice(0, end.index));
      else reject(new Error(`${command}\nended with ${end[1]}.\n${this.#printed}${this.#errors}`));
    };
    void this.#ended.then(() => reject(new Error(`The shell ended.\n${this.#printed}${this.#errors}`)));
    this.#child.stdin?.write(`${command}\nprintf '\\n<end %d>\\n' "$?"\n`);
    return promise;
  }

  async end(): Promise<void> {
    this.#child.stdin?.end();
    await this.#ended;
  }
}

/** Returns the code blocks of a page, without the indentation of lists, and without those marked `no-run`. */
export function blocksOf(markdown: string): Block[] {
  return [...markdown.matchAll(/^( *)```(\w*)( no-run)?\n(.*?)^ *```$/gms)]
    .filter(([, , , noRun]) => noRun === undefined)
    .map(([, indent = '', language = '', , text = '']) => ({
      language,
      text: text.replaceAll(new RegExp(`^${indent}`, 'gm'), ''),
    }));
}

/**
 * Blocks that no test runs, by page and language: they install something, or signal the reader's own server.
 * `test/unit/docs-commands.test.ts` checks the names in them against the code.
 */
export const CHECKED_BLOCKS: readonly string[] = [
  'engines/sqlite.md sh',
  'get-started/first-worker.md sh',
  'operate/alerts.md yaml',
  'operate/kubernetes.md sh yaml',
  'operate/run.md sh',
  'reference/configuration.md sh',
  'sdk/python.md sh',
];

/** Whether one of the keys, each a page or a folder with languages, covers this block. */
export function isListed(keys: readonly string[], page: string, language: string): boolean {
  return keys.some((key) => {
    const [where = '', ...languages] = key.split(' ');
    return page.startsWith(where) && languages.includes(language);
  });
}

/** Splits a block into commands: a line that a shell would ask to continue is joined with the next. */
export function commandsOf(text: string): string[] {
  const commands: string[] = [];
  let command = '';
  for (const line of text.trimEnd().split('\n')) {
    command += command === '' ? line : `\n${line}`;
    if (line.endsWith('\\') || spawnSync('sh', ['-n', '-c', command]).status !== 0) continue;
    commands.push(command);
    command = '';
  }
  assert.equal(command, '', 'the last command is complete');
  return commands;
}
