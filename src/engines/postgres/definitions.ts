import type {
  Definition,
  DefinitionChange,
  DefinitionKind,
  Definitions,
  JsonValue,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import { QuaysideError } from '../../model/errors.ts';
import type { Side } from './side.ts';
import type { PostgresSignaller } from './signaller.ts';
import { type Row, type Statement, text } from './statement.ts';

const GET: Statement = {
  name: 'definition',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1 AND key = $2',
};
const LIST: Statement = {
  name: 'definitions',
  text: 'SELECT key, value, version FROM definition WHERE kind = $1',
};
const VERSIONS: Statement = {
  name: 'definition versions',
  text: 'SELECT kind, key, version FROM definition',
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

/** The topic that changes travel under; no front end's topic begins with a dot. */
const TOPIC = '.definitions';

/**
 * The Definitions port. Another node hears of a change by a signal; since signals may be lost while the
 * listening connection is away, what changed meanwhile is looked up and told when it returns.
 */
export class PostgresDefinitions implements Definitions {
  readonly #side: Side;
  readonly #signaller: PostgresSignaller;
  readonly #log: EngineLog;
  readonly #watchers = new Set<(change: DefinitionChange) => void>();
  /** The version last told of each document, while somebody watches. */
  #told: ReadonlyMap<string, Version> | null = null;
  #unsubscribe: (() => void) | null = null;

  constructor(side: Side, signaller: PostgresSignaller, log: EngineLog) {
    this.#side = side;
    this.#signaller = signaller;
    this.#log = log;
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
    const [row] = await this.#side.change(
      expected === 'any'
        ? { statement: PUT_ANY, values }
        : expected === null
          ? { statement: PUT_NEW, values }
          : { statement: PUT_NEXT, values: [...values, expected] },
    );
    if (row === undefined) throw conflict(kind, key);
    this.#signaller.publish(TOPIC, { kind, key });
    return text(row, 0);
  }

  async delete(kind: DefinitionKind, key: string, expected: string | 'any'): Promise<boolean> {
    const values = [kind, key, expected === 'any' ? null : expected];
    const [gone] = await this.#side.change({ statement: DELETE, values });
    if (gone === undefined && expected !== 'any') throw conflict(kind, key);
    if (gone !== undefined) this.#signaller.publish(TOPIC, { kind, key });
    return gone !== undefined;
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
    let now: Map<string, Version>;
    try {
      now = versionsOf(await this.#side.ask({ statement: VERSIONS, values: [] }));
    } catch (error) {
      this.#log.info(
        { err: error },
        'Definitions could not be compared; the next signal or reconnect tries again.',
      );
      return;
    }
    this.#told = now;
    if (before === null) return;
    for (const [name, { change, version }] of now) {
      if (before.get(name)?.version !== version) this.#tell(change);
    }
    for (const [name, { change }] of before) if (!now.has(name)) this.#tell(change);
  }

  #tell(change: DefinitionChange): void {
    for (const watcher of [...this.#watchers]) watcher({ kind: change.kind, key: change.key });
  }
}

interface Version {
  readonly change: DefinitionChange;
  readonly version: string;
}

function versionsOf(rows: readonly Row[]): Map<string, Version> {
  return new Map(
    rows.map((row) => {
      const change = { kind: text(row, 0) as DefinitionKind, key: text(row, 1) };
      return [`${change.kind} ${change.key}`, { change, version: text(row, 2) }];
    }),
  );
}

function definition(row: Row): Definition {
  return { key: text(row, 0), value: JSON.parse(text(row, 1)) as JsonValue, version: text(row, 2) };
}

function conflict(kind: DefinitionKind, key: string): QuaysideError {
  return new QuaysideError('definition-conflict', `The ${kind} "${key}" was changed by another write.`);
}
