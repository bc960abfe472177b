import type { EngineOptions } from '../../engine/engine.ts';
import type { Executor } from './client/executor.ts';
import type { Topology } from './client/topology.ts';
import type { Keys } from './keys.ts';
import type { Policies } from './policies.ts';
import type { Settings } from './settings.ts';

/** What the parts of one engine share. */
export interface RedisContext extends Pick<EngineOptions, 'clock' | 'log' | 'namespaces' | 'dedupWindowMs'> {
  readonly settings: Settings;
  readonly keys: Keys;
  readonly topology: Topology;
  readonly executor: Executor;
  readonly policies: Policies;
}
