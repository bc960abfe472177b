import { freshSchema, runSql, sharedPostgres } from '../engines/postgres.ts';
import { freshPrefix, sharedCluster, sharedRedis } from '../engines/redis.ts';
import { withParameter } from '../support/run-servers.ts';

/** An engine for several nodes: a prefix or schema of its own on a server of the test run. */
export interface SharedEngine {
  readonly url: string;
  stop(): Promise<void>;
}

interface Mode {
  readonly name: string;
  start(): Promise<SharedEngine>;
}

/** The engines that nodes can share. This is the only such list: every suite with several nodes uses it. */
export const MODES: readonly Mode[] = [
  { name: 'Redis', start: () => startOnRedis(sharedRedis()) },
  { name: 'a Redis cluster', start: () => startOnRedis(sharedCluster()) },
  {
    name: 'PostgreSQL',
    start: async () => {
      const server = await sharedPostgres();
      const schema = freshSchema();
      return {
        url: withParameter(server, 'schema', schema),
        stop: async () => void (await runSql({ url: () => server }, `DROP SCHEMA ${schema} CASCADE`)),
      };
    },
  },
];

async function startOnRedis(server: Promise<string>): Promise<SharedEngine> {
  return { url: withParameter(await server, 'prefix', freshPrefix()), stop: async () => {} };
}
