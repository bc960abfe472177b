import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { PassThrough } from 'node:stream';
import { text } from 'node:stream/consumers';
import { describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { parse, stringify } from 'yaml';
import { runProgram } from '../../src/cli/program.ts';
import { loadConfig } from '../../src/config/load.ts';
import { HTTP_DEFAULTS } from '../../src/http/options.ts';
import { parametersOf, routeTable } from '../../src/http/routes/table.ts';
import { type Block, blocksOf, CHECKED_BLOCKS, commandsOf, isListed } from '../support/page-commands.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DOCS = path.join(ROOT, 'docs');
const ROUTES = routeTable({ options: HTTP_DEFAULTS, version: '0' });
const CHART = parse(read('ops/helm/quayside/values.yaml'));
const { scripts } = JSON.parse(read('package.json'));
/** Sources of the clients that read the variables of the environment. */
const CLIENTS = read('src/client/transport.ts') + read('clients/python/src/quayside/protocol.py');

/** Commands of other projects, which are only compared with this list. */
const FOREIGN =
  /^(docker (build|push)|kubectl (create secret generic|rollout status)|mkdir|cd|sleep|npm (init|install|pack)) /;

/** A check for each command, by its first words. The first match counts. */
const CHECKS: readonly (readonly [RegExp, (words: readonly string[]) => unknown])[] = [
  [/^npm start\b/, checkServerCommand],
  [/^npm run /, ([, , script = '']) => assert.ok(script in scripts, `npm run ${script}`)],
  [/^npm pack$/, () => {}],
  [/^curl /, checkCurl],
  [/^kill -\w+ /, ([, , file = '']) => checkPidFile(file)],
  [/^export /, ([, ...pairs]) => checkVariables(pairs)],
  [/^PACKAGE=/, () => {}],
  [/^helm install /, checkHelm],
  [/^pip install /, ([, , folder = '']) => assert.ok(existsSync(path.join(ROOT, folder, 'pyproject.toml')))],
  [FOREIGN, () => {}],
];

interface PageBlock extends Block {
  readonly page: string;
}

describe('Code blocks of docs that no test runs', () => {
  const blocks = readdirSync(DOCS, { recursive: true, encoding: 'utf8' })
    .filter((page) => page.endsWith('.md'))
    .flatMap((page) => blocksOf(read(`docs/${page}`)).map((block): PageBlock => ({ ...block, page })))
    .filter(({ page, language }) => isListed(CHECKED_BLOCKS, page, language));

  it('are listed only for pages that have such blocks', () => {
    for (const key of CHECKED_BLOCKS) {
      const [where, ...languages] = key.split(' ');
      for (const language of languages)
        assert.ok(
          blocks.some((block) => block.page === where && block.language === language),
          `${where} ${language}`,
        );
    }
  });

  for (const { page, language, text: block } of blocks) {
    if (language !== 'sh') continue;
    it(`of ${page} name commands, options, routes and files that exist: ${block.split('\n')[0]}`, async () => {
      for (const line of commandsOf(block)) {
        for (const command of line.split(' && ')) {
          const check = CHECKS.find(([pattern]) => pattern.test(command))?.[1];
          assert.ok(check !== undefined, `no check knows ${command}`);
          await check(wordsOf(command));
        }
      }
    });
  }

  it('of the chart have values that it knows, and a configuration that the server accepts', async () => {
    const [values, ...others] = yamlOf('operate/kubernetes.md').map((text) => parse(text));
    for (const given of [values, ...others]) checkKnown(given, CHART, 'values.yaml');
    const namespaces = Object.entries(values.config.namespaces).map(([name, options]) => [
      name,
      // The Secret has the address.
      { url: 'redis://127.0.0.1', ...(options as object) },
    ]);
    const folder = await mkdtemp(path.join(tmpdir(), 'quayside-docs-'));
    try {
      const file = path.join(folder, 'quayside.yaml');
      await writeFile(file, stringify({ ...values.config, namespaces: Object.fromEntries(namespaces) }));
      const { config } = await loadConfig({ file, env: {}, cwd: folder });
      assert.deepEqual(Object.keys(config.namespaces), Object.keys(values.secrets.urls));
    } finally {
      await rm(folder, { recursive: true });
    }
  });

  it('of Prometheus name existing rule files, and the job of their rules', () => {
    const { rule_files: files, scrape_configs: jobs } = parse(blockOf('operate/alerts.md'));
    for (const file of files) {
      const rules = read(`ops/prometheus/${file}`);
      for (const { job_name: job } of jobs) assert.ok(rules.includes(`job="${job}"`), job);
    }
  });

  function yamlOf(page: string): string[] {
    return blocks.filter((block) => block.page === page && block.language === 'yaml').map(({ text }) => text);
  }

  function blockOf(page: string): string {
    const [text = '', ...others] = yamlOf(page);
    assert.equal(others.length, 0, page);
    return text;
  }
});

function read(file: string): string {
  return readFileSync(path.join(ROOT, file), 'utf8');
}

/** The words of a command, without quotes, redirections and `&`. */
function wordsOf(command: string): string[] {
  return [...command.replace(/ (> \S+|&)$/, '').matchAll(/(?:"[^"]*"|'[^']*'|\S)+/g)].map(([word]) =>
    word.replaceAll(/["']/g, ''),
  );
}

async function checkServerCommand(words: readonly string[]): Promise<void> {
  const args = words.includes('--') ? words.slice(words.indexOf('--') + 1) : [];
  const io = { stdin: new PassThrough(), stdout: new PassThrough(), stderr: new PassThrough(), env: {} };
  const code = await runProgram(args, io, { version: '0', optionsText: () => '', run: async () => 0 });
  io.stderr.end();
  assert.equal(code, 0, `${words.join(' ')}: ${await text(io.stderr)}`);
}

function checkCurl(words: readonly string[]): void {
  const method = words.includes('-X') ? words[words.indexOf('-X') + 1] : 'GET';
  const target = words.find((word) => word.startsWith('$Q/'));
  assert.ok(target !== undefined, words.join(' '));
  const { pathname, searchParams } = new URL(target.slice(2), 'http://server');
  const route = ROUTES.find(
    ({ methods, path: pattern }) =>
      methods.some((one) => one === method) &&
      new RegExp(`^${pattern.replaceAll(/:\w+/g, '[^/]+')}$`).test(pathname),
  );
  assert.ok(route !== undefined, `${method} ${pathname}`);
  const known = parametersOf(route).map(([name]) => name);
  for (const name of searchParams.keys()) assert.ok(known.includes(name), `${pathname}?${name}`);
}

function checkPidFile(word: string): void {
  const [, file = ''] = /^\$\(cat data\/(.+)\)$/.exec(word) ?? [];
  assert.ok(file !== '' && read('src/app/pid-file.ts').includes(`'${file}'`), word);
}

function checkVariables(pairs: readonly string[]): void {
  for (const pair of pairs) {
    const [name = ''] = pair.split('=');
    assert.ok(CLIENTS.includes(name), name);
  }
}

function checkHelm(words: readonly string[]): void {
  assert.ok(existsSync(path.join(ROOT, words[3] ?? '', 'Chart.yaml')), words[3]);
  for (const [i, word] of words.entries()) {
    if (word !== '--set') continue;
    const [keys = '', value = ''] = (words[i + 1] ?? '').split('=');
    const values = keys.split('.').reduceRight<unknown>((inner, key) => ({ [key]: inner }), value);
    checkKnown(values, CHART, '--set');
  }
}

/**
 * Each value must have the name and type of a value of the chart. A map that is empty in the chart may have any names.
 */
function checkKnown(values: unknown, known: unknown, where: string): void {
  assert.equal(typeof values, typeof known, where);
  if (typeof values !== 'object' || values === null || Object.keys(known as object).length === 0) return;
  for (const [name, value] of Object.entries(values)) {
    const own = (known as Record<string, unknown>)[name];
    if (own === undefined && where.endsWith('.users')) continue;
    assert.notEqual(own, undefined, `${where}: ${name}`);
    checkKnown(value, own, `${where}.${name}`);
  }
}
