import type { GroupName } from '../model/element.ts';
import type { Clock } from '../util/clock.ts';
import type { Service } from '../util/service.ts';
import type { Definitions } from './definitions.ts';
import type { QueueRule } from './queue-policy.ts';
import type { Signaller } from './signaller.ts';
import type { Stats } from './stats.ts';
import type { DeadLetterPolicy, RetryDelay, Storage } from './storage.ts';

/**
 * An engine opened from a URL: four ports on one store. Several namespaces, and in tests several brokers,
 * may use one engine object; two URLs are two engines.
 *
 * `start` opens the store and brings its schema up to date. If it cannot, it rejects with a message that names the
 * store and says what to do. `stop` flushes and closes.
 */
export interface Engine extends Service {
  /** The first half of a queue's type: `sqlite`, `redis`, … */
  readonly type: string;
  /** As configured, credentials included: for messages, go through `maskUrl`. */
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /**
   * Copies the whole store, as it is at one moment, into a new file while it is used. Returns the file's bytes. An
   * engine without it is backed up by its own server's means.
   * @throws QuaysideError `storage-full`, `storage-unavailable`
   */
  readonly backUp?: (file: string) => Promise<number>;
  /** Whether the store answers now, measured by asking it; rejects with `storage-unavailable` if not. */
  ping(): Promise<void>;
  /** What its files take of a disk of this machine; not given: it has none here. */
  readonly disk?: (() => Promise<DiskUsage>) | undefined;
  /**
   * Reads from its server what its promises need of it, on connections of its own. Needs no `start`, and changes
   * nothing. Rejects as `start` does if the server cannot be used. Not given: there is no server.
   */
  readonly examine?: () => Promise<readonly Finding[]>;
  /**
   * Resolves, once, if the engine finds that it can no longer keep its promises (a failed fsync, a dead
   * worker). From then on every verb is rejected; the process should stop and say why.
   */
  readonly failed: Promise<Error>;
}

/** What a start found in the store of a server is not of this version: no later start of this program can use it. */
export class WrongStore extends Error {}

export interface DiskUsage {
  /** Its files together, in bytes. */
  readonly fileBytes: number;
  /** What the disk has left for this process, in bytes. */
  readonly freeBytes: number;
  /** With less than this left, the disk is nearly full, and inserts are refused. */
  readonly minFreeBytes: number;
}

/** What an engine must know of a namespace to apply its policy inside its own atomic steps. */
export interface NamespacePolicy {
  readonly name: string;
  /** The default groups of a stream namespace; null for plain queues. */
  readonly groups: readonly GroupName[] | null;
  /** Where failed elements go, and at how many tries; null: they wait for ever. */
  readonly deadLetter: DeadLetterPolicy | null;
  /** How long after insertion an element of a stream may stay; null: until its last group finished it. */
  readonly retentionMs: number | null;
  /** How long elements wait after a failed try that names no delay; not given: not at all. */
  readonly retryDelay?: RetryDelay | null;
  /** Options of queues by patterns of their names; see `queue-policy.ts`. */
  readonly queues?: readonly QueueRule[];
  /** How many groups a queue may have in addition to the default ones, see `Storage`; not given: no such bound. */
  readonly maxGroups?: number;
}

/** What every engine module exports as `open`; `app/engines.ts` imports it by the URL's scheme. */
export type OpenEngine = (options: EngineOptions) => Engine;

export interface EngineOptions {
  readonly url: string;
  /** Directory for files that a URL names by a relative path. */
  readonly dataDir: string;
  /** All namespaces that use this engine. */
  readonly namespaces: readonly NamespacePolicy[];
  readonly clock: Clock;
  /** How long a dedup key is remembered, ms. */
  readonly dedupWindowMs: number;
  /** The engine's own settings, as its page in `docs/engines/` lists them. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly log: EngineLog;
}

/** The two levels at which an engine has something to say; a subset of the server's logger. */
export interface EngineLog {
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
}

/** What a check found that an operator asked for. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  /** What was checked: `disk`, or the masked URL of an engine. */
  readonly check: string;
  readonly message: string;
  /** What to do; null: nothing. */
  readonly hint: string | null;
}

/** Further apart than this, moments that clients give are not those that the store sees. */
const MAX_CLOCK_DIFFERENCE_MS = 1_000;

export function finding(
  check: string,
  level: Finding['level'],
  message: string,
  hint: string | null = null,
): Finding {
  return { level, check, message, hint };
}

/** Compares the clock of a store's server with that of this machine, read at the same moment. */
export function clockFinding(check: string, server: number, here: number): Finding {
  const seconds = (Math.abs(server - here) / 1000).toFixed(1);
  if (Math.abs(server - here) <= MAX_CLOCK_DIFFERENCE_MS)
    return finding(check, 'ok', `its clock and that of this machine are ${seconds} s apart`);
  return finding(
    check,
    'warning',
    `its clock is ${seconds} s ${server > here ? 'ahead of' : 'behind'} that of this machine`,
    'synchronize both clocks (NTP): maturity and leases go by the clock of the server',
  );
}
