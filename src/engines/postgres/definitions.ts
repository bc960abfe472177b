import {
  type DefinitionChange,
  type DefinitionStore,
  type StoredDefinition,
  StoredDefinitions,
} from '../../engine/definitions.ts';
import type { EngineLog } from '../../engine/engine.ts';
import type { Signaller } from '../../engine/signaller.ts';
import type { AuxiliaryConnection } from './link.ts';
import { type Row, type Statement, text } from './statement.ts';

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

/** The topic of changes; topics of front ends do not begin with a dot. */
const TOPIC = '.definitions';

/** Stores definitions in the table `definition`. Changes are signaled to all nodes, including this one. */
export function openDefinitions(
  auxiliary: AuxiliaryConnection,
  signaller: Signaller,
  log: EngineLog,
): StoredDefinitions {
  const store: DefinitionStore = {
    get: async (kind, key) => {
      const [row] = await auxiliary.query({ statement: GET, values: [kind, key] });
      return row === undefined ? null : stored(row);
    },
    list: async (kind) => (await auxiliary.query({ statement: LIST, values: [kind] })).map(stored),
    put: async (kind, key, value, expected) => {
      const values = [kind, key, value];
      const [row] = await auxiliary.change(
        expected === 'any'
          ? { statement: PUT_ANY, values }
          : expected === null
            ? { statement: PUT_NEW, values }
            : { statement: PUT_NEXT, values: [...values, expected] },
      );
      return row === undefined ? null : text(row, 0);
    },
    delete: async (kind, key, expected) => {
      const isAny = expected === 'any';
      const [deleted] = await auxiliary.change({
        statement: DELETE,
        values: [kind, key, isAny ? null : expected],
      });
      return deleted !== undefined || (isAny ? false : null);
    },
  };
  const definitions = new StoredDefinitions(store, log, ({ kind, key }) =>
    signaller.publish(TOPIC, { kind, key }),
  );
  signaller.subscribe(TOPIC, (change) => definitions.notify(change as unknown as DefinitionChange));
  return definitions;
}

function stored(row: Row): StoredDefinition {
  return [text(row, 0), text(row, 1), text(row, 2)];
}
