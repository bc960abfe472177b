import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { quote } from '../util/quote.ts';
import { isUnknownOutcome } from './calls.ts';
import type { EngineLog } from './engine.ts';
import { type Listener, Topics } from './signaller.ts';

/**
 * The Definitions port: small durable documents that every node must see alike — pause flags and options of queues,
 * declarations of exchanges, variants of namespaces, the targets of their migrations, bulk operations and their
 * progress, API tokens, sessions of the console that were ended. Dozens to thousands, read often, changed seldom.
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

/**
 * The key of a definition that is about a queue. Names may hold any character, so the pair is written as JSON rather
 * than joined.
 */
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

/**
 * Each conflict is a write of another that succeeded, so that there are as many as writers; more than these are no
 * coincidence.
 */
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

/** Where an engine stores definitions, their values as JSON text. Errors and `expected` are as in the port. */
export interface DefinitionStore {
  get(kind: DefinitionKind, key: string): Promise<StoredDefinition | null>;
  /** In any order. */
  list(kind: DefinitionKind): Promise<StoredDefinition[]>;
  /** Returns the new version; null: another write came first. */
  put(kind: DefinitionKind, key: string, value: string, expected: string | null): Promise<string | null>;
  /** Returns whether there was one; null: another write came first. */
  delete(kind: DefinitionKind, key: string, expected: string): Promise<boolean | null>;
}

export type StoredDefinition = readonly [key: string, value: string, version: string];

const TOPIC = 'definitions';

/** The Definitions port of every engine, on its store. */
export class StoredDefinitions implements Definitions {
  readonly #store: DefinitionStore;
  readonly #announce: (change: DefinitionChange) => void;
  readonly #watchers: Topics<DefinitionChange>;

  /**
   * @param announce has a change of this node reach {@link notify} on all nodes; not given: on this one, the store sees
   * to the others
   */
  constructor(store: DefinitionStore, log: EngineLog, announce?: (change: DefinitionChange) => void) {
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

  async put(kind: DefinitionKind, key: string, value: JsonValue, expected: string | null): Promise<string> {
    return this.#change({ kind, key }, this.#store.put(kind, key, JSON.stringify(value), expected));
  }

  async delete(kind: DefinitionKind, key: string, expected: string): Promise<boolean> {
    return this.#change({ kind, key }, this.#store.delete(kind, key, expected));
  }

  watch(listener: Listener<DefinitionChange>): () => void {
    return this.#watchers.subscribe(TOPIC, listener);
  }

  /** A definition was changed by some node. */
  notify(change: DefinitionChange): void {
    this.#watchers.deliver(TOPIC, change);
  }

  /** Notifications of other nodes may have been lost. */
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
      // It may have been made: then all nodes have to read it.
      if (isUnknownOutcome(error)) this.#announce(change);
      throw error;
    }
    if (result === null) throw definitionConflict(change.kind, change.key);
    if (result !== false) this.#announce(change);
    return result;
  }
}

function readDefinition([key, value, version]: StoredDefinition): Definition {
  return { key, value: JSON.parse(value) as JsonValue, version };
}
