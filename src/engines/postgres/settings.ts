import type { EngineOptions } from '../../engine/engine.ts';
import { readTls, type TlsOptions } from './tls.ts';
import { type Host, parseUrl } from './url.ts';

/** How much a commit waits for, as PostgreSQL's own setting of that name has it. */
const SYNCHRONOUS_COMMITS = ['on', 'off', 'local', 'remote_write', 'remote_apply'] as const;
export type SynchronousCommit = (typeof SYNCHRONOUS_COMMITS)[number];

/** The engine's URL and own settings, checked and with their defaults (`docs/engines/postgres.md`). */
export interface Settings {
  /** Tried in turn at each connect. */
  readonly hosts: readonly Host[];
  readonly user: string | undefined;
  readonly password: string | undefined;
  readonly database: string | undefined;
  readonly tls: TlsOptions | false;
  /** All tables stand in this schema; two engines with two schemas know nothing of each other. */
  readonly schema: string;
  /** `off` loses the last fraction of a second of answered changes when the server's machine fails. */
  readonly synchronousCommit: SynchronousCommit;
  /** The address without user and password, for messages. */
  readonly shown: string;
}

/** May stand in the URL, too; what is set beside it wins. */
const OWN_SETTINGS = ['schema', 'synchronousCommit'];
const SCHEMA_NAME = /^[a-z_][a-z0-9_]{0,39}$/;

/** @throws Error naming the setting and what would be right, for the composition root to report */
export function readSettings({ url, settings }: EngineOptions): Settings {
  const target = parseUrl(url);
  const wrong = (what: string): Error => new Error(`${target.shown}: ${what}`);
  for (const [name, value] of Object.entries(settings)) {
    if (value !== undefined && !OWN_SETTINGS.includes(name)) {
      throw wrong(`unknown setting "${name}"; known are ${OWN_SETTINGS.join(', ')}`);
    }
  }
  const given = (name: string): unknown => settings[name] ?? target.parameters.get(name);
  const schema = given('schema') ?? 'quayside';
  const synchronousCommit = given('synchronousCommit') ?? 'on';
  if (typeof schema !== 'string' || !SCHEMA_NAME.test(schema)) {
    throw wrong(
      'schema is no plain name; use 1 to 40 lower-case letters, digits and underscores, not beginning with a digit',
    );
  }
  if (!isSynchronousCommit(synchronousCommit)) {
    throw wrong(`synchronousCommit has no such mode; use one of ${SYNCHRONOUS_COMMITS.join(', ')}`);
  }
  return {
    hosts: target.hosts,
    user: target.user,
    password: target.password,
    database: target.database,
    tls: readTls(target),
    schema,
    synchronousCommit,
    shown: target.shown,
  };
}

function isSynchronousCommit(value: unknown): value is SynchronousCommit {
  return SYNCHRONOUS_COMMITS.some((known) => known === value);
}
