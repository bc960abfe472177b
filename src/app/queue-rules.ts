import { type OwnOptions, RETRY_DEFAULTS } from '../broker/queue-options.ts';
import type { NamespaceConfig, QueueConfig } from '../config/options.ts';
import type { QueueRule } from '../engine/queue-policy.ts';
import type { RetryDelay } from '../engine/storage.ts';

/** The options of queues by patterns that a namespace is configured with. */
export function queueRulesOf({ queues = {} }: NamespaceConfig): QueueRule<OwnOptions>[] {
  return Object.entries(queues).map(([pattern, config]) => ({ pattern, options: ownOptionsOf(config) }));
}

function ownOptionsOf({
  lease,
  deadLetter,
  retryDelay,
  retention,
  ttl,
  maxElements,
}: QueueConfig): OwnOptions {
  return {
    ...(lease !== undefined && { leaseMs: msOf(lease) }),
    ...(deadLetter !== undefined && { deadLetter }),
    ...(retryDelay !== undefined && { retryDelay: retryDelayOf(retryDelay) }),
    ...(retention !== undefined && { retentionMs: msOf(retention) }),
    ...(ttl !== undefined && { ttlMs: msOf(ttl) }),
    ...(maxElements !== undefined && { maxElements }),
  };
}

export function retryDelayOf({
  first,
  factor,
  max = Math.max(RETRY_DEFAULTS.max, first),
  jitter,
}: NonNullable<NamespaceConfig['retryDelay']>): RetryDelay {
  return { firstMs: msOf(first), factor, maxMs: msOf(max), jitter };
}

function msOf(seconds: number): number {
  return Math.max(1, Math.round(seconds * 1000));
}
