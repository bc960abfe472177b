import type { Settings } from './settings.ts';
import { flag, number, type Row, type Statement, text } from './statement.ts';

/** The oldest PostgreSQL that is supported, as `server_version_num` has it. */
const OLDEST_VERSION = 140_000;

/** A statement is ended by the server after this, before its caller gives up (`pipeline.ts`). */
const STATEMENT_TIMEOUT_MS = 3000;
const LOCK_TIMEOUT_MS = 1500;
/** A client that dies between BEGIN and COMMIT must not keep its rows locked until TCP notices. */
const IDLE_IN_TRANSACTION_MS = 5000;
/** Room for the largest batch, so that its bodies are not written to a temporary file on their way. */
const WORK_MEMORY = '64MB';

/**
 * What each of our sessions is set to, as one round trip of SQL.
 *
 * The planner is kept from choosing: a plan made while a table was empty would read all of it when it holds
 * a million rows. Each statement has one right plan, nested loops over the index that was made for it; the
 * other kinds are switched off, and the plan is made once and not for each set of values.
 */
export function sessionSettings({ schema, synchronousCommit }: Settings): string {
  const settings = {
    search_path: schema,
    synchronous_commit: synchronousCommit,
    statement_timeout: STATEMENT_TIMEOUT_MS,
    lock_timeout: LOCK_TIMEOUT_MS,
    idle_in_transaction_session_timeout: IDLE_IN_TRANSACTION_MS,
    default_transaction_isolation: 'read committed',
    default_transaction_read_only: 'off',
    plan_cache_mode: 'force_generic_plan',
    enable_seqscan: 'off',
    enable_bitmapscan: 'off',
    enable_hashjoin: 'off',
    enable_mergejoin: 'off',
    jit: 'off',
    work_mem: WORK_MEMORY,
    client_encoding: 'UTF8',
    bytea_output: 'hex',
    timezone: 'UTC',
    standard_conforming_strings: 'on',
    client_min_messages: 'warning',
  };
  return Object.entries(settings)
    .map(([name, value]) => `SET ${name} = '${value}'`)
    .join('; ');
}

/** A server that answers but cannot be used; the message says what to do. */
export class UnfitServer extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'UnfitServer';
  }
}

/** Asked of each new session, for `checkSession`. */
export const SESSION_CHECK: Statement = {
  name: 'session',
  text: `SELECT current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery()`,
};

/** Whether the server is one that the engine can work with. @throws UnfitServer */
export function checkSession(row: Row): void {
  const version = number(row, 0);
  if (version < OLDEST_VERSION) {
    throw new UnfitServer(`it is PostgreSQL ${Math.floor(version / 10_000)}; use 14 or later`);
  }
  if (text(row, 1) !== 'UTF8') {
    throw new UnfitServer(`the database has encoding ${text(row, 1)}; create one with ENCODING 'UTF8'`);
  }
  if (flag(row, 2)) throw new UnfitServer('it is a standby, which takes no writes; name the primary');
}
