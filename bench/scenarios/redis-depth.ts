import { startRedis } from '../../test/support/redis-servers.ts';
import { fill } from '../quayside.ts';
import { openRedisEngine } from '../redis.ts';
import { grouped, type Scenario } from '../scenario.ts';
import { DEPTH_QUEUE, depthCosts, type Filled } from './depth.ts';

/** The cost of an insert and a take in a deep queue on Redis compared with a shallow one, each under its own prefix. */
export const redisDepth: Scenario = {
  name: 'redis-depth',
  async run(context) {
    const counts = context.quick ? [20_000, 10_000] : [1_000_000, 10_000];
    const server = await startRedis();
    const filled: Filled[] = [];
    try {
      for (const count of counts) {
        const engine = await openRedisEngine(`${server.url}?prefix=with_${count}`);
        filled.push({ engine, count });
        const from = performance.now();
        await fill(engine, DEPTH_QUEUE, count);
        context.note(`filled ${grouped(count)} at ${grouped((count * 1000) / (performance.now() - from))}/s`);
      }
      const [deep, shallow] = filled;
      if (deep === undefined || shallow === undefined) throw new Error('There is no engine.');
      return await depthCosts(context, deep, shallow);
    } finally {
      for (const { engine } of filled) await engine.stop();
      await server.stop();
    }
  },
};
