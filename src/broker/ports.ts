import type { Definitions } from '../engine/definitions.ts';
import type { NamespacePolicy } from '../engine/engine.ts';
import type { QueueRule } from '../engine/queue-policy.ts';
import type { Signaller } from '../engine/signaller.ts';
import type { Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import type { Configured } from './cluster.ts';
import type { OwnOptions } from './queue-options.ts';

/** Where the broker reports what no client is answered with. */
export interface BrokerLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** One namespace as the composition root configured it: its engine's ports and what to show of them. */
export interface NamespaceSetup {
  readonly policy: NamespacePolicy;
  /** `<engine>:<variant>`, as in the queue information record: `sqlite:simple`, `redis:stream`. */
  readonly type: string;
  /** The default length of a reservation, ms. */
  readonly leaseMs: number;
  /** Options of queues by patterns of their names; those for the engine are in `policy` as well. Not given: none. */
  readonly queues?: readonly QueueRule<OwnOptions>[];
  /** New queues beyond this many are rejected. */
  readonly maxQueues: number;
  /** Inserts are rejected while the namespace holds as many elements; null: no bound. */
  readonly maxElements: number | null;
  /** The same for the bytes of its store. */
  readonly maxBytes: number | null;
  /** New exchanges that read from the namespace are rejected beyond this many. */
  readonly maxExchanges: number;
  /** What all nodes that serve the namespace should configure alike: published to the others, and compared. */
  readonly configured: Configured;
  readonly storage: Storage;
  /** Whether the store is a file of this process, so that no other node changes it; not given: no. */
  readonly ownsStore?: boolean;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /** What the record's `factory` shows. URLs are masked already. */
  readonly shown: ShownSetup;
}

interface ShownSetup {
  readonly url: string;
  readonly signaller: {
    readonly type: string;
    readonly url: string;
    readonly channel: string;
  };
  readonly stats: { readonly type: string; readonly url: string; readonly coll: string };
}
