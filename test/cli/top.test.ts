import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { PassThrough } from 'node:stream';
import { text } from 'node:stream/consumers';
import { after, before, describe, it, type TestContext } from 'node:test';
import { fileURLToPath } from 'node:url';
import { runProgram } from '../../src/cli/program.ts';
import { Quayside } from '../../src/client/index.ts';
import { Harness } from '../http/harness.ts';
import { NO_SERVER } from './no-server.ts';

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
const ENTER_SCREEN = '\u001b[?1049h';
const LEAVE_SCREEN = '\u001b[?1049l';
/** Each frame starts with this sequence. */
const HOME = '\u001b[H';

/** A simulated terminal in this process. */
class Terminal {
  readonly stdin = Object.assign(new PassThrough(), {
    isTTY: true,
    setRawMode: (isRaw: boolean) => this.rawModes.push(isRaw),
  });
  readonly stdout = Object.assign(new PassThrough(), { isTTY: true, rows: 12 });
  readonly rawModes: boolean[] = [];
  readonly writes: string[] = [];
  #seen = 0;

  constructor() {
    this.stdout.on('data', (chunk: Buffer) => this.writes.push(chunk.toString()));
  }

  /** Resolves with the next frame that matches the pattern. */
  async frame(pattern: RegExp): Promise<string> {
    for (;;) {
      const found = this.writes.slice(this.#seen).findIndex((write) => pattern.test(write));
      if (found !== -1) {
        this.#seen += found + 1;
        return this.writes[this.#seen - 1] ?? '';
      }
      await once(this.stdout, 'data');
    }
  }
}

/** The timeout fails a test whose expected frame is never written. */
describe('quayside top', { timeout: 120_000 }, () => {
  let server: Harness;
  let env: Record<string, string>;
  before(async () => {
    server = await Harness.start({ watches: true });
    const url = `http://127.0.0.1:${server.port}`;
    env = {
      QUAYSIDE_URL: url,
      QUAYSIDE_USER: 'test1',
      QUAYSIDE_PASSWORD: 'test1',
      XDG_CONFIG_HOME: tmpdir(),
    };
    await using client = new Quayside({ url, auth: { user: 'test1', password: 'test1' } });
    await client.queue('N/one').insert(1);
    await client.queue('N/three').insertMany([1, 2, 3]);
    await client.queue('N/two').insertMany([1, 2]);
    await server.passTime(10_000);
    await server.watch.idle();
  });
  after(() => server?.close());

  /** Runs `quayside top` with its output going into a pipe. */
  async function page(...flags: string[]): Promise<{ code: number; stdout: string; stderr: string }> {
    const [stdout, stderr] = [new PassThrough(), new PassThrough()];
    const texts = Promise.all([text(stdout), text(stderr)]);
    const io = { stdin: new PassThrough(), stdout, stderr, env };
    const code = await runProgram(['top', ...flags], io, NO_SERVER);
    stdout.end();
    stderr.end();
    const [written, errors] = await texts;
    return { code, stdout: written, stderr: errors };
  }

  /** The queue names in a frame, from top to bottom. */
  const namesIn = (frame: string): string[] =>
    [...frame.matchAll(/\bN\/(\w+)/g)].map(([, name = '']) => name);

  it('prints one page as JSON and ends if its output is not a terminal', async () => {
    const { code, stdout } = await page('--limit', '2');
    assert.equal(code, 0);
    const { queues, matched, sums } = JSON.parse(stdout);
    assert.deepEqual(
      queues.map(({ queue, size }: { queue: string; size: number }) => [queue, size]),
      [
        ['three', 3],
        ['two', 2],
      ],
    );
    assert.deepEqual([matched, sums.totalSize], [3, 6]);
    const filtered = JSON.parse((await page('--filter', 'depth:<3', '--sort', 'name')).stdout);
    assert.deepEqual(
      filtered.queues.map(({ queue }: { queue: string }) => queue),
      ['one', 'two'],
    );
  });

  it('rejects an unknown sort field and an interval that is too short', async () => {
    const unknown = await page('--sort', 'colour');
    assert.equal(unknown.code, 2);
    assert.match(unknown.stderr, /--sort "colour" is unknown\. Allowed: depth, ready, /);
    assert.equal((await page('--interval', '0')).code, 2);
  });

  it('sorts and filters on key presses, writes each frame in one piece, and restores the terminal', async (t) => {
    const terminal = new Terminal();
    const { stdin, stdout, writes } = terminal;
    // Ends `quayside top` even if the test fails.
    t.after(() => stdin.end());
    const io = { stdin, stdout, stderr: new PassThrough(), env };
    const ended = runProgram(['top', '--interval', '0.1'], io, NO_SERVER);
    const first = await terminal.frame(/3 of 3 queues by depth, highest first/);
    assert.deepEqual(namesIn(first), ['three', 'two', 'one']);
    assert.match(first, /6 ready, 0 scheduled, 0 reserved/);
    assert.deepEqual(terminal.rawModes, [true]);

    stdin.write('r');
    await terminal.frame(/by depth, lowest first/);
    assert.deepEqual(namesIn(await terminal.frame(/N\/one[\s\S]*N\/three/)), ['one', 'two', 'three']);
    stdin.write('rsssssss');
    await terminal.frame(/by name, lowest first/);
    assert.deepEqual(namesIn(await terminal.frame(/N\/one[\s\S]*N\/three/)), ['one', 'three', 'two']);

    stdin.write('/thx\u007f');
    await terminal.frame(/filter: th_/);
    // An arrow key does not add to the filter.
    stdin.write('\u001b[A');
    stdin.write('\r');
    assert.deepEqual(namesIn(await terminal.frame(/1 of 3 queues by name, .*filter: th\b/)), ['three']);
    // An invalid filter shows an error and keeps the table.
    stdin.write('/ colour:1\r');
    const wrong = await terminal.frame(/there is no measure "colour"/);
    assert.deepEqual(namesIn(wrong), ['three']);
    stdin.write('/\u001b');
    stdin.write('q');
    assert.equal(await ended, 0);

    assert.deepEqual(terminal.rawModes, [true, false]);
    assert.ok(writes[0]?.startsWith(ENTER_SCREEN));
    assert.ok(writes.at(-1)?.endsWith(LEAVE_SCREEN));
    for (const frame of writes.slice(1, -1)) {
      assert.ok(frame.startsWith(HOME) && frame.lastIndexOf(HOME) === 0, JSON.stringify(frame));
      assert.equal(frame.split('\r\n').length, stdout.rows);
    }
  });

  /** Runs `quayside top` in a pseudo-terminal of 20 lines and prints the terminal's settings when it has ended. */
  async function inTerminal(t: TestContext, end: (keys: NodeJS.WritableStream, pid: number) => void) {
    const live = `sh -c 'echo pid=$$; exec ${process.execPath} ${MAIN} top'`;
    const command = `stty rows 20 cols 100; ${live}; code=$?; stty -a; exit $code`;
    const script = spawn('script', ['-qec', command, '/dev/null'], { env: { ...process.env, ...env } });
    t.after(() => script.kill());
    let output = '';
    script.stdout.setEncoding('utf8').on('data', (chunk: string) => {
      const isFirst = !output.includes('q quit');
      output += chunk;
      if (isFirst && output.includes('q quit')) {
        end(script.stdin, Number(/pid=(\d+)/.exec(output)?.[1]));
      }
    });
    const [code] = await once(script, 'close');
    return { code, output };
  }

  it('restores the settings of a real terminal, whether a key or a signal ends it', async (t) => {
    const ways = [
      (keys: NodeJS.WritableStream) => keys.write('q'),
      (keys: NodeJS.WritableStream) => keys.write('\u0003'),
      (_: NodeJS.WritableStream, pid: number) => process.kill(pid, 'SIGTERM'),
    ];
    const runs = await Promise.all(ways.map((end) => inTerminal(t, (keys, pid) => void end(keys, pid))));
    for (const { code, output } of runs) {
      assert.equal(code, 0, output);
      const [live = '', settings = ''] = output.split(LEAVE_SCREEN);
      assert.match(live, /QUEUE +READY +SCHEDULED/);
      assert.match(settings, / icanon /);
      assert.match(settings, / echo /);
    }
  });
});
