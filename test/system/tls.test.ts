import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, readFileSync, writeFileSync } from 'node:fs';
import { Agent, request } from 'node:https';
import { after, before, describe, it } from 'node:test';
import { connect, type TLSSocket } from 'node:tls';
import { writeCertificate } from '../support/certificate.ts';
import { Folder, type Program } from './program.ts';

const AUTHORIZATION = `Basic ${Buffer.from('test1:test1').toString('base64')}`;

describe('HTTPS', () => {
  let folder: Folder;
  let program: Program;
  let port: number;

  const write = (name: string): void =>
    writeCertificate({ cert: folder.file(`${name}.cert.pem`), key: folder.file(`${name}.key.pem`) }, name);

  before(async () => {
    folder = await Folder.create();
    write('first');
    copy('first');
    await folder.write('q.json', {
      http: { host: '0.0.0.0', users: { test1: 'test1' }, tls: { cert: 'cert.pem', key: 'key.pem' } },
      namespaces: { N: { url: 'sqlite::memory:' } },
    });
    program = await folder.serve(['--config', 'q.json']);
    port = Number(new URL(program.url).port);
  });

  after(async () => {
    assert.equal(await program.stop(), 0);
    await folder.dispose();
  });

  it('is served to other machines without `insecure`, with the configured certificate', async () => {
    assert.match(program.stdout, /listens on https:\/\/0\.0\.0\.0:\d+/);
    const agent = new Agent({ ca: certificate('first') });
    const answer = await get(agent);
    assert.equal(answer.status, 200);
    assert.equal(answer.body, '["N"]');
    assert.match(answer.headers['strict-transport-security'] ?? '', /max-age/);
    agent.destroy();
  });

  it('warns at the start, and at each reload, of a certificate that expires within 14 days', async () => {
    const warned = (): string[] =>
      program
        .logged()
        .flatMap(({ level, msg }) =>
          level === 'warn' && String(msg).includes(' is valid until ') ? [String(msg)] : [],
        );
    await program.untilLogged(() => warned().length === 1);
    assert.match(
      warned()[0] ?? '',
      /^CN=first in .*cert\.pem is valid until 20.*; renew it, and send SIGHUP/,
    );
    await reloaded();
    await program.untilLogged(() => warned().length === 2);
  });

  it('supports TLS 1.2 and 1.3 and nothing older', async () => {
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const) {
      const socket = await handshake({ minVersion: version, maxVersion: version });
      assert.equal(socket.getProtocol(), version);
      socket.destroy();
    }
    await assert.rejects(
      handshake({ minVersion: 'TLSv1', maxVersion: 'TLSv1.1', ciphers: 'DEFAULT@SECLEVEL=0' }),
    );
  });

  it('responds to a client that closes its sending side after its request', async () => {
    for (const version of ['TLSv1.2', 'TLSv1.3']) {
      const socket = await handshake({
        minVersion: version,
        maxVersion: version,
        allowHalfOpen: true,
      });
      socket.end(
        `PUT /q/N/half HTTP/1.1\r\nHost: a\r\nAuthorization: ${AUTHORIZATION}\r\nContent-Length: 1\r\n\r\na`,
      );
      const chunks: Buffer[] = [];
      for await (const chunk of socket) chunks.push(chunk as Buffer);
      assert.match(Buffer.concat(chunks).toString(), /^HTTP\/1\.1 200 OK\r\n/, version);
    }
  });

  it('does not respond to plain HTTP', async () => {
    await assert.rejects(fetch(`http://127.0.0.1:${port}/livez`));
  });

  it('uses a renewed certificate after SIGHUP, and keeps existing connections', async () => {
    const agent = new Agent({ ca: certificate('first'), keepAlive: true, maxSockets: 1 });
    const before = await get(agent);
    write('second');
    copy('second');
    await reloaded();

    const kept = await get(agent);
    assert.equal(kept.status, 200);
    assert.equal(kept.localPort, before.localPort, 'the same connection');
    agent.destroy();

    const fresh = new Agent({ ca: certificate('second') });
    assert.equal((await get(fresh)).status, 200);
    fresh.destroy();
    const old = new Agent({ ca: certificate('first') });
    await assert.rejects(get(old));
    old.destroy();
  });

  for (const [what, spoil] of [
    ['does not belong to its key', () => copyFileSync(folder.file('first.key.pem'), folder.file('key.pem'))],
    ['is empty, as while it is written', () => writeFileSync(folder.file('cert.pem'), '')],
    ['has an empty key', () => writeFileSync(folder.file('key.pem'), '')],
  ] as const) {
    it(`keeps the old certificate if the new one ${what}`, async () => {
      const before = await fingerprint();
      write('third');
      copy('third');
      spoil();
      const lines = program.logged().length;
      program.signal('SIGHUP');
      await program.untilLogged((all) => all.slice(lines).some(({ event }) => event === 'reload'));
      const reload = program
        .logged()
        .slice(lines)
        .find(({ event }) => event === 'reload');
      assert.equal(reload?.level, 'error');
      assert.equal(await fingerprint(), before);
    });
  }

  async function fingerprint(): Promise<string> {
    const socket = await handshake({});
    const { fingerprint256 } = socket.getPeerCertificate();
    socket.destroy();
    return fingerprint256;
  }

  function certificate(name: string): Buffer {
    return readFileSync(folder.file(`${name}.cert.pem`));
  }

  function copy(name: string): void {
    for (const part of ['cert', 'key']) {
      execFileSync('cp', [folder.file(`${name}.${part}.pem`), folder.file(`${part}.pem`)]);
    }
  }

  async function reloaded(): Promise<void> {
    const lines = program.logged().length;
    program.signal('SIGHUP');
    await program.untilLogged((all) =>
      all.slice(lines).some(({ level, event }) => level === 'info' && event === 'reload'),
    );
  }

  function get(agent: Agent): Promise<TlsAnswer> {
    const { promise, resolve, reject } = Promise.withResolvers<TlsAnswer>();
    const options = { agent, port, host: '127.0.0.1', path: '/q', headers: { authorization: AUTHORIZATION } };
    request(options, (answer) => {
      let body = '';
      const { localPort } = answer.socket;
      answer.setEncoding('utf8').on('data', (text: string) => {
        body += text;
      });
      answer.on('end', () =>
        resolve({
          status: answer.statusCode ?? 0,
          headers: answer.headers as Record<string, string | undefined>,
          body,
          localPort: localPort ?? 0,
        }),
      );
    })
      .on('error', reject)
      .end();
    return promise;
  }

  function handshake(options: object): Promise<TLSSocket> {
    const { promise, resolve, reject } = Promise.withResolvers<TLSSocket>();
    const socket = connect({ port, host: '127.0.0.1', rejectUnauthorized: false, ...options }, () =>
      resolve(socket),
    );
    socket.on('error', reject);
    return promise;
  }
});

interface TlsAnswer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | undefined>>;
  readonly body: string;
  readonly localPort: number;
}
