import type { GroupName } from '../../model/element.ts';
import type { LeaseTokens } from '../../model/lease-token.ts';
import type { QueueKey } from '../../model/names.ts';
import type { DatabaseClock } from './database-clock.ts';
import type { Expirer } from './expire.ts';
import type { Ids } from './ids.ts';
import type { Prober } from './prober.ts';
import type { Registry } from './registry.ts';

/** What operations share. */
export interface Context {
  readonly ids: Ids;
  readonly tokens: LeaseTokens;
  readonly registry: Registry;
  readonly clock: DatabaseClock;
  readonly expirer: Expirer;
  readonly prober: Prober;
  /** How long a dedup key is remembered, ms, as SQL. */
  readonly dedupWindow: string;
  /** Milliseconds from an arbitrary start. */
  readonly monotonic: () => number;
  /** A queue gained eligible elements. */
  readonly onAffected: (queue: QueueKey) => void;
  /** Elements of a group became dead letters. @param to the name of the queue they went to */
  readonly onDied: (queue: QueueKey, group: GroupName, to: string, count: number) => void;
}
