import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, it } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from '@stomp/stompjs';
import { loadConfig } from '../../src/config/load.ts';
import { needDebian } from '../support/debian.ts';
import { jsonOf, QueueClient } from '../support/http-client.ts';
import {
  type Block,
  blocksOf,
  CHECKED_BLOCKS,
  commandsOf,
  isListed,
  Shell,
} from '../support/page-commands.ts';
import { ServerProcess } from '../support/server-process.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DOCS = path.join(ROOT, 'docs');

/** Languages of blocks with shell commands. In `console`, commands start with `$` and are followed by their output. */
const COMMANDS = ['sh', 'bash', 'console'];
/** Languages of blocks that are not programs: output, and settings of other programs. */
const NO_PROGRAM = ['', 'text'];

/** Blocks that another test reads from the page and runs: page or folder with languages, and the test. */
const ELSEWHERE: Readonly<Record<string, string>> = {
  'get-started/first-worker.md js': 'test/client/docs.test.ts',
  'get-started/ sh yaml': 'test/ci/readme.test.ts',
  'migrate/ js python sh ts yaml': 'test/system/migrate.test.ts',
  'operate/backup.md sh': 'test/system/backup-servers.test.ts',
  'operate/proxies.md caddyfile haproxy nginx yaml': 'test/system/proxies.test.ts',
  'protocols/amqp.md js': 'test/amqp/documents.test.ts',
  'protocols/stomp.md stomp': 'test/stomp/documents.test.ts',
  'sdk/typescript.md ts': 'test/client/docs.test.ts',
  'sdk/python.md python': 'clients/python/tests/test_docs.py',
  'operate/security.md sh': 'test/system/user-commands.test.ts',
  'engines/postgres.md sql': 'test/engines/schema.postgres.test.ts',
};

/** A hash in the format of `hash-password`, which replaces hashes that a page shortens. */
const HASH = `$argon2id$v=19$m=19456,t=2,p=1$${'A'.repeat(22)}$${'B'.repeat(43)}`;

const CONFIG = {
  http: { users: { test1: 'test1' } },
  stomp: { port: 0, webSocket: true },
  namespaces: {
    N: { url: 'sqlite:N.db', deadLetter: { maxTries: 5 } },
    jobs: { url: 'sqlite:jobs.db', deadLetter: { maxTries: 5 } },
    events: { url: 'sqlite:events.db', variant: 'stream', groups: ['billing', 'shipping'] },
    orders: { url: 'sqlite:orders.db' },
    'orders-new': { url: 'sqlite:orders-new.db' },
  },
};

interface Page {
  readonly name: string;
  readonly blocks: readonly Block[];
}

