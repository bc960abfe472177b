import assert from 'node:assert/strict';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterEach, beforeEach, describe, it } from 'node:test';
import { runSql } from '../engines/postgres.ts';
import { freePort } from '../support/free-port.ts';
import { type Answer, headerOf, jsonOf, QueueClient } from '../support/http-client.ts';
import { blocksOf, commandsOf, Shell } from '../support/page-commands.ts';
import { PostgresServer } from '../support/postgres-server.ts';
import { redisCli, startRedis } from '../support/redis-servers.ts';
import { ServerInProcess } from '../support/server-in-process.ts';

const PAGE = await readFile(new URL('../../docs/operate/backup.md', import.meta.url), 'utf8');

/** What a client knows of an element that it has reserved. */
interface Reservation {
  readonly id: string;
  readonly token: string;
}

describe('The commands of docs/operate/backup.md', () => {
  let folder: string;
  let server: ServerInProcess | null = null;
  let client: QueueClient | null = null;

  beforeEach(async () => {
    folder = await mkdtemp(path.join(tmpdir(), 'quayside-backup-'));
  });
  afterEach(async () => {
    client?.close();
    await server?.dispose();
    [client, server] = [null, null];
    await rm(folder, { recursive: true, force: true });
  });

  const start = async (url: string): Promise<QueueClient> => {
    const config = { http: { users: { test1: 'test1' } }, namespaces: { N: { url } } };
    server = await ServerInProcess.start({ config });
    client = new QueueClient({ url: server.url });
    return client;
  };

  const stop = async (): Promise<void> => {
    client?.close();
    await server?.dispose();
    [client, server] = [null, null];
  };

  /** The two shell blocks of a section of the page, the backup and the restore, as functions. */
  const shellOf = async (section: string, env: Readonly<Record<string, string>>) => {
    const text = PAGE.split(/^## /m).find((part) => part.startsWith(`${section}\n`)) ?? '';
    const blocks = blocksOf(text).filter(({ language }) => language === 'sh');
    assert.equal(blocks.length, 2, section);
    const shell = new Shell(folder, { PATH: process.env.PATH ?? '', HOME: folder, ...env });
    const run = async (at: number): Promise<void> => {
      for (const command of commandsOf(blocks[at]?.text ?? '')) await shell.run(command);
    };
    return { backUp: () => run(0), restore: () => run(1), end: () => shell.end() };
  };

  const insert = async (body: string): Promise<void> => ok(await client?.insert('N', 'orders', body));

  const reserve = async (): Promise<Reservation> => {
    const answer = await client?.reserve('N', 'orders', { to: 0 });
    ok(answer);
    return {
      id: String(headerOf(answer as Answer, 'x-ks-id')),
      token: String(headerOf(answer as Answer, 'x-ks-lease')),
    };
  };

  /** Reserves an element, and inserts two that wait. */
  const fill = async (): Promise<Reservation> => {
    await insert('held');
    const held = await reserve();
    await insert('first');
    await insert('second');
    return held;
  };

  /** Pops one of the ready elements, reserves the other, and inserts a third. */
  const afterBackup = async (): Promise<Reservation> => {
    ok(await client?.get('N', 'orders', { to: 0 }));
    const lost = await reserve();
    await insert('third');
    return lost;
  };

  /** Checks that the state is that of the backup, as the page promises. */
  const assertRestored = async (held: Reservation, lost: Reservation): Promise<void> => {
    const late = await client?.commit('N', 'orders', lost.id, { token: lost.token });
    assert.equal(late?.status, 409);
    assert.ok(['lease-lost', 'not-reserved'].includes(jsonOf<{ code: string }>(late).code));
    ok(await client?.commit('N', 'orders', held.id, { token: held.token }));
    const bodies: string[] = [];
    for (;;) {
      const answer = await client?.get('N', 'orders', { to: 0 });
      if (answer?.status !== 200) break;
      bodies.push(answer.body.toString());
    }
    assert.deepEqual(bodies, ['first', 'second']);
  };

  it('restore PostgreSQL to the moment of the backup', async () => {
    const postgres = await PostgresServer.start({ settings: { fsync: 'off' } });
    // The setup of docs/engines/postgres.md.
    await runSql(
      postgres,
      "CREATE ROLE quayside LOGIN PASSWORD 'x'; CREATE SCHEMA quayside AUTHORIZATION quayside",
    );
    const url = new URL(postgres.url());
    url.username = 'quayside';
    url.password = 'x';
    const commands = await shellOf('PostgreSQL', { DATABASE_URL: url.href, ADMIN_URL: postgres.url() });
    try {
      await start(url.href);
      const held = await fill();
      await commands.backUp();
      const lost = await afterBackup();
      await stop();
      await commands.restore();
      await start(url.href);
      await assertRestored(held, lost);
    } finally {
      await commands.end();
      await stop();
      postgres.dispose();
    }
  });

  it('restore Redis to the moment of the backup', async () => {
    const redis = await startRedis();
    const port = await freePort();
    let hasStarted = false;
    const commands = await shellOf('Redis', { REDIS_URL: redis.url, REDIS_PORT: String(port) });
    try {
      await start(redis.url);
      const held = await fill();
      await commands.backUp();
      const lost = await afterBackup();
      await stop();
      await redis.stop();
      await commands.restore();
      hasStarted = true;
      assert.match(redisCli(port, 'info', 'persistence'), /aof_enabled:1/);
      await start(`redis://127.0.0.1:${port}`);
      await assertRestored(held, lost);
    } finally {
      await commands.end();
      await stop();
      if (redis.isRunning) await redis.stop();
      if (hasStarted) redisCli(port, 'shutdown', 'nosave');
    }
  });
});

function ok(answer: Answer | undefined): void {
  assert.ok(answer !== undefined && answer.status < 300, `${answer?.status} ${answer?.body}`);
}
