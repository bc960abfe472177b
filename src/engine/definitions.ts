import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { EventLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { isUnknownOutcome } from './calls.ts';
import { type Listener, Topics } from './signaller.ts';

/**
 * The Definitions port: small durable documents that are the same for all nodes: pause flags and options of queues,
 * declarations of exchanges, variants of namespaces, targets of their migrations, bulk operations and their progress,
 * API tokens, ended console sessions. There are dozens to thousands; they are read often and change seldom.
 *
 * - A change is durable when its promise resolves, and reaches the watchers of every node that shares the engine.
 *   Notifications are hints: an engine that may have missed changes reports that, and the node lists all again, which
 *   it also does periodically. `DefinitionsCache` implements this.
 * - Values are what JSON can represent. A `version` changes with every write and is compared only for equality.
 * - Errors: `storage-unavailable`, `outcome-unknown`, `definition-conflict`.
 */
export interface Definitions {
  get(kind: DefinitionKind, key: string): Promise<Definition | null>;

  /** All documents of a kind, sorted by key. */
  list(kind: DefinitionKind): Promise<Definition[]>;

  /**
   * Writes the value if the stored version is `expected`: null: none is stored; 'any': writes whatever is stored.
   * Returns the new version. @throws QuaysideError `definition-conflict` if the stored version is another one
   */
  put(kind: DefinitionKind, key: string, value: unknown, expected: string | null | 'any'): Promise<string>;

  /** Deletes the definition if its version is `expected`. Returns false if none is stored. @throws as `put` */
  delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean>;

  /** Calls `listener` after each change by any node, including this one. Returns a function that ends the watch. */
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
  readonly value: unknown;
  readonly version: string;
}

export interface DefinitionChange {
  readonly kind: DefinitionKind;
  /** Null: any definition of the kind may have changed, as notifications may have been missed. */
  readonly key: string | null;
}

/** The key of a definition about a queue. Names may contain any character, so the pair is encoded as JSON. */
export function queueDefinitionKey({ ns, name }: QueueKey): string {
  return JSON.stringify([ns, name]);
}

/** The inverse of {@link queueDefinitionKey}. */
export function queueOfDefinition(key: string): QueueKey {
  const [ns, name] = JSON.parse(key) as [string, string];
  return { ns, name };
}

/** The error of a write that expected another version. */
export function definitionConflict(kind: DefinitionKind, key: string): QuaysideError {
  return new QuaysideError('definition-conflict', `The ${kind} ${quote(key)} was changed by another write.`);
}

/** Whether a write was rejected because another write came first. */
export function isDefinitionConflict(error: unknown): boolean {
  return error instanceof QuaysideError && error.code === 'definition-conflict';
}

/**
 * Each conflict means that another writer succeeded, so a call sees at most about as many as there are writers. More
 * than this is a bug.
 */
const MAX_CONFLICTS = 1_000;

/**
 * Calls `write`, which reads a definition and writes its new value, again and again until no other write interferes.
 * @throws QuaysideError any error of `write`; `definition-conflict` only after {@link MAX_CONFLICTS} conflicts
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

/** Waits for a write that expects a version, and ignores a conflict: the other write stays. */
export async function unlessChanged(write: Promise<unknown>): Promise<void> {
  try {
    await write;
  } catch (error) {
    if (!isDefinitionConflict(error)) throw error;
  }
}

/** Where an engine stores definitions, with values as JSON strings. Errors and `expected` are as in the port. */
export interface DefinitionStore {
  get(kind: DefinitionKind, key: string): Promise<StoredDefinition | null>;
  /** In any order. */
  list(kind: DefinitionKind): Promise<StoredDefinition[]>;
  /** Returns the new version, or null if another write came first. */
  put(kind: DefinitionKind, key: string, value: string, expected: string | null): Promise<string | null>;
  /** Returns whether one was stored, or null if another write came first. */
  delete(kind: DefinitionKind, key: string, expected: string): Promise<boolean | null>;
}

export type StoredDefinition = readonly [key: string, value: string, version: string];

const TOPIC = 'definitions';

/** Implements the Definitions port of every engine on top of its `DefinitionStore`. */
export class StoredDefinitions implements Definitions {
  readonly #store: DefinitionStore;
  readonly #announce: (change: DefinitionChange) => void;
  readonly #watchers: Topics<DefinitionChange>;

  /**
   * @param announce sends a change of this node to {@link notify} of all nodes; not given: notifies this node only,
   *   since the store notifies the others
   */
  constructor(store: DefinitionStore, log: EventLog, announce?: (change: DefinitionChange) => void) {
    this.#store = store;
    this.#announce = announce ?? ((change) => this.notify(change));
    this.#watchers = new Topics(log);
  }

  async get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const stored = await this.#store.get(kind, key);
    return stored === null ? null : readDefinition(stored);
  }

  async list(kind: DefinitionKind): Promise<Definition[]> {
    const stored = await this.#store.list(kind);
    return stored.map(readDefinition).sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  async put(kind: DefinitionKind, key: string, value: unknown, expected: string | null): Promise<string> {
    return this.#change({ kind, key }, this.#store.put(kind, key, JSON.stringify(value), expected));
  }

  async delete(kind: DefinitionKind, key: string, expected: string): Promise<boolean> {
    return this.#change({ kind, key }, this.#store.delete(kind, key, expected));
  }

  watch(listener: Listener<DefinitionChange>): () => void {
    return this.#watchers.subscribe(TOPIC, listener);
  }

  /** Notifies watchers that a node, this one or another, changed a definition. */
  notify(change: DefinitionChange): void {
    this.#watchers.deliver(TOPIC, change);
  }

  /** Notifies watchers that notifications of other nodes may have been lost. */
  notifyMissed(): void {
    for (const kind of DEFINITION_KINDS) this.notify({ kind, key: null });
  }

  async #change<T>(
    change: DefinitionChange & { readonly key: string },
    changing: Promise<T | null>,
  ): Promise<T> {
    let result: T | null;
    try {
      result = await changing;
    } catch (error) {
      // The change may have been made, so all nodes have to read it.
      if (isUnknownOutcome(error)) this.#announce(change);
      throw error;
    }
    if (result === null) throw definitionConflict(change.kind, change.key);
    if (result !== false) this.#announce(change);
    return result;
  }
}

function readDefinition([key, value, version]: StoredDefinition): Definition {
  return { key, value: JSON.parse(value), version };
}
