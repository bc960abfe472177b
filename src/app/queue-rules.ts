import { type OwnOptions, parseOptions } from '../broker/queue-options.ts';
import type { NamespaceConfig } from '../config/options.ts';
import type { QueueRule } from '../engine/queue-policy.ts';

/** The options of queues by patterns that a namespace is configured with. */
export function queueRulesOf({ queues = {} }: NamespaceConfig): QueueRule<OwnOptions>[] {
  return Object.entries(queues).map(([pattern, config]) => ({ pattern, options: parseOptions(config) }));
}
