import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { gunzipSync, gzipSync } from 'node:zlib';
import { Redis } from 'ioredis';
import pg from 'pg';
import { sharedPostgres } from '../engines/postgres.ts';
import { sharedRedis } from '../engines/redis.ts';
import { withParameter } from '../support/run-servers.ts';

/** The prefix of keys and the schema of these tests, in stores that other tests share. */
const NAME = 'upgrades';

/** A store whose content can be saved to a file and restored from it. */
export interface KeptStore {
  readonly engine: string;
  /** The name of the saved file. */
  readonly file: string;
  /** The URL for the configuration of a namespace. */
  url(): Promise<string>;
  /** Saves the data of a stopped server. */
  keep(file: string, dataDir: string): Promise<void>;
  /** Replaces the store's content by the saved data, before a server starts. */
  bringBack(file: string, dataDir: string): Promise<void>;
  clear(): Promise<void>;
}

const SQLITE: KeptStore = {
  engine: 'sqlite',
  file: 'sqlite.db.gz',
  url: async () => `sqlite:${NAME}.db`,
  async keep(file, dataDir) {
    const database = path.join(dataDir, `${NAME}.db`);
    if (existsSync(`${database}-wal`))
      throw new Error(`${database} has a log: the server did not stop cleanly`);
    await writeFile(file, gzipSync(await readFile(database), { level: 9 }));
  },
  async bringBack(file, dataDir) {
    await mkdir(dataDir, { recursive: true, mode: 0o700 });
    await writeFile(path.join(dataDir, `${NAME}.db`), gunzipSync(await readFile(file)), { mode: 0o600 });
  },
  clear: async () => {},
};

/** A Redis key with its value as `DUMP` returns it, in base64. */
interface KeptKey {
  readonly key: string;
  readonly value: string;
}

const REDIS: KeptStore = {
  engine: 'redis',
  file: 'redis.keys.json',
  url: async () => withParameter(await sharedRedis(), 'prefix', NAME),
  keep: (file) =>
    onRedis(async (redis) => {
      const keys = (await redis.keys(`${NAME}:*`)).sort();
      const kept: KeptKey[] = [];
      for (const key of keys) {
        const value = await redis.dumpBuffer(key);
        if (value !== null) kept.push({ key, value: value.toString('base64') });
      }
      await writeFile(file, `${JSON.stringify(kept, null, 1)}\n`);
    }),
  async bringBack(file) {
    await REDIS.clear();
    const kept = JSON.parse(await readFile(file, 'utf8')) as KeptKey[];
    await onRedis(async (redis) => {
      for (const { key, value } of kept) await redis.restore(key, 0, Buffer.from(value, 'base64'));
    });
  },
  clear: () =>
    onRedis(async (redis) => {
      const keys = await redis.keys(`${NAME}:*`);
      if (keys.length > 0) await redis.del(...keys);
    }),
};

const POSTGRES: KeptStore = {
  engine: 'postgres',
  file: 'postgres.sql',
  url: async () => withParameter(await sharedPostgres(), 'schema', NAME),
  async keep(file) {
    const args = ['--inserts', '--no-owner', '--no-comments', '-n', NAME, await sharedPostgres()];
    const dump = execFileSync('pg_dump', args, { encoding: 'utf8' });
    // Removes psql commands, which newer releases of pg_dump write.
    await writeFile(file, dump.replace(/^\\.*\n/gm, ''));
  },
  async bringBack(file) {
    await POSTGRES.clear();
    const sql = await readFile(file, 'utf8');
    await onPostgres(sql);
  },
  clear: () => onPostgres(`DROP SCHEMA IF EXISTS ${NAME} CASCADE`),
};

export const KEPT_STORES: readonly KeptStore[] = [SQLITE, REDIS, POSTGRES];

async function onRedis(work: (redis: Redis) => Promise<void>): Promise<void> {
  const redis = new Redis(await sharedRedis());
  try {
    await work(redis);
  } finally {
    redis.disconnect();
  }
}

async function onPostgres(sql: string): Promise<void> {
  const client = new pg.Client({ connectionString: await sharedPostgres() });
  await client.connect();
  try {
    await client.query(sql);
  } finally {
    await client.end();
  }
}
