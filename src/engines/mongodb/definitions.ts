import { randomBytes } from 'node:crypto';
import { DefinitionFollower, type SeenVersion } from '../../engine/definition-follower.ts';
import {
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { NOT_REACHABLE, unavailable, unknownOutcome } from '../../engine/store-failures.ts';
import type { Clock } from '../../model/clock.ts';
import { codeOf, DUPLICATE_KEY, fromDriver, type Lost, Refused, refusedError } from './errors.ts';
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

const OPTIONS = { maxTimeMS: MAX_TIME_MS } as const;

/**
 * The Definitions port. Versions are made by the writer and never twice, so that a write that the driver repeats
 * is the same write. Other nodes hear of a change by a signal.
 */
export class MongoDefinitions implements Definitions {
  readonly #store: Store;
  readonly #follower: DefinitionFollower;

  constructor(store: Store, signaller: MongoSignaller, clock: Clock, log: EngineLog) {
    this.#store = store;
    const projection = { _id: 0, kind: 1, key: 1, version: 1 } as const;
    const versions = (): Promise<SeenVersion[]> =>
      this.#ask(() => this.#collection.find({}, { ...OPTIONS, projection }).toArray());
    this.#follower = new DefinitionFollower({ signaller, clock, log, versions });
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
    const isWritten = await this.#change(kind, key, async (options) => {
      if (expected === null) return this.#insert({ _id: idOf(kind, key), kind, key, value: json, version });
      const { matchedCount, upsertedCount } = await this.#collection.updateOne(
        { _id: idOf(kind, key), ...(expected !== 'any' && { version: expected }) },
        { $set: { kind, key, value: json, version } },
        { ...options, upsert: expected === 'any' },
      );
      return matchedCount + upsertedCount > 0;
    });
    if (!isWritten) throw definitionConflict(kind, key);
    this.#follower.changed(kind, key);
    return version;
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const filter = { _id: idOf(kind, key), ...(expected !== 'any' && { version: expected }) };
    const { deletedCount } = await this.#change(kind, key, (options) =>
      this.#collection.deleteOne(filter, options),
    );
    if (deletedCount === 0 && expected !== 'any') throw definitionConflict(kind, key);
    if (deletedCount > 0) this.#follower.changed(kind, key);
    return deletedCount > 0;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#follower.watch(listener);
  }

  /** Tells of what changed while no signal was heard. Never throws. */
  catchUp(): Promise<void> {
    return this.#follower.catchUp();
  }

  stop(): void {
    this.#follower.stop();
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

  async #change<T>(
    kind: DefinitionKind,
    key: string,
    change: (options: ChangeOptions) => Promise<T>,
  ): Promise<T> {
    await this.#store.ready().catch((fault: Lost) => {
      throw unavailable(NOT_REACHABLE, fault);
    });
    try {
      const changed = change({ ...OPTIONS, writeConcern: this.#store.settings.writeConcern });
      return await this.#store.within(changed, (fault) => fault);
    } catch (error) {
      const fault = fromDriver(error);
      const failure = fault instanceof Refused ? refusedError(fault, false) : unknownOutcome(fault);
      this.#follower.failed(kind, key, failure);
      throw failure;
    }
  }
}

type ChangeOptions = typeof OPTIONS & Pick<Store['settings'], 'writeConcern'>;

function idOf(kind: DefinitionKind, key: string): string {
  return `${kind} ${key}`;
}

function definition({ key, value, version }: DefinitionDocument): Definition {
  return { key, value: JSON.parse(value) as JsonValue, version };
}
