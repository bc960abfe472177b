import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { stat, writeFile } from 'node:fs/promises';
import { request } from 'node:http';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { promisify } from 'node:util';
import { Folder, type Program } from './program.ts';

const run = promisify(execFile);
const skip = process.platform === 'win32' && 'Windows has no Unix sockets';

describe('A Unix socket as http.host', { skip }, () => {
  let folder: Folder;
  let path: string;

  beforeEach(async () => {
    folder = await Folder.create({ ownProcesses: false });
    path = folder.file('quayside.sock');
    const http = { host: path, users: { ann: 'ann' }, trustedProxies: ['unix:'] };
    await folder.write('q.json', { http, namespaces: { N: { url: 'sqlite::memory:' } } });
  });

  afterEach(() => folder.dispose());

  it('serves HTTP to its owner and group, and is removed at the stop', async () => {
    const program = await folder.serve(['--config', 'q.json'], { ownProcess: true });
    assert.match(program.stdout, new RegExp(`listens on unix:${path}\n`));
    assert.equal((await stat(path)).mode & 0o777, 0o660);
    assert.equal(await statusOver(path, 'ann:ann'), 200);
    assert.equal(await statusOver(path, 'ann:wrong', '198.51.100.7'), 401);
    await program.untilLogged((lines) => lines.some(({ event }) => event === 'login-failed'));
    assert.equal(program.logged().find(({ event }) => event === 'login-failed')?.address, '198.51.100.7');
    assert.equal(await program.stop(), 0);
    await assert.rejects(stat(path), { code: 'ENOENT' });
  });

  it('left by a crash is replaced', async () => {
    const first = await folder.serve(['--config', 'q.json'], { ownProcess: true });
    await first.kill();
    assert.ok((await stat(path)).isSocket());
    const second = await folder.serve(['--config', 'q.json']);
    assert.equal(await statusOver(path, 'ann:ann'), 200);
    assert.equal(await second.stop(), 0);
  });

  it('in use by another server is rejected, without affecting that server', async () => {
    const first = await folder.serve(['--config', 'q.json'], { ownProcess: true });
    const second = await folder.run(['--config', 'q.json']);
    assert.equal(second.code, 2);
    assert.match(
      second.stderr,
      /http\.host: cannot listen on .*quayside\.sock \(EADDRINUSE\)\. A server listens there: end it/,
    );
    assert.equal(await statusOver(path, 'ann:ann'), 200);
    assert.equal(await first.stop(), 0);
  });

  it('is rejected if another file is in its place or its folder does not exist', async () => {
    await writeFile(path, 'mine');
    assert.match(await refusal(), /\(EEXIST\)\. There is a file that is no socket/);
    assert.equal((await stat(path)).size, 4);
    await folder.write('q.json', { http: { host: folder.file('no/such.sock') } });
    assert.match(await refusal(), /\(EACCES\)\. Name a folder that exists/);
  });

  it('is rejected with TLS and for other protocols than HTTP', async () => {
    await folder.write('q.json', {
      http: { host: path, tls: { cert: 'c', key: 'k' } },
      stomp: { host: path, port: 0 },
    });
    const text = await refusal();
    assert.match(text, /http\.tls: is not for a Unix socket/);
    assert.match(text, /stomp\.host: is a Unix socket, which only HTTP listens on/);
  });

  it('is used in the commands that the first start prints', async () => {
    await folder.write('q.json', { http: { host: path } });
    const program = await folder.serve(['--config', 'q.json']);
    const lines = program.stdout.split('\n').filter((line) => /^(export|curl|JOB=)/.test(line));
    assert.equal(lines.length, 6);
    const { stdout } = await run('sh', ['-c', lines.join('\n')]);
    assert.match(stdout, /\{"hello": "world"\}\{"id":"[^"]+"\}\{\}$/);
    assert.equal(await program.stop(), 0);
  });

  async function refusal(): Promise<string> {
    const program: Program = await folder.run(['--config', 'q.json']);
    assert.equal(program.code, 2);
    return program.stderr;
  }
});

function statusOver(socketPath: string, auth: string, forwardedFor?: string): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const headers = forwardedFor === undefined ? {} : { 'x-forwarded-for': forwardedFor };
  request({ socketPath, path: '/q', auth, headers, agent: false }, (response) => {
    response.resume();
    resolve(response.statusCode ?? 0);
  })
    .on('error', reject)
    .end();
  return promise;
}
