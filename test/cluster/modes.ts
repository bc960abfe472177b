import { PostgresServer } from '../support/postgres-server.ts';
import { startCluster, startRedis } from '../support/redis-servers.ts';

/** What several nodes share. */
export interface SharedEngine {
  readonly url: string;
  stop(): Promise<void>;
}

interface Mode {
  readonly name: string;
  start(): Promise<SharedEngine>;
}

/** The engines that nodes can share. The only such list: every suite of several nodes goes through it. */
export const MODES: readonly Mode[] = [
  { name: 'Redis', start: () => startRedis() },
  { name: 'a Redis cluster', start: () => startCluster() },
  {
    name: 'PostgreSQL',
    start: async () => {
      const server = await PostgresServer.start();
      return { url: server.url(), stop: () => server.stop('fast') };
    },
  },
];
