import type { Connection } from './connection.ts';
import { ConnectionLost, Refused } from './errors.ts';
import type { Query, Row, Statement } from './statement.ts';

/** How a transaction ended, as far as this side can know. */
export type Ended =
  /** It is committed; the rows of each statement. */
  | { readonly how: 'committed'; readonly results: readonly (readonly Row[])[] }
  /** It was rolled back, wholly and for sure. */
  | { readonly how: 'refused'; readonly error: Refused }
  /** The connection ended before the answer: it was committed or it was not. */
  | { readonly how: 'lost'; readonly error: ConnectionLost };

const ALIVE: Statement = { name: 'alive', text: 'SELECT 1' };
/** What needs no statement is still answered by a server that is there. */
const EMPTY: Query = { statement: { name: 'empty', text: 'SELECT 1' }, values: [] };

/**
 * Runs statements as one transaction, all sent before the first is answered. One statement is a
 * transaction of its own.
 */
export async function transact(connection: Connection, queries: readonly Query[]): Promise<Ended> {
  const [only = EMPTY] = queries;
  if (queries.length <= 1) return alone(connection, only);
  const { begun, answers, committed } = connection.together(() => ({
    begun: connection.run('BEGIN'),
    answers: queries.map(({ statement, values }) => connection.query(statement, values)),
    committed: connection.run('COMMIT'),
  }));
  const [[begin, ...results], [commit]] = await Promise.all([
    Promise.allSettled([begun, ...answers]),
    Promise.allSettled([committed]),
  ]);
  const rows: (readonly Row[])[] = [];
  for (const result of [begin, ...results]) {
    // What follows a refused statement cannot be committed any more, whatever becomes of the connection.
    if (result.status === 'rejected') return failed(result.reason);
    if (result.value !== undefined) rows.push(result.value);
  }
  if (commit.status === 'rejected') return confirmed(connection, failed(commit.reason));
  return { how: 'committed', results: rows };
}

async function alone(connection: Connection, { statement, values }: Query): Promise<Ended> {
  try {
    return { how: 'committed', results: [await connection.query(statement, values)] };
  } catch (error) {
    return confirmed(connection, failed(error));
  }
}

/**
 * An error that came in place of a commit's answer means a rollback only if the server lives on: one that
 * ends while it writes its log may have written the commit.
 */
async function confirmed(connection: Connection, ended: Ended): Promise<Ended> {
  if (ended.how !== 'refused') return ended;
  try {
    await connection.query(ALIVE, []);
    return ended;
  } catch (error) {
    return failed(error);
  }
}

function failed(error: unknown): Ended {
  if (error instanceof Refused) return { how: 'refused', error };
  // Anything else is no answer of PostgreSQL's, so nothing is known.
  const lost = error instanceof ConnectionLost ? error : new ConnectionLost('The connection failed.', error);
  return { how: 'lost', error: lost };
}
