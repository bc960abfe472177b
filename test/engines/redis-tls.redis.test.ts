import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import type { Engine } from '../../src/engine/engine.ts';
import { RedisConnection } from '../../src/engines/redis/client/connection.ts';
import { readSettings } from '../../src/engines/redis/settings.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';
import { plain } from '../support/broker.ts';
import { FakeClock } from '../support/clock.ts';
import { bodyTexts, newElements } from '../support/elements.ts';
import { freePort } from '../support/free-port.ts';
import { type RedisServer, startRedis } from '../support/redis-servers.ts';
import { Folder } from '../system/program.ts';
import { passTo } from './fake-time.ts';
import { redisEngine } from './redis.ts';

const NAMESPACES = [plain('plain')];
const POP = { group: '', count: 10, leaseMs: null };

describe('Redis over TLS, with a certificate for localhost', () => {
  const folder = mkdtempSync(join(tmpdir(), 'quayside-tls-'));
  const ca = join(folder, 'cert.pem');
  let server: RedisServer;
  let port: number;

  before(async () => {
    const key = join(folder, 'key.pem');
    const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost'];
    const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1'];
    const files = ['-keyout', key, '-out', ca];
    execFileSync('openssl', ['req', '-x509', '-nodes', '-days', '1', ...curve, ...files, ...names], {
      stdio: 'ignore',
    });
    port = await freePort();
    const pem = ['--tls-cert-file', ca, '--tls-key-file', key, '--tls-ca-cert-file', ca];
    server = await startRedis('--tls-port', String(port), '--tls-auth-clients', 'no', ...pem);
  });
  after(async () => {
    await server.stop();
    rmSync(folder, { recursive: true });
  });

  it('is reached only if the certificate is trusted and has the expected name', async () => {
    const start = async (settings: Record<string, string>): Promise<Engine> => {
      const url = `rediss://127.0.0.1:${port}`;
      const engine = redisEngine({ url, namespaces: NAMESPACES, clock: null, settings });
      await engine.start();
      return engine;
    };
    await assert.rejects(
      start({}),
      /self-signed certificate; name the authority's PEM file by ca=FILE in the URL, or install the authority on this system$/,
    );
    await assert.rejects(
      start({ ca, servername: 'other.test' }),
      /other\.test.*; use the host name of the certificate in the URL, or give that name by servername=NAME$/,
    );
    const engine = await start({ ca, servername: 'localhost' });
    const queue = { ns: 'plain', name: 'secret' };
    await engine.storage.insert(queue, newElements('over TLS'));
    assert.deepEqual(bodyTexts((await engine.storage.take(queue, POP)).deliveries), ['over TLS']);
    await engine.stop();
  });

  it('is reached with a system-wide authority, and with a path relative to the configuration file', async () => {
    const folders = await Folder.create();
    mkdirSync(folders.file('etc'));
    copyFileSync(ca, folders.file('etc/authority.pem'));
    const url = `rediss://localhost:${port}`;
    try {
      for (const [redis, env] of [
        [url, { SSL_CERT_FILE: ca }],
        [`${url}?ca=authority.pem`, {}],
      ] as const) {
        const config = { http: { users: { u: 'p' } }, namespaces: { N: { url: redis } } };
        await folders.write('etc/q.json', config);
        const program = await folders.serve(['--config', 'etc/q.json'], { env });
        assert.equal(await program.stop(), 0);
      }
    } finally {
      await folders.dispose();
    }
  });

  it('fails with a hint if only one side uses TLS', async () => {
    const plainServer = await startRedis();
    const start = (url: string, ownClock: Clock): Promise<void> =>
      redisEngine({ url, namespaces: NAMESPACES, clock: null, ownClock }).start();
    try {
      // A server without TLS waits for the end of a line and does not reply.
      const clock = new FakeClock();
      await assert.rejects(
        passTo(clock, start(`rediss://localhost:${plainServer.port}`, clock)),
        /; if this port does not use TLS, write redis:/,
      );
      await assert.rejects(
        start(`redis://localhost:${port}`, systemClock),
        /; if this port expects TLS, write rediss: for redis:, or else check maxclients of Redis$/,
      );
    } finally {
      await plainServer.stop();
    }
  });

  it('is checked against the name of the host itself, whichever host comes first in the URL', async () => {
    const reach = async (url: string, host: string): Promise<void> => {
      const { login } = readSettings({
        url,
        dataDir: '',
        namespaces: [],
        clock: systemClock,
        dedupWindowMs: 1,
        settings: { ca },
        log: { info: () => {}, warn: () => {} },
      });
      const connection = new RedisConnection({
        clock: systemClock,
        login,
        locate: async () => ({ host, port }),
        setUp: async () => void (await connection.send('PING', [])),
      });
      await connection.ready.finally(() => connection.close());
    };
    const at = `localhost:${port}`;
    await reach(`rediss://other.test,${at}`, 'localhost');
    await assert.rejects(reach(`rediss://${at},127.0.0.1`, '127.0.0.1'), /IP: 127\.0\.0\.1/);
    // A host that is not in the URL, as a cluster or a Sentinel may announce it.
    await reach(`rediss://${at},other.test`, '127.0.0.1');
    await assert.rejects(reach(`rediss://other.test,${at}`, '127.0.0.1'), /other\.test/);
  });
});
