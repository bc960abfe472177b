import type { DefinitionKind, Definitions } from '../../src/engine/definitions.ts';
import { DefinitionsCache } from '../../src/engine/definitions-cache.ts';
import { type Clock, systemClock } from '../../src/util/clock.ts';

/** A cache of definitions as in a node; records what it read and failed to read. */
export interface Followed {
  readonly cache: DefinitionsCache;
  /** Keys in the order in which they were read; deleted ones have the prefix `-`. */
  readonly read: string[];
  readonly failures: unknown[];
}

export function followDefinitions(
  definitions: Definitions,
  clock: Clock = systemClock,
  kind: DefinitionKind = 'queue',
): Followed {
  const read: string[] = [];
  const failures: unknown[] = [];
  const cache = new DefinitionsCache({
    definitions,
    kind,
    clock,
    onRead: (key, definition) => read.push(definition === null ? `-${key}` : key),
    onFailedRead: (_, error) => failures.push(error),
  });
  cache.start();
  return { cache, read, failures };
}
