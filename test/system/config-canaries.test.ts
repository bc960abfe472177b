import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir } from 'node:fs/promises';
import { after, before, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { hashPassword } from '../../src/access/password.ts';
import { QueueClient } from '../support/http-client.ts';
import { Folder, type Program } from './program.ts';

const run = promisify(execFile);

/**
 * Secrets, each planted where a leak is possible. Bodies and element headers are part of responses, but never of logs.
 */
const CANARIES = Array.from({ length: 12 }, (_, i) => `Canary${String(i + 1).padStart(2, '0')}Canary`);
const [
  PLAIN_PASSWORD = '',
  ENV_PASSWORD = '',
  FILE_PASSWORD = '',
  HASHED_PASSWORD = '',
  WRONG_PASSWORD = '',
  PASSWORD_AS_NAME = '',
  BEARER_TOKEN = '',
  URL_KEY = '',
  RELOADED_URL = '',
  RELOADED_PASSWORD = '',
  BODY = '',
  ELEMENT_HEADER = '',
] = CANARIES;

describe('Twelve planted secrets', () => {
  let folder: Folder;
  let program: Program;
  let hash: string;
  const answers: string[] = [];
  const env: Record<string, string> = {
    QUAYSIDE_HTTP__USERS__env__PASSWORD: ENV_PASSWORD,
    QUAYSIDE_HTTP__USERS__file__PASSWORD_FILE: 'secret',
    QUAYSIDE_LOG__LEVEL: 'debug',
    QUAYSIDE_LOG__ACCESS: 'true',
  };

  before(async () => {
    folder = await Folder.create();
    hash = await hashPassword(HASHED_PASSWORD);
    await folder.write('secret', `${FILE_PASSWORD}\n`);
    await mkdir(folder.file('keys'));
    // A parameter of a sqlite URL is part of the file's name, but is masked nevertheless.
    await folder.write('q.json', config({ plain: PLAIN_PASSWORD, hashed: { password: hash } }));
    program = await folder.serve(['--config', 'q.json'], { env });
    await call(`plain:${PLAIN_PASSWORD}`);
    await call(`env:${ENV_PASSWORD}`);
    await call(`file:${FILE_PASSWORD}`);
    await call(`hashed:${HASHED_PASSWORD}`);
    await call(`plain:${WRONG_PASSWORD}`);
    await call(`${PASSWORD_AS_NAME}:x`);
    await callWith(`Bearer ${BEARER_TOKEN}`);
    await reload(
      config({ plain: RELOADED_PASSWORD }, 'redis://u:RELOADED@h'.replace('RELOADED', RELOADED_URL)),
    );
    await reload('http: { users: { x: @'.replace('@', RELOADED_PASSWORD));
    assert.equal(await program.stop(), 0);
  });

  after(() => folder.dispose());

  it('do not occur in responses', () => {
    assert.ok(answers.length > 40);
    for (const canary of CANARIES) {
      if (canary === BODY || canary === ELEMENT_HEADER) continue;
      assert.deepEqual(
        answers.filter((answer) => answer.includes(canary)),
        [],
      );
    }
    assert.ok(!answers.some((answer) => answer.includes(hash)));
  });

  it('do not occur in the log or the output', async () => {
    await program.untilLogged((lines) => lines.some(({ event }) => event === 'login-failed'));
    for (const text of [program.stderr, program.stdout]) {
      for (const canary of [...CANARIES, hash]) assert.ok(!text.includes(canary), `${canary}: ${text}`);
      for (const canary of CANARIES) {
        const encoded = Buffer.from(canary).toString('base64').slice(0, 12);
        assert.ok(!text.includes(encoded), text);
      }
    }
  });

  it('do not occur in the output of --print-config', async () => {
    await folder.write(
      'q.json',
      config({ plain: PLAIN_PASSWORD, hashed: { password: hash } }, `redis://:${RELOADED_URL}@h`),
    );
    const { stdout, code } = await folder.run(['--config', 'q.json', '--print-config'], { env });
    assert.equal(code, 0);
    assert.match(stdout, /redis:\/\/\*\*\*@h/);
    for (const canary of [...CANARIES, hash]) assert.ok(!stdout.includes(canary), stdout);
  });

  it('do not occur in the command line of the process', async () => {
    const again = await folder.serve([], { env });
    const { stdout } = await run('ps', ['-o', 'args=', '-p', String(again.pid)]);
    await again.stop();
    assert.match(stdout, /main\.[jt]s/);
    for (const canary of CANARIES) assert.ok(!stdout.includes(canary));
  });

  function config(users: object, other = `sqlite:keys/k.db?key=${URL_KEY}`): object {
    return {
      http: { users },
      namespaces: { N: { url: 'sqlite:N.db' }, keys: { url: other } },
    };
  }

  /** Sends valid and invalid requests of all kinds with these credentials. */
  async function call(credentials: string): Promise<void> {
    const client = new QueueClient({ url: program.url, credentials });
    const headers = { 'x-ks-hdr-note': ELEMENT_HEADER };
    const all = [
      await client.insert('N', 'q', BODY, { headers }),
      await client.insert('N', 'q', BODY, { headers, tries: -1 }),
      await client.reserve('N', 'q', { to: 0 }),
      await client.commit('N', 'q', 'nothing'),
      await client.status('N', 'q'),
      await client.status('keys', 'q'),
      await client.consumers('N', 'q'),
      await client.namespaces(),
      await client.namespaces({ query: { array: '1' } }),
      await client.queues('keys', { query: { tree: '1' } }),
      await client.request('GET', '/metrics'),
      await client.request('GET', '/readyz'),
      await client.request('GET', '/openapi.json'),
      await client.request('GET', '/nothing'),
    ];
    client.close();
    answers.push(
      ...all.map(({ reason, rawHeaders, body }) => [reason, ...rawHeaders, body.toString()].join('\n')),
    );
  }

  async function callWith(authorization: string): Promise<void> {
    const client = new QueueClient({ url: program.url, credentials: null });
    const answer = await client.namespaces({ headers: { authorization } });
    client.close();
    answers.push([answer.reason, ...answer.rawHeaders, answer.body.toString()].join('\n'));
  }

  /** Writes a configuration file and reloads it. An invalid one changes nothing and logs an error. */
  async function reload(content: object | string): Promise<void> {
    const before = program.logged().filter(({ event }) => event === 'reload').length;
    await folder.write('q.json', content);
    program.signal('SIGHUP');
    await program.untilLogged((lines) => lines.filter(({ event }) => event === 'reload').length > before);
  }
});

describe('Twelve secrets in URLs of engines that cannot be opened', () => {
  const [SECRET = ''] = CANARIES;
  const URLS = [
    `redis://:${SECRET}/b@127.0.0.1:1`,
    `redis://:a/${SECRET}@127.0.0.1:1`,
    `redis://:${SECRET}?b@127.0.0.1:1`,
    `redis://${SECRET}#b@127.0.0.1:1`,
    `rediss://u:${SECRET}@127.0.0.1:1`,
    `redis://127.0.0.1:1?password=${SECRET}`,
    `redis://127.0.0.1:1?sentinelPassword=x@${SECRET}`,
    `redis:u:${SECRET}@127.0.0.1:1`,
    `postgres://u:${SECRET}/b@127.0.0.1:1/db`,
    `postgres://u:1?${SECRET}@127.0.0.1:1/db`,
    `postgres://u:${SECRET}@127.0.0.1:1,127.0.0.1:2/db`,
    `mongodb://u:${SECRET}@h1,h2/db`,
  ];
  let folder: Folder;

  before(async () => {
    folder = await Folder.create();
  });

  after(() => folder.dispose());

  for (const url of URLS) {
    it(`do not occur in the error message for ${url.replace(SECRET, 'SECRET')}`, async () => {
      const namespaces = { N: { url } };
      await folder.write('q.json', { http: { users: { u: 'p' }, port: 0 }, namespaces });
      const ended = await folder.run(['--config', 'q.json'], { env: { QUAYSIDE_LOG__LEVEL: 'debug' } });
      const isAway = ended.stderr.includes('cannot be opened');
      assert.equal(ended.code, isAway ? 1 : 2);
      assert.match(ended.stderr, /quayside: q\.json: namespaces\.N\.url: /);
      for (const text of [ended.stdout, ended.stderr]) assert.ok(!text.includes(SECRET), text);
    });
  }

  it('do not occur in the output of --print-config', async () => {
    const namespaces = Object.fromEntries(URLS.map((url, i) => [`N${i}`, { url }]));
    await folder.write('q.json', { http: { users: { u: 'p' } }, namespaces });
    const { stdout } = await folder.run(['--config', 'q.json', '--print-config']);
    assert.equal(stdout.match(/^ +url: .*\*\*\*/gm)?.length, URLS.length, stdout);
    assert.ok(!stdout.includes(SECRET), stdout);
  });

  it('do not occur in error messages about a signaller, statistics or an environment variable', async () => {
    const url = URLS[0] ?? '';
    const N = { url: 'sqlite::memory:', signaller: { url }, stats: { url } };
    await folder.write('q.json', { http: { users: { u: 'p' }, port: 0 }, namespaces: { N } });
    for (const env of [{}, { QUAYSIDE_NAMESPACES__N__URL: url }]) {
      const { code, stdout, stderr } = await folder.run(['--config', 'q.json'], { env });
      assert.equal(code, 2);
      assert.match(
        stderr,
        /has an @ after a \/, \? or #, so it is not clear where its password ends\. Percent-encode/,
      );
      assert.ok(!`${stdout}${stderr}`.includes(SECRET));
    }
  });
});
