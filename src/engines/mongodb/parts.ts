import type { EngineLog } from '../../engine/engine.ts';
import type { Clock } from '../../model/clock.ts';
import type { GroupName } from '../../model/element.ts';
import type { QueueKey } from '../../model/names.ts';
import type { DeadLetters } from './dead-letters.ts';
import type { GroupRoom } from './group-room.ts';
import type { Ids, Ops } from './ids.ts';
import type { KnownQueues } from './known-queues.ts';
import type { Leases } from './leases.ts';
import type { Policies } from './policies.ts';
import type { Reaper } from './reaper.ts';
import type { Store } from './store.ts';
import type { Undo } from './undo.ts';

/** What the verbs of the storage share. */
export interface Parts {
  readonly store: Store;
  readonly clock: Clock;
  readonly log: EngineLog;
  readonly ids: Ids;
  readonly ops: Ops;
  readonly known: KnownQueues;
  readonly groupRoom: GroupRoom;
  readonly leases: Leases;
  readonly policies: Policies;
  readonly deadLetters: DeadLetters;
  readonly reaper: Reaper;
  readonly undo: Undo;
  readonly dedupWindowMs: number;
  /** Elements of a queue became eligible by housekeeping. */
  touched(queue: QueueKey): void;
  /** Elements of a queue were moved to the dead-letter queue. */
  died(queue: QueueKey, group: GroupName, count: number): void;
}
