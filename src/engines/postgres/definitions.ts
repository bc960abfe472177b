import { isUnknownOutcome } from '../../engine/calls.ts';
import {
  type Definition,
  type DefinitionChange,
  type DefinitionKind,
  type Definitions,
  DefinitionWatchers,
  definitionConflict,
  type JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type { Side } from './link.ts';
import { type Query, type Row, type Statement, text } from './statement.ts';

const GET: Statement = {
  name: 'definition',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1 AND key = $2',
};
const LIST: Statement = {
  name: 'definitions',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1',
};
const PUT_ANY: Statement = {
  name: 'put definition',
  text: `INSERT INTO definition VALUES ($1, $2, $3, nextval('definition_version'))
    ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value, version = excluded.version RETURNING version`,
};
const PUT_NEW: Statement = {
  name: 'put new definition',
  text: `INSERT INTO definition VALUES ($1, $2, $3, nextval('definition_version')) ON CONFLICT DO NOTHING RETURNING version`,
};
const PUT_NEXT: Statement = {
  name: 'put next definition',
  text: `UPDATE definition SET value = $3, version = nextval('definition_version')
    WHERE kind = $1 AND key = $2 AND version::text = $4 RETURNING version`,
};
const DELETE: Statement = {
  name: 'delete definition',
  text: 'DELETE FROM definition WHERE kind = $1 AND key = $2 AND ($3::text IS NULL OR version::text = $3) RETURNING key',
};

/** The topic of changes; no front end's topic begins with a dot. */
const TOPIC = '.definitions';

/** The Definitions port. Changes are signalled to all nodes, this one included. */
export class PostgresDefinitions implements Definitions {
  readonly #side: Side;
  readonly #signaller: Signaller;
  readonly #watchers: DefinitionWatchers;

  constructor(side: Side, signaller: Signaller, log: EngineLog) {
    this.#side = side;
    this.#signaller = signaller;
    this.#watchers = new DefinitionWatchers(log);
    signaller.subscribe(TOPIC, (change) => this.#watchers.notify(change as unknown as DefinitionChange));
  }

  async get(kind: DefinitionKind, key: string): Promise<Definition | null> {
    const [row] = await this.#side.ask({ statement: GET, values: [kind, key] });
    return row === undefined ? null : definition(row);
  }

  async list(kind: DefinitionKind): Promise<Definition[]> {
    const rows = await this.#side.ask({ statement: LIST, values: [kind] });
    return rows.map(definition).sort((a, b) => (a.key < b.key ? -1 : 1));
  }

  async put(
    kind: DefinitionKind,
    key: string,
    value: JsonValue,
    expected: string | null | 'any',
  ): Promise<string> {
    const values = [kind, key, JSON.stringify(value)];
    const [row] = await this.#change(
      kind,
      key,
      expected === 'any'
        ? { statement: PUT_ANY, values }
        : expected === null
          ? { statement: PUT_NEW, values }
          : { statement: PUT_NEXT, values: [...values, expected] },
    );
    if (row === undefined) throw definitionConflict(kind, key);
    this.#signal(kind, key);
    return text(row, 0);
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const values = [kind, key, expected === 'any' ? null : expected];
    const [gone] = await this.#change(kind, key, { statement: DELETE, values });
    if (gone === undefined && expected !== 'any') throw definitionConflict(kind, key);
    if (gone !== undefined) this.#signal(kind, key);
    return gone !== undefined;
  }

  watch(listener: (change: DefinitionChange) => void): () => void {
    return this.#watchers.add(listener);
  }

  /** Signals may have been lost. */
  signalsMissed(): void {
    this.#watchers.notifyMissed();
  }

  #signal(kind: DefinitionKind, key: string): void {
    this.#signaller.publish(TOPIC, { kind, key });
  }

  async #change(kind: DefinitionKind, key: string, query: Query): Promise<Row[]> {
    try {
      return await this.#side.change(query);
    } catch (error) {
      // It may have been made: then all nodes have to read it.
      if (isUnknownOutcome(error)) this.#signal(kind, key);
      throw error;
    }
  }
}

function definition(row: Row): Definition {
  return { key: text(row, 0), value: JSON.parse(text(row, 1)) as JsonValue, version: text(row, 2) };
}
