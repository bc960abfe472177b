import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { quote } from '../util/quote.ts';
import type { EngineLog } from './engine.ts';
import { type Listener, Topics } from './signaller.ts';

/**
 * The Definitions port: small durable documents that every node must see alike — pause flags and options of queues,
 * declarations of exchanges, variants of namespaces, the targets of their migrations, bulk operations and their progress,
 * API tokens, sessions of the console that were ended. Dozens to thousands, read often, changed seldom.
 *
 * - A change is durable when its promise resolves, and reaches the watchers of every node that shares the
 *   engine. Watching is a hint: if an engine may have missed changes it says so, and the node lists again, as it does
 *   from time to time. `DefinitionsCache` does that.
 * - Values are JSON. A `version` changes with every write and is compared only for equality.
 * - Errors: `storage-unavailable`, `outcome-unknown`, `definition-conflict`.
 */
export interface Definitions {
  get(kind: DefinitionKind, key: string): Promise<Definition | null>;

  /** All documents of a kind, sorted by key. */
  list(kind: DefinitionKind): Promise<Definition[]>;

  /**
   * Writes if the stored version is `expected`: null means "there is none yet", 'any' does not look.
   * Returns the new version. @throws QuaysideError `definition-conflict` if another write came first
   */
  put(kind: DefinitionKind, key: string, value: JsonValue, expected: string | null | 'any'): Promise<string>;

  /** Deletes if the version is `expected`. Returns false if there was none. @throws as `put` */
  delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean>;

  /** Calls `listener` after each change by any node, this one included. Returns a function that ends it. */
  watch(listener: (change: DefinitionChange) => void): () => void;
}

export const DEFINITION_KINDS = [
  'queue',
  'queue-options',
  'exchange',
  'namespace',
  'migration',
  'operation',
  'operation-progress',
  'token',
  'ended-sessions',
] as const;
export type DefinitionKind = (typeof DEFINITION_KINDS)[number];

export type JsonValue =
  | string
  | number
  | boolean
  | null
  | readonly JsonValue[]
  | { readonly [key: string]: JsonValue };

export interface Definition {
  readonly key: string;
  readonly value: JsonValue;
  readonly version: string;
}

export interface DefinitionChange {
  readonly kind: DefinitionKind;
  /** Null: any definition of the kind may have changed, as notifications may have been missed. */
  readonly key: string | null;
}

/** The key of a definition that is about a queue. Names may hold any character, so the pair is written as JSON rather than joined. */
export function queueDefinitionKey({ ns, name }: QueueKey): string {
  return JSON.stringify([ns, name]);
}

/** The queue that a definition with such a key is about. */
export function queueOfDefinition(key: string): QueueKey {
  const [ns, name] = JSON.parse(key) as [string, string];
  return { ns, name };
}

/** The rejection of a write that expected another version. */
export function definitionConflict(kind: DefinitionKind, key: string): QuaysideError {
  return new QuaysideError('definition-conflict', `The ${kind} ${quote(key)} was changed by another write.`);
}

/** Whether a write was rejected since another one came first. */
export function isDefinitionConflict(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'definition-conflict';
}

/** Each conflict is a write of another that succeeded, so that there are as many as writers; more than these are no coincidence. */
const MAX_CONFLICTS = 1_000;

/**
 * Calls `write`, which reads a definition and writes what becomes of it, until no other write comes in between.
 * @throws QuaysideError what `write` throws; `definition-conflict` only if one came in between each time
 */
export async function retryConflicts<T>(write: () => Promise<T>): Promise<T> {
  for (let conflicts = 0; ; conflicts += 1) {
    try {
      return await write();
    } catch (error) {
      if (!isDefinitionConflict(error) || conflicts === MAX_CONFLICTS) throw error;
    }
  }
}

/** Waits for a write that expects a version. If another write came first, that one stays. */
export async function unlessChanged(write: Promise<unknown>): Promise<void> {
  try {
    await write;
  } catch (error) {
    if (!isDefinitionConflict(error)) throw error;
  }
}

const TOPIC = 'definitions';

/** The watchers of an engine's definitions on this node. */
export class DefinitionWatchers {
  readonly #topics: Topics<DefinitionChange>;

  constructor(log: EngineLog) {
    this.#topics = new Topics(log);
  }

  /** As `Definitions.watch`. */
  add(listener: Listener<DefinitionChange>): () => void {
    return this.#topics.subscribe(TOPIC, listener);
  }

  notify(change: DefinitionChange): void {
    this.#topics.deliver(TOPIC, change);
  }

  /** Notifications of other nodes may have been lost. */
  notifyMissed(): void {
    for (const kind of DEFINITION_KINDS) this.notify({ kind, key: null });
  }
}
