import type { Engine } from '../src/engine/engine.ts';
import { open } from '../src/engines/redis/index.ts';
import { systemClock } from '../src/util/clock.ts';
import { type RedisServer, redisCli } from '../test/support/redis-servers.ts';
import { NAMESPACE } from './quayside.ts';

/** Opens only the Redis engine, on the keys that a server with the bench's namespace would use. */
export async function openRedisEngine(url: string): Promise<Engine> {
  const engine = open({
    url,
    dataDir: '',
    namespaces: [{ name: NAMESPACE, groups: null, deadLetter: null, retentionMs: null }],
    clock: systemClock,
    dedupWindowMs: 24 * 3600 * 1000,
    settings: {},
    log: { info: () => {}, warn: (fields, message) => console.warn(message, fields) },
  });
  await engine.start();
  return engine;
}

/** CPU time used by a Redis server, µs. */
export function redisCpu({ port }: RedisServer): number {
  const info = redisCli(port, 'INFO', 'cpu');
  const seconds = (name: string): number => Number(new RegExp(`${name}:([\\d.]+)`).exec(info)?.[1]);
  return (seconds('used_cpu_sys') + seconds('used_cpu_user')) * 1e6;
}
