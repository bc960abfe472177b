import { clockFinding, type EngineOptions, type Finding } from '../../engine/engine.ts';
import type { Connection } from './connection.ts';
import { Link } from './link.ts';
import type { Settings } from './settings.ts';
import { number, type Statement, text } from './statement.ts';

const SERVER_SETTINGS: Statement = {
  name: 'server settings',
  text: `SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
    current_setting('full_page_writes'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint`,
};

/**
 * Reads what the promises of the engine need of its server. Creates no schema.
 * @throws Error as a start does, if the server cannot be used
 */
export async function examineServer(
  settings: Settings,
  options: Pick<EngineOptions, 'clock' | 'log'>,
): Promise<readonly Finding[]> {
  let findings: readonly Finding[] = [];
  const link = new Link(settings, 'doctor', options, {
    prepare: async (connection) => {
      findings = await readFindings(connection, settings.shown, () => options.clock.now());
    },
    lost: () => {},
    back: () => {},
  });
  try {
    await link.start();
    return findings;
  } finally {
    await link.stop();
  }
}

async function readFindings(
  connection: Connection,
  check: string,
  now: () => number,
): Promise<readonly Finding[]> {
  const [row = []] = await connection.query(SERVER_SETTINGS, []);
  const here = now();
  const ok = (message: string): Finding => ({ level: 'ok', check, message, hint: null });
  const synchronousCommit = text(row, 1);
  return [
    ok(`it is PostgreSQL ${text(row, 0)}`),
    synchronousCommit === 'off'
      ? {
          level: 'warning',
          check,
          message: 'synchronous_commit is off: a crash of its machine loses the last acknowledged changes',
          hint: 'take synchronousCommit out of the URL, unless that loss is acceptable',
        }
      : ok(`synchronous_commit is ${synchronousCommit}`),
    text(row, 2) === 'on'
      ? ok('fsync is on')
      : {
          level: 'error',
          check,
          message: 'fsync is off: a crash of its machine may damage the whole database',
          hint: 'set fsync = on in postgresql.conf',
        },
    text(row, 3) === 'on'
      ? ok('full_page_writes is on')
      : {
          level: 'warning',
          check,
          message: 'full_page_writes is off: a crash of its machine may damage pages that were being written',
          hint: 'set full_page_writes = on, unless its file system writes pages atomically',
        },
    clockFinding(check, number(row, 4), here),
  ];
}
