import type { GroupName } from '../model/element.ts';
import type { Clock } from '../util/clock.ts';
import type { EventLog } from '../util/log.ts';
import { maskUrls } from '../util/mask.ts';
import { messageOf } from '../util/message-of.ts';
import type { Service } from '../util/service.ts';
import type { Definitions } from './definitions.ts';
import type { QueueRule } from './queue-policy.ts';
import type { Signaller } from './signaller.ts';
import type { Stats } from './stats.ts';
import type { DeadLetterPolicy, RetryDelay, Storage } from './storage.ts';

/**
 * An engine opened from a URL: four ports on one store. Several namespaces, and in tests several brokers, may use one
 * engine object; two URLs are two engines.
 *
 * `start` opens the store and migrates its schema. If it cannot, it rejects with a message that names the store and
 * says what to do. `stop` flushes and closes.
 */
export interface Engine extends Service {
  /** The first half of a queue's type: `sqlite`, `redis`, … */
  readonly type: string;
  /** As configured, including credentials: use `maskUrl` in messages. */
  readonly url: string;
  readonly storage: Storage;
  readonly definitions: Definitions;
  readonly signaller: Signaller;
  readonly stats: Stats;
  /**
   * Copies a consistent snapshot of the whole store into a new file while the store is in use. Returns the file's size
   * in bytes. Not given: the store is backed up with the tools of its own server.
   * @throws QuaysideError `storage-full`, `storage-unavailable`
   */
  readonly backUp?: (file: string) => Promise<number>;
  /** Resolves if the store replies to a request made now; rejects with `storage-unavailable` if it does not. */
  ping(): Promise<void>;
  /** Disk usage of its files; not given: it has no files on this machine. */
  readonly disk?: (() => Promise<DiskUsage>) | undefined;
  /**
   * Checks that the server's settings can keep the engine's promises, on separate connections. Works without `start`
   * and changes nothing. Rejects like `start` if the server cannot be used. Not given: the engine has no server.
   */
  readonly examine?: () => Promise<readonly Finding[]>;
  /**
   * Resolves if the engine can no longer keep its promises (a failed fsync, a dead worker). From then on it rejects
   * every call; the process should log the error and exit.
   */
  readonly failed: Promise<Error>;
}

/** Thrown by `start` if another version wrote the server's store: starting this program again is useless. */
export class WrongStore extends Error {}

/** Thrown by `start` if a later start may open the store without a change: its disk is full, for example. */
export class StoreUnavailable extends Error {}

/** Thrown by `start` if another process, or another engine of this one, has the store open. */
export class StoreInUse extends StoreUnavailable {}

export interface DiskUsage {
  /** Total size of the files, in bytes. */
  readonly fileBytes: number;
  /** Free disk space that this process may use, in bytes. */
  readonly freeBytes: number;
  /** Below this, the disk counts as nearly full, and inserts are rejected. */
  readonly minFreeBytes: number;
}

/** What an engine must know about a namespace to apply its policy inside its own atomic steps. */
export interface NamespacePolicy {
  readonly name: string;
  /** The default groups of a stream namespace; null for plain queues. */
  readonly groups: readonly GroupName[] | null;
  /** Where failed elements move, and after how many tries; null: they stay in their queue. */
  readonly deadLetter: DeadLetterPolicy | null;
  /** How long an element of a stream is kept after its insertion; null: until its last group has finished it. */
  readonly retentionMs: number | null;
  /** How long elements wait after a failed try without a requested delay; not given: they do not wait. */
  readonly retryDelay?: RetryDelay | null;
  /** Options of queues by patterns of their names; see `queue-policy.ts`. */
  readonly queues?: readonly QueueRule[];
  /** How many groups a queue may have in addition to the default ones, see `Storage`; not given: unlimited. */
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
  /** How long dedup keys are remembered, ms. */
  readonly dedupWindowMs: number;
  /** The settings of this engine, as listed on its page in `docs/engines/`. */
  readonly settings: Readonly<Record<string, unknown>>;
  readonly log: EventLog;
}

/** One result of a check that an operator requested. */
export interface Finding {
  readonly level: 'ok' | 'warning' | 'error';
  /** What was checked: `disk`, or the masked URL of an engine. */
  readonly check: string;
  readonly message: string;
  /** What to do; null: nothing. */
  readonly hint: string | null;
}

/** With a larger difference, the moments that clients give are visibly wrong for the store. */
const MAX_CLOCK_DIFFERENCE_MS = 1_000;

export function finding(
  check: string,
  level: Finding['level'],
  message: string,
  hint: string | null = null,
): Finding {
  return { level, check, message, hint };
}

/** Splits an engine's error message into the problem and, after the last semicolon, the hint. */
export function problemOf(error: unknown): { readonly problem: string; readonly hint: string | undefined } {
  const message = maskUrls(messageOf(error)).replace(/\.$/, '');
  const [, problem = message, hint] = /^(.*); ([^;]+)$/s.exec(message) ?? [];
  return { problem, hint };
}

/** The finding that a check failed, as {@link problemOf} splits its error. */
export function errorFinding(check: string, error: unknown): Finding {
  const { problem, hint = null } = problemOf(error);
  return finding(check, 'error', problem, hint);
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
    'synchronize both clocks (NTP): maturity and leases depend on the clock of the server',
  );
}
