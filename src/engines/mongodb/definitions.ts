import { randomBytes } from 'node:crypto';
import type {
  Definition,
  DefinitionChange,
  DefinitionKind,
  Definitions,
  JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { QuaysideError } from '../../model/errors.ts';
import {
  codeOf,
  DUPLICATE_KEY,
  fromDriver,
  type Lost,
  NOT_REACHABLE,
  Refused,
  refusedError,
  unavailable,
  unknownOutcome,
} from './errors.ts';
import { MAX_TIME_MS } from './settings.ts';
import type { MongoSignaller } from './signaller.ts';
import type { Store } from './store.ts';

export interface DefinitionDocument {
  /** Kind and key, as one text. */
  readonly _id: string;
  readonly kind: DefinitionKind;
  readonly key: string;
  /** As JSON text: BSON does not take every name that JSON has. */
  readonly value: string;
  readonly version: string;
}

/** The topic that changes travel under; no front end's topic begins with a dot. */
const TOPIC = '.definitions';

const OPTIONS = { maxTimeMS: MAX_TIME_MS } as const;

/**
 * The Definitions port. Versions are made by the writer and never twice, so that a write that the driver repeats
 * is the same write. Other nodes hear of a change by a signal; what changed while they heard none is looked up.
 */
export class MongoDefinitions implements Definitions {
  readonly #store: Store;
  readonly #signaller: MongoSignaller;
  readonly #log: EngineLog;
  readonly #watchers = new Set<(change: DefinitionChange) => void>();
  /** The versions last told to those who watch; null while nobody does. */
  #told: ReadonlyMap<string, Seen> | null = null;
  #unsubscribe: (() => void) | null = null;

  constructor(store: Store, signaller: MongoSignaller, log: EngineLog) {
    this.#store = store;
    this.#signaller = signaller;
    this.#log = log;
  }

  async get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const found = await this.#ask(() => this.#collection.findOne({ _id: idOf(kind, key) }, OPTIONS));
    return found === null ? null : definition(found);
  }

  async list(kind: DefinitionKind): Promise<Definition[]> {
    const found = await this.#ask(() => this.#collection.find({ kind }, OPTIONS).toArray());
    return found.map(definition).sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: JsonValue,
    expected: string | null | 'any',
  ): Promise<string> {
    const version = randomBytes(12).toString('base64url');
    const json = JSON.stringify(value);
    const isWritten = await this.#change(async (options) => {
      if (expected === null) return this.#insert({ _id: idOf(kind, key), kind, key, value: json, version });
      const { matchedCount, upsertedCount } = await this.#collection.updateOne(
        { _id: idOf(kind, key), ...(expected !== 'any' && { version: expected }) },
        { $set: { kind, key, value: json, version } },
        { ...options, upsert: expected === 'any' },
      );
      return matchedCount + upsertedCount > 0;
    });
    if (!isWritten) throw conflict(kind, key);
    this.#signaller.publish(TOPIC, { kind, key });
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const filter = { _id: idOf(kind, key), ...(expected !== 'any' && { version: expected }) };
    const { deletedCount } = await this.#change((options) => this.#collection.deleteOne(filter, options));
    if (deletedCount === 0 && expected !== 'any') throw conflict(kind, key);
    if (deletedCount > 0) this.#signaller.publish(TOPIC, { kind, key });
    return deletedCount > 0;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    // Wrapped, so that one function given twice is two watchers.
    const watcher = (change: DefinitionChange): void => listener(change);
    this.#watchers.add(watcher);
    this.#unsubscribe ??= this.#signaller.subscribe(TOPIC, (message) =>
      this.#tell(message as unknown as DefinitionChange),
    );
    if (this.#told === null) void this.catchUp();
    return () => {
      this.#watchers.delete(watcher);
      if (this.#watchers.size > 0) return;
      this.#unsubscribe?.();
      this.#unsubscribe = null;
      this.#told = null;
    };
  }

  /** Tells of what changed since the last look: signals may have been lost. Never throws. */
  async catchUp(): Promise<void> {
    if (this.#watchers.size === 0) return;
    const before = this.#told;
    try {
      const projection = { kind: 1, key: 1, version: 1 } as const;
      const found = await this.#ask(() => this.#collection.find({}, { ...OPTIONS, projection }).toArray());
      this.#told = new Map(
        found.map(({ _id, kind, key, version }) => [_id, { change: { kind, key }, version }]),
      );
    } catch (error) {
      this.#log.info({ err: error }, 'Definitions could not be compared; the next reconnect tries again.');
      return;
    }
    if (before === null) return;
    for (const [id, { change, version }] of this.#told) {
      if (before.get(id)?.version !== version) this.#tell(change);
    }
    for (const [id, { change }] of before) if (!this.#told.has(id)) this.#tell(change);
  }

  get #collection() {
    return this.#store.collections.definitions;
  }

  /** Answers false where there is one already. */
  async #insert(document: DefinitionDocument): Promise<boolean> {
    const { writeConcern } = this.#store.settings;
    try {
      await this.#collection.insertOne(document, { ...OPTIONS, writeConcern });
      return true;
    } catch (error) {
      if (codeOf(error) === DUPLICATE_KEY) return false;
      throw error;
    }
  }

  async #ask<T>(ask: () => Promise<T>): Promise<T> {
    try {
      await this.#store.ready();
      return await this.#store.within(ask(), (fault) => fault);
    } catch (error) {
      throw unavailable(NOT_REACHABLE, fromDriver(error));
    }
  }

  async #change<T>(change: (options: ChangeOptions) => Promise<T>): Promise<T> {
    await this.#store.ready().catch((fault: Lost) => {
      throw unavailable(NOT_REACHABLE, fault);
    });
    try {
      const changed = change({ ...OPTIONS, writeConcern: this.#store.settings.writeConcern });
      return await this.#store.within(changed, (fault) => fault);
    } catch (error) {
      const fault = fromDriver(error);
      throw fault instanceof Refused ? refusedError(fault, false) : unknownOutcome(fault);
    }
  }

  #tell(change: DefinitionChange): void {
    for (const watcher of [...this.#watchers]) {
      try {
        watcher({ kind: change.kind, key: change.key });
      } catch (error) {
        this.#log.warn({ err: error, ...change }, 'A watcher of definitions failed.');
      }
    }
  }
}

type ChangeOptions = typeof OPTIONS & Pick<Store['settings'], 'writeConcern'>;

interface Seen {
  readonly change: DefinitionChange;
  readonly version: string;
}

function idOf(kind: DefinitionKind, key: string): string {
  return `${kind} ${key}`;
}

function definition({ key, value, version }: DefinitionDocument): Definition {
  return { key, value: JSON.parse(value) as JsonValue, version };
}

function conflict(kind: DefinitionKind, key: string): QuaysideError {
  return new QuaysideError('definition-conflict', `The ${kind} "${key}" was changed by another write.`);
}
