import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { ServerInProcess } from '../support/server-in-process.ts';
import { linkClient } from '../support/source-package.ts';
import { clientConfig } from './server.ts';

const run = promisify(execFile);
const PROJECT = fileURLToPath(new URL('../..', import.meta.url));
const CLIENT = path.join(PROJECT, 'src/client');
const PAGES = ['docs/sdk/typescript.md', 'docs/get-started/first-worker.md'];
/**
 * A program, and what it prints if a `text` block follows. A block marked `no-run`, which needs another package, does
 * not match.
 */
const EXAMPLE = /```(ts|js)\n([\s\S]*?)```(?:\n\n(?:`node .*\n\n)?```text\n([\s\S]*?)```)?/g;

/** Types that are visible to programs. */
const PUBLIC =
  /^(?!Span).*Options$|Events$|Result$|^(Element|Reservation|QueueStatus|BrowsedElement|BrowsedHolder|RawResponse)$/;

/** Printed after each example. */
const END = 'end of example';

describe('The examples of the pages about the TypeScript SDK', () => {
  let server: ServerInProcess;
  let folder: string;
  const examples: { file: string; prints: string }[] = [];
  before(async () => {
    server = await ServerInProcess.start({ config: clientConfig('sqlite::memory:') });
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-sdk-'));
    await mkdir(path.join(folder, 'node_modules/@types'), { recursive: true });
    await linkClient(folder);
    await symlink(
      path.join(PROJECT, 'node_modules/@types/node'),
      path.join(folder, 'node_modules/@types/node'),
    );
    await writeFile(path.join(folder, 'package.json'), '{"type": "module"}');
    const config = { extends: path.join(PROJECT, 'tsconfig.json'), include: ['*.ts'], exclude: [] };
    await writeFile(path.join(folder, 'tsconfig.json'), JSON.stringify(config));
    for (const name of PAGES) {
      const page = await readFile(path.join(PROJECT, name), 'utf8');
      for (const [, language, code = '', prints = ''] of page.matchAll(EXAMPLE)) {
        const file = `example-${examples.length + 1}.${language === 'js' ? 'mjs' : 'ts'}`;
        examples.push({ file, prints });
        await writeFile(
          path.join(folder, file),
          code.replace('http://127.0.0.1:3444', server.url).replace(/'admin'|'PASSWORD'/g, "'test1'"),
        );
      }
    }
  });
  after(async () => {
    await server?.dispose();
    await rm(folder, { recursive: true, force: true });
  });

  it('have a page that names each option and each member of results', async () => {
    const page = await readFile(path.join(PROJECT, 'docs/sdk/typescript.md'), 'utf8');
    const missing: string[] = [];
    for (const file of await readdir(CLIENT)) {
      const source = await readFile(path.join(CLIENT, file), 'utf8');
      for (const [, type = '', body = ''] of source.matchAll(
        /^export (?:interface|type) (\w+)[^{}]*\{\n(.*?)^\}/gms,
      )) {
        if (!PUBLIC.test(type)) continue;
        for (const [, member = ''] of body.matchAll(/^ {2}(?:readonly )?(\w+)(?:\?|:|\()/gm))
          if (!new RegExp(`\\b${member}\\b`).test(page)) missing.push(`${type}.${member}`);
      }
    }
    assert.deepEqual(missing, []);
  });

  it('compile', async () => {
    await run(process.execPath, [
      path.join(PROJECT, 'node_modules/typescript/bin/tsc'),
      '--noEmit',
      '-p',
      folder,
    ]);
  });

  it('run one after the other, and print the output that their page shows', async () => {
    assert.ok(examples.length >= 8);
    const env = {
      ...process.env,
      QUAYSIDE_URL: server.url,
      QUAYSIDE_USER: 'test1',
      QUAYSIDE_PASSWORD: 'test1',
    };
    // In one process: a process for each would cost more than all examples.
    const steps = examples.map(({ file }) => `await import('./${file}'); console.log('${END}');`);
    await writeFile(path.join(folder, 'all.mjs'), steps.join('\n'));
    const { stdout } = await run(process.execPath, ['all.mjs'], { cwd: folder, env });
    assert.deepEqual(
      stdout.split(`${END}\n`).slice(0, -1),
      examples.map(({ prints }) => prints),
    );
  });
});

/** A program that is checked strictly, by a compiler that does not know `using`. */
const STRICT_PROGRAM = `
import { type Codec, Quayside, type Queue, type TokenCredentials, Worker } from './declared/client/index.js';

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : never;
const auth: TokenCredentials = { token: 'qs_x' };
declare const codec: Codec<Date>;
const plain = new Quayside({ auth }).queue('N/plain');
const dates = new Quayside({ auth }).queue('N/dates', { codec });
export const same: [Same<typeof plain, Queue<unknown>>, Same<typeof dates, Queue<Date>>] = [true, true];
export const worker = new Worker(dates, (job) => job.data.getTime()).on('committed', (job, ms) => {
  const years: number = job.data.getFullYear() + ms;
  return void years;
});
// @ts-expect-error: it is unknown.
plain.pop().then((element) => element?.data.order);
// @ts-expect-error: it names no queue.
new Quayside().queue('plain');
// @ts-expect-error: no option has this name.
plain.insert(1, { delay: 1 });
`;

describe('The source of the client', () => {
  it('has declarations for strict programs, even if their TypeScript libraries have no disposables', async () => {
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-types-'));
    const compile = async (...args: string[]): Promise<void> => {
      await run(process.execPath, [path.join(PROJECT, 'node_modules/typescript/bin/tsc'), ...args], {
        cwd: folder,
      });
    };
    const emit = ['--noEmit', 'false', '--declaration', '--emitDeclarationOnly', '--rootDir'];
    const declared = path.join(folder, 'declared');
    await compile(
      '-p',
      path.join(PROJECT, 'test/client/web'),
      ...emit,
      path.dirname(CLIENT),
      '--outDir',
      declared,
    );
    await writeFile(path.join(folder, 'program.ts'), STRICT_PROGRAM);
    await writeFile(path.join(folder, 'package.json'), '{"type": "module"}');
    for (const [module, resolution] of [
      ['node16', 'node16'],
      ['esnext', 'bundler'],
    ] as const) {
      const options = {
        lib: 'es2022,dom',
        target: 'es2022',
        types: '',
        module,
        moduleResolution: resolution,
      };
      const flags = ['--strict', '--exactOptionalPropertyTypes', '--skipLibCheck', 'false', '--noEmit'];
      await compile(
        ...flags,
        ...Object.entries(options).flatMap(([name, value]) => [`--${name}`, value]),
        'program.ts',
      );
    }
    await rm(folder, { recursive: true });
  });

  it('uses only APIs of browsers', async () => {
    const project = path.join(PROJECT, 'test/client/web');
    await run(process.execPath, [
      path.join(PROJECT, 'node_modules/typescript/bin/tsc'),
      '--noEmit',
      '-p',
      project,
    ]);
  });
});
