import { int4Array } from '../arrays.ts';
import type { Queue } from '../names.ts';
import type { Query, Statement } from '../statement.ts';

/** One lock for each stream of a schema: the first number is the schema's own, the second one the queue's. */
function lockStatement(mode: '' | '_shared'): Statement {
  return {
    name: `lock streams${mode}`,
    text: `SELECT count(pg_advisory_xact_lock${mode}('element'::regclass::oid::int, u.id)) FROM unnest($1::int[]) AS u(id)`,
  };
}

const ALONE = lockStatement('');
const SHARED = lockStatement('_shared');

/**
 * What a round has to lock first, so that nodes that finish elements of the same streams never wait for each other
 * in a circle; each circle would cost them the second that PostgreSQL takes to see one.
 *
 * A statement locks the elements that it finishes in the order of their numbers. So rounds with one such
 * statement may go together, and one with several, among which there is no order, needs its streams for itself.
 * @param locked for each statement that locks elements, the streams that it may be about
 */
export function lockStreams(locked: readonly ReadonlySet<Queue>[]): Query | null {
  const ids = new Set<number>();
  for (const queues of locked) for (const { id } of queues) if (id !== null) ids.add(id);
  if (ids.size === 0) return null;
  const sorted = [...ids].sort((a, b) => a - b);
  return { statement: locked.length > 1 ? ALONE : SHARED, values: [int4Array(sorted)] };
}
