import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { QueueClient } from '../support/http-client.ts';
import { type Block, blocksOf, commandsOf, Shell } from '../support/page-commands.ts';

/**
 * A newcomer's first hour: runs the code blocks of README.md and docs/get-started in order in a fresh clone of the last
 * commit. The server is started with the README's own command. Packages come from npm's cache if possible, so no
 * network is needed after the `npm ci` that installed these tests.
 */
const PROJECT = fileURLToPath(new URL('../..', import.meta.url));
/** Only prevents a hanging test; nothing is measured with it. */
const PATIENCE_MS = 900_000;

/**
 * The npm settings that a newcomer's machine may have. Other variables that `npm test` sets for its children would
 * mislead an npm in another folder.
 */
const NPM_SETTINGS = /^npm_config_(cache|registry|userconfig|globalconfig|cafile|noproxy|https?_proxy)$/i;

describe('README.md and docs/get-started in a fresh clone', () => {
  let folder: string;
  let clone: string;
  let blocks: Block[];
  let firstQueue: Block[];
  let install: Block[];
  let server: Program;
  let shell: Shell;

  before(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-readme-'));
    clone = path.join(folder, 'quayside');
    execFileSync('git', ['clone', '--quiet', PROJECT, clone], { stdio: ['ignore', 'ignore', 'pipe'] });
    const blocksIn = async (page: string): Promise<Block[]> =>
      blocksOf(await readFile(path.join(clone, page), 'utf8'));
    blocks = await blocksIn('README.md');
    firstQueue = await blocksIn('docs/get-started/first-queue.md');
    install = await blocksIn('docs/get-started/install.md');
    server = new Program(textOf(blocks, 'sh', /^npm ci && npm start$/), clone);
    await server.untilPrinted(/address of the server/);
    shell = new Shell(clone, environment());
  });

  after(async () => {
    await shell?.end();
    await server?.stop();
    await rm(folder, { recursive: true, force: true });
  });

  it('have shell blocks that work line by line in any shell: no unquoted URLs', () => {
    // An interactive zsh, the shell of macOS, treats ? as a pattern.
    for (const { language, text } of [...blocks, ...firstQueue, ...install]) {
      if (language !== 'sh') continue;
      assert.doesNotMatch(text.replaceAll(/"[^"]*"|'[^']*'/g, ''), /[?*]/);
    }
  });

  it('pass the lease token in every example of commit, rollback and extend, as all pages of docs do', async () => {
    const pages = (await readdir(path.join(clone, 'docs'), { recursive: true }))
      .filter((name) => name.endsWith('.md'))
      .map((name) => path.join('docs', name))
      // This page shows clients of another server, which has no tokens.
      .filter((name) => name !== 'docs/migrate/keuss-server.md');
    let examples = 0;
    for (const page of ['README.md', ...pages]) {
      const own = blocksOf(await readFile(path.join(clone, page), 'utf8'));
      const settling = own
        .flatMap(({ text }) => text.split('\n'))
        .filter((line) => /\/(commit|rollback|extend|\$\{verb\})\//.test(line));
      for (const line of settling) assert.match(line, /token=|\$JOB\b/, page);
      examples += settling.length;
    }
    assert.ok(examples > 0);
  });

  it('warn at the top of README.md about what costs newcomers elements or hours', async () => {
    const page = await readFile(path.join(clone, 'README.md'), 'utf8');
    const first = page.slice(0, page.indexOf('## A first job')).replaceAll(/\s+/g, ' ');
    for (const said of [
      'An exchange consumes its source',
      'A get is a pop: at most once',
      'commits with the token',
      '`deadLetter: { maxTries: 5 }`',
      'On an insert `delay` is in seconds',
      'On a rollback `delay` is in milliseconds',
      '`to=30000`, in a loop',
      'AMQP 1.0',
      'On Linux (x64, arm64) and Windows (x64)',
    ]) {
      assert.ok(first.includes(said), said);
    }
  });

  it('have a first job that is inserted, reserved and committed', async () => {
    const exported = server.output.split('\n').find((line) => line.startsWith('export '));
    assert.ok(exported !== undefined, server.output);
    await shell.run(exported);
    const credentials = await shell.run('echo "$U"');
    assert.match(credentials, /^admin:[\w-]{24}\n$/);
    await paste(shell, blocks, [
      [
        /^export /,
        async () => assert.equal(await shell.run('echo "$U"'), credentials, 'the password is unchanged'),
      ],
      [/-X PUT .*orders"/, isInsert],
      [/-X PUT .*delay=1"/, isInsert],
      [/^JOB=/, async () => assert.match(await shell.run('echo "$JOB"'), /^\S+\?token=\S+\n$/)],
      [/^cat body$/, (printed) => assert.equal(printed, '{"order": 1}')],
      [/commit\/\$JOB/, (printed) => assert.equal(printed, '{}')],
      [/orders\/status/, (printed) => assert.equal(JSON.parse(printed).stats.commit, 1)],
    ]);
  });

  it('have an SDK worker that commits processed jobs, rolls back failed ones and ends on SIGTERM', async () => {
    const program = textOf(blocks, 'js', /Worker/);
    const failingOnce = program.replace(
      "console.log('working on', job.data);",
      "console.log('working on', job.data); if (job.data === 'fragile' && job.tries === 0) throw new Error('once');",
    );
    assert.notEqual(failingOnce, program);
    await writeFile(path.join(clone, 'worker.mjs'), failingOnce);
    for (const command of commandsOf(textOf(blocks, 'sh', /^npm run build\n/))) await shell.run(command);
    const variables = ['QUAYSIDE_URL', 'QUAYSIDE_USER', 'QUAYSIDE_PASSWORD'];
    const values = (
      await shell.run(`printf '%s\\n' ${variables.map((name) => `"$${name}"`).join(' ')}`)
    ).split('\n');
    const settings = Object.fromEntries(variables.map((name, at) => [name, values[at] ?? '']));
    const worker = new Program(`exec '${process.execPath}' worker.mjs`, clone, settings);
    const insert = `curl -s -u "$U" -X PUT "$Q/q/N/orders" -H 'content-type: application/json' -d`;
    try {
      await worker.untilPrinted(/working on \{ order: 2 \}/);
      isInsert(await shell.run(`${insert} '"fragile"'`));
      await worker.untilPrinted(/working on fragile.*Error: once.*working on fragile/s);
    } finally {
      await worker.stop();
    }
    const { stats } = JSON.parse(await shell.run(`curl -s -u "$U" "$Q/q/N/orders/status"`));
    assert.equal(stats.rollback, 1);
    assert.equal(stats.commit, 3, 'the first job, the second, and the one that failed at first');
  });

  it('have examples of a queue, a stream and an exchange that print what the page says', async () => {
    await paste(shell, firstQueue, [
      [/^export /, () => {}],
      [/-X PUT .*tickets"/, isInsert],
      [/-X PUT .*delay=2"/, isInsert],
      [/-i .*tickets\?to=/, (printed) => hasElement(printed, 'application/json', '{"ticket": 1}')],
      [/-i .*tickets\?to=/, (printed) => hasElement(printed, 'text/plain', 'later')],
      [/tickets\/status/, (printed) => assert.ok(JSON.parse(printed).stats.get >= 2)],
      [/-X PUT .*tickets"/, isInsert],
      [/^JOB=/, async () => assert.match(await shell.run('echo "$JOB"'), /^\S+\?token=\S+\n$/)],
      [/^cat body$/, (printed) => assert.equal(printed, '{"ticket": 2}')],
      [/rollback\/\$JOB/, (printed) => assert.equal(printed, '{}')],
      [/-X PUT .*groups=/, isInsert],
      [/group=mail/, (printed) => assert.equal(printed, 'ann')],
      [/group=audit/, (printed) => assert.equal(printed, 'ann')],
      [/-X PUT .*\/x\/big-orders".*"consumer"/s, (printed) => assert.equal(printed, '')],
      [/-X PUT .*incoming"/, isInsert],
      [/N\/big/, (printed) => assert.equal(printed, '{"amount": 250}')],
      [/N\/all/, (printed) => assert.equal(printed, '{"amount": 250}')],
      [/-X DELETE .*\/x\/big-orders"/, (printed) => assert.equal(printed, '')],
    ]);
  });

  it('have a configuration that starts with a password hash and grants the rights that the page describes', async () => {
    const commands = commandsOf(textOf(install, 'sh', /hash-password/));
    assert.equal(commands.length, 3);
    const [hashPassword = '', printConfig = '', start = ''] = commands;
    const hashed = spawnSync('sh', ['-c', hashPassword], {
      cwd: clone,
      env: environment(),
      input: 'a long enough password\n',
      encoding: 'utf8',
    });
    const [hash = ''] = /^\$argon2id\$\S+$/m.exec(hashed.stdout) ?? [];
    assert.notEqual(hash, '', `${hashed.stdout}${hashed.stderr}`);
    const yaml = textOf(install, 'yaml', /namespaces/).replaceAll('$argon2id$…', () => hash);
    assert.ok(yaml.includes(hash));
    await writeFile(path.join(clone, 'quayside.yaml'), yaml);
    const shown = await shell.run(printConfig);
    assert.match(shown, /maxTries/);
    assert.ok(!shown.includes(hash), 'secrets are masked');

    const administrator = (await shell.run('echo "$U"')).trim();
    await server.stop();
    const configured = new Program(start, clone);
    try {
      await configured.untilPrinted(/listens on \S+/);
      const [, url = ''] = /listens on (\S+)/.exec(configured.output) ?? [];
      assert.equal(await statusOf(url, 'admin:a long enough password', '/q/events'), 200);
      assert.equal(await statusOf(url, 'worker:a long enough password', '/q/N'), 200);
      assert.equal(await statusOf(url, 'worker:a long enough password', '/q/events'), 404);
      assert.equal(await statusOf(url, administrator, '/q/N'), 401);
    } finally {
      await configured.stop();
    }
  });
});

/** A command that keeps running, in its own process group: npm, the shell that npm starts, and the server. */
class Program {
  output = '';
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;
  #onOutput = (): void => {};

  constructor(command: string, cwd: string, more: Readonly<Record<string, string>> = {}) {
    this.#child = spawn('sh', ['-c', command], {
      cwd,
      env: { ...environment(), ...more },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.output += text;
        this.#onOutput();
      });
    }
    this.#ended = once(this.#child, 'close').then(() => this.#onOutput());
  }

  /** Resolves when the output matches. Rejects if the program ends before that. */
  async untilPrinted(pattern: RegExp): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const fail = (why: string): void =>
      reject(new Error(`${why} before it printed ${pattern}.\n${this.output}`));
    const patience = setTimeout(() => fail('Too much time passed'), PATIENCE_MS);
    this.#onOutput = () => {
      if (pattern.test(this.output)) resolve();
      else if (this.#child.exitCode !== null || this.#child.signalCode !== null) fail('The program ended');
    };
    this.#onOutput();
    await promise.finally(() => clearTimeout(patience));
  }

  /** Sends SIGTERM to the whole group, as a closed terminal would. Resolves when all of its processes have ended. */
  async stop(): Promise<void> {
    const { pid, exitCode, signalCode } = this.#child;
    if (pid !== undefined && exitCode === null && signalCode === null) process.kill(-pid, 'SIGTERM');
    await this.#ended;
  }
}

/** A newcomer's environment: PATH without this project's programs, and any free port instead of the default. */
function environment(): Record<string, string> {
  const own = Object.entries(process.env).filter(
    ([name]) =>
      !/^(npm_|node$|node_options$|node_test|quayside_|init_cwd$|U$|Q$)/i.test(name) ||
      NPM_SETTINGS.test(name),
  );
  const folders = (process.env.PATH ?? '').split(path.delimiter);
  return {
    ...(Object.fromEntries(own) as Record<string, string>),
    PATH: folders.filter((name) => !name.includes('node_modules')).join(path.delimiter),
    npm_config_prefer_offline: 'true',
    QUAYSIDE_HTTP__PORT: '0',
  };
}

/** Runs the shell commands of a page in order and checks the output of each. */
async function paste(
  shell: Shell,
  blocks: readonly Block[],
  steps: readonly [command: RegExp, check: (printed: string) => void | Promise<void>][],
): Promise<void> {
  const commands = blocks
    .filter(({ language, text }) => language === 'sh' && !text.startsWith('npm '))
    .flatMap(({ text }) => commandsOf(text));
  for (const [at, command] of commands.entries()) {
    const [pattern, check] = steps[at] ?? [/^$/, () => {}];
    assert.match(command, pattern, `command ${at} of the page is not the one that this test expects`);
    await check(await shell.run(command));
  }
  assert.equal(commands.length, steps.length);
}

/** The content of the only block of that language that matches. */
function textOf(blocks: readonly Block[], language: string, pattern: RegExp): string {
  const found = blocks.filter((block) => block.language === language && pattern.test(block.text.trim()));
  assert.equal(found.length, 1, `README.md has one block of ${language} with ${pattern}`);
  return found[0]?.text ?? '';
}

function isInsert(printed: string): void {
  assert.match(printed, /^\{"id":"[^"]+"\}$/);
}

/** Checks the output of `curl -i` for an element. */
function hasElement(printed: string, contentType: string, body: string): void {
  const [head = '', content] = printed.split('\r\n\r\n');
  assert.match(head, /^HTTP\/1\.1 200 OK\r\n/);
  assert.ok(head.includes(`\r\ncontent-type: ${contentType}\r\n`), head);
  assert.equal(content, body);
}

async function statusOf(url: string, credentials: string, path: string): Promise<number> {
  const client = new QueueClient({ url, credentials });
  const { status } = await client.request('GET', path);
  client.close();
  return status;
}