describe('The code blocks of docs', () => {
  const pages: Page[] = readdirSync(DOCS, { recursive: true, encoding: 'utf8' })
    .filter((name) => name.endsWith('.md'))
    .map((name) => ({ name, blocks: blocksOf(readFileSync(path.join(DOCS, name), 'utf8')) }));
  let folder: string;
  let server: ServerProcess;
  let client: QueueClient;

  before(async () => {
    needDebian('curl');
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-snippets-'));
    // An error response or a missing response fails the command.
    await writeFile(path.join(folder, '.curlrc'), 'fail-with-body\nsilent\nshow-error\nmax-time = 60\n');
    // The folder looks like a clone, so that the alias of cli.md works in it.
    for (const part of ['src', 'node_modules', 'package.json'])
      await symlink(path.join(ROOT, part), path.join(folder, part));
    server = await ServerProcess.start({ config: CONFIG });
    client = new QueueClient({ url: server.url });
  });

  after(async () => {
    client?.close();
    await server?.dispose();
    await rm(folder, { recursive: true, force: true });
  });

  it('are each run by a test or checked against the code', () => {
    const isTestedHere = ({ name }: Page, { language }: Block): boolean =>
      COMMANDS.includes(language) ||
      ['json', 'yaml'].includes(language) ||
      (['guides/events.md', 'protocols/stomp.md'].includes(name) && language === 'js');
    const unknown = pages.flatMap((page) =>
      page.blocks
        .filter((block) => !isTestedHere(page, block) && !NO_PROGRAM.includes(block.language))
        .filter((block) => !isElsewhere(page, block))
        .map(({ language }) => `${page.name}: ${language}`),
    );
    assert.deepEqual(unknown, []);
    const unread = Object.entries(ELSEWHERE).filter(([key, test]) => {
      // A test contains the path of the page, or of its folder.
      const [where = ''] = key.split(' ');
      const source = readFileSync(path.join(ROOT, test), 'utf8').replaceAll('" / "', '/');
      return !source.includes(`docs/${where}`);
    });
    assert.deepEqual(unread, []);
  });

  it('in YAML are valid configurations', async () => {
    let loaded = 0;
    for (const page of pages) {
      for (const block of page.blocks) {
        if (block.language !== 'yaml' || isElsewhere(page, block)) continue;
        const text = block.text.replaceAll(/\$argon2id\$[^']*…/g, () => HASH);
        const file = path.join(folder, 'quayside.yaml');
        // Some blocks contain only entries of the map of namespaces.
        await writeFile(file, /^\s/.test(text) ? `namespaces:\n${text}` : text);
        await loadConfig({ file, env: {}, cwd: folder }).catch((error: Error) =>
          assert.fail(`${page.name}: ${error.message}\n${text}`),
        );
        loaded += 1;
      }
    }
    assert.ok(loaded >= 12, `${loaded}`);
  });

  it('in JSON are valid, and the exchange of guides/exchanges.md can be created', async () => {
    for (const { name, blocks } of pages) {
      for (const { language, text } of blocks) {
        if (language !== 'json') continue;
        const value: unknown = JSON.parse(text);
        if (name !== 'guides/exchanges.md') continue;
        const created = await client.request('PUT', '/x/page', { body: JSON.stringify(value) });
        assert.equal(created.status, 201, created.body.toString());
      }
    }
  });

  it('in JavaScript of protocols/stomp.md receive an element and acknowledge it', async () => {
    await insert('N', 'for-stomp');
    const { promise, resolve } = Promise.withResolvers<string>();
    const program = javaScriptOf('protocols/stomp.md')
      .replace(/^import .*\n/, '')
      .replace('127.0.0.1:3444', new URL(server.url).host)
      .replace("login: 'admin', passcode: 'PASSWORD'", "login: 'test1', passcode: 'test1'")
      .replace('/q/N/orders', '/q/N/for-stomp');
    const run = new Function('Client', 'console', `${program}\nreturn client;`);
    const stomp: Client = run(Client, { log: resolve });
    assert.equal(await promise, 'one');
    await stomp.deactivate();
    const status = await client.request('GET', '/q/N/for-stomp/status');
    assert.equal(jsonOf<{ stats: { commit: number } }>(status).stats.commit, 1);
  });

  it('in JavaScript of guides/events.md count the queues of the server from its events', async () => {
    await insert('N', 'counted');
    const { promise, resolve } = Promise.withResolvers<string>();
    const listeners = new Map<string, (event: { data: string }) => void>();
    let query = '';
    class Source {
      constructor(address: string) {
        [, query = ''] = address.split('?');
      }
      addEventListener(event: string, listener: (event: { data: string }) => void): void {
        listeners.set(event, listener);
      }
    }
    new Function('EventSource', 'console', javaScriptOf('guides/events.md'))(Source, { log: resolve });
    const { body } = await fetch(`${server.url}/events?${query}`, {
      headers: { authorization: `Basic ${btoa('test1:test1')}` },
    });
    let text = '';
    for await (const chunk of body ?? []) {
      text += Buffer.from(chunk).toString();
      if (/^event: complete\ndata: .*\n\n/m.test(text)) break;
    }
    for (const [, event = '', data = ''] of text.matchAll(/^event: (\w+)\ndata: (.*)$/gm))
      listeners.get(event)?.({ data });
    assert.match(await promise, /^[1-9]\d* queues$/);
  });

  /** What must exist before the commands of a page run. */
  const PREPARE: Readonly<Record<string, () => Promise<unknown>>> = {
    'guides/export.md': () => insert('N', 'orders'),
    'guides/batches.md': async () => {
      await insert('N', 'urgent');
      await writeFile(path.join(folder, 'logo.png'), Buffer.from([0x89, 0x50, 0x4e, 0x47, 0]));
    },
  };

  for (const page of pages) {
    const { name } = page;
    const steps = page.blocks.filter((block) => !isElsewhere(page, block)).flatMap(stepsOf);
    if (steps.length === 0) continue;
    it(`of ${name} are commands that succeed and print what the page shows`, async () => {
      await PREPARE[name]?.();
      const shell = new Shell(folder, {
        PATH: '/usr/bin:/bin',
        HOME: folder,
        U: 'test1:test1',
        Q: server.url,
        QUAYSIDE_URL: server.url,
      });
      try {
        for (const { command, prints } of steps) {
          const printed = await shell.run(await adapted(command));
          if (prints !== '') assert.match(printed, patternOf(prints), command);
        }
      } finally {
        await shell.end();
      }
    });
  }

  function javaScriptOf(name: string): string {
    const blocks = pages.find((page) => page.name === name)?.blocks ?? [];
    return blocks.find(({ language }) => language === 'js')?.text ?? assert.fail(name);
  }

  function insert(namespace: string, queue: string, body = 'one'): Promise<unknown> {
    return client.request('PUT', `/q/${namespace}/${queue}`, { body });
  }

  /** The command with the address, the user and the ids of the page replaced by those of this server. */
  async function adapted(command: string): Promise<string> {
    let text = command
      .replaceAll(/http:\/\/(localhost|127\.0\.0\.1):3444|https:\/\/jobs\.example/g, server.url)
      .replaceAll(/admin:(PASSWORD|secret)/g, 'test1:test1')
      .replaceAll('USER=admin QUAYSIDE_PASSWORD=PASSWORD', 'USER=test1 QUAYSIDE_PASSWORD=test1');
    // A stream of events does not end.
    if (/^curl -N/.test(text)) text += ' | head -n 9';
    for (const id of new Set(text.match(/\bID\d\b/g))) {
      await insert('N', 'mails');
      const reserved = await client.request('GET', '/q/N/mails?reserve=1&to=0');
      text = text.replaceAll(id, String(reserved.headers['x-ks-id']));
    }
    return text;
  }
});

interface Step {
  readonly command: string;
  readonly prints: string;
}

/** The commands of a block, each with the output that the page shows. */
function stepsOf({ language, text }: Block): Step[] {
  if (!COMMANDS.includes(language)) return [];
  if (language !== 'console') return commandsOf(text).map((command) => ({ command, prints: '' }));
  return text
    .split(/^\$ /m)
    .filter((part) => part !== '')
    .map((part) => {
      const lines = part.trimEnd().split('\n');
      const [, end] = /<<'(\w+)'/.exec(part) ?? [];
      const count = end === undefined ? lengthOfFirst(lines) : lines.indexOf(end) + 1;
      return { command: lines.slice(0, count).join('\n'), prints: lines.slice(count).join('\n') };
    });
}

/** The number of lines of the first command. */
function lengthOfFirst(lines: readonly string[]): number {
  for (let count = 1; count < lines.length; count++) {
    try {
      commandsOf(lines.slice(0, count).join('\n'));
      return count;
    } catch {
      // The command continues on the next line.
    }
  }
  return lines.length;
}

/** A pattern for the output that a page shows: `…`, ids, tokens and timestamps may differ. */
function patternOf(text: string): RegExp {
  const escaped = text.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&');
  return new RegExp(
    escaped
      .replaceAll(/\s*…\s*/g, '[^]*')
      .replaceAll(/\b(ID|TOKEN)\d\b/g, '[\\w.:-]+')
      .replaceAll(/\d{4}-\d\d-\d\dT[\d:]+\\\.\d{3}Z/g, '[\\dT:.Z-]+')
      .replaceAll(/\n\s*/g, '\\s*'),
  );
}

function isElsewhere({ name }: Page, { language }: Block): boolean {
  return isListed(Object.keys(ELSEWHERE), name, language) || isListed(CHECKED_BLOCKS, name, language);
}
