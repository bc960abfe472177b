import type { Definitions } from '../engine/definitions.ts';
import type { NamespacePolicy } from '../engine/engine.ts';
import type { QueueRule } from '../engine/queue-policy.ts';
import type { Signaller } from '../engine/signaller.ts';
import type { Stats } from '../engine/stats.ts';
import type { Storage } from '../engine/storage.ts';
import type { Configured } from './cluster.ts';
import type { OwnOptions } from './queue-options.ts';

/** One namespace as the composition root configured it: policy, limits, the engine's ports, and what records show. */
export interface NamespaceSetup {
  readonly policy: NamespacePolicy;
  /** `<engine>:<variant>`, as in the queue information record: `sqlite:simple`, `redis:stream`. */
  readonly type: string;
  /** The default length of a reservation, ms. */
  readonly leaseMs: number;
  /** Queue options by name pattern. `policy` contains the engine's part as well. Defaults to none. */
  readonly queues?: readonly QueueRule<OwnOptions>[];
  /** New queues beyond this many are rejected. */
  readonly maxQueues: number;
  /** Inserts are rejected while the namespace holds this many elements; null: unlimited. */
  readonly maxElements: number | null;
  /** Inserts are rejected while its store holds this many bytes; null: unlimited. */
  readonly maxBytes: number | null;
  /** How many exchanges may have their source in the namespace. */
  readonly maxExchanges: number;
  /** Options that should be equal on all nodes of the namespace. Nodes publish and compare them. */
  readonly configured: Configured;
  readonly storage: Storage;
  /** Whether the store is a file that only this process uses, so that no other node changes it. Defaults to false. */
  readonly ownsStore?: boolean;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /** The values of `factory` in the queue record. URLs are already masked. */
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
