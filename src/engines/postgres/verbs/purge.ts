import { DELIVERY_STATES, type DeliveryState } from '../../../model/element.ts';
import { int4Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { Queue } from '../names.ts';
import { number, type Query, type Row, type Statement } from '../statement.ts';
import { CONTENT_BYTES, finishShared, NOW, ONE_LESS_OF_EITHER, tally, withList } from './fragments.ts';

/** What one step of a purge is about: a state, or ready and scheduled ones together. */
export type PurgeState = DeliveryState | 'waiting';

export interface PurgeArgs {
  readonly queue: Queue;
  /** Elements with a larger number were inserted after the purge began; null in its first step. */
  readonly upTo: number | null;
}

export interface Purged {
  readonly gone: number;
  readonly upTo: number;
  /** Whether there may be more. */
  readonly isCut: boolean;
}

/** Deliveries that go in one statement, so that none takes long enough to keep others waiting. */
const AT_ONCE = 10_000;

function purgeStatement(state: PurgeState): Statement {
  const where = {
    waiting: 'd.lease_until IS NULL',
    ready: 'd.lease_until IS NULL AND d.due_at <= t.now',
    scheduled: 'd.lease_until IS NULL AND d.due_at > t.now',
    reserved: 'd.lease_until IS NOT NULL',
  }[state];
  return {
    name: `purge ${state}`,
    text: `${withList(
      `${NOW}, b AS MATERIALIZED (SELECT coalesce($2::bigint, (SELECT last_value FROM element_seq)) AS up_to)`,
      `f AS MATERIALIZED (SELECT x.tid FROM t CROSS JOIN b CROSS JOIN unnest($1::int[]) AS l(id) CROSS JOIN LATERAL (
        SELECT d.ctid AS tid FROM delivery d WHERE d.lane = l.id AND ${where} AND d.seq <= b.up_to
        LIMIT ${AT_ONCE} FOR UPDATE SKIP LOCKED) x LIMIT ${AT_ONCE})`,
      `g AS (DELETE FROM delivery d USING f WHERE d.ctid = f.tid
        RETURNING d.seq, d.lane, d.due_at, d.lease_until, d.head, ${CONTENT_BYTES})`,
      finishShared('g'),
      tally('gt', 'g', ONE_LESS_OF_EITHER),
    )} SELECT (SELECT count(*) FROM f), (SELECT count(*) FROM g), b.up_to FROM b`,
  };
}

/**
 * The steps that remove what is in these states. A delivery must not slip from one state into another between two
 * steps: what matures meanwhile is waiting before and after, and what is given back meanwhile is looked for
 * once more.
 */
export function purgeSteps(states: readonly DeliveryState[]): PurgeState[] {
  const isWaiting = states.includes('ready') && states.includes('scheduled');
  if (!isWaiting) return [...new Set(states)];
  return states.includes('reserved') ? ['waiting', 'reserved', 'waiting'] : ['waiting'];
}

export function purgeVerbs(): (state: PurgeState) => Verb<PurgeArgs, Purged> {
  const verbs = new Map(
    (['waiting', ...DELIVERY_STATES] as const).map((state) => {
      const statement = purgeStatement(state);
      return [state, { name: statement.name, locksElements: true, batch: () => new PurgeBatch(statement) }];
    }),
  );
  return (state) => {
    const verb = verbs.get(state);
    if (verb === undefined) throw new Error(`there is no state ${state}`);
    return verb;
  };
}

class PurgeBatch implements Batch<PurgeArgs, Purged> {
  readonly #statement: Statement;
  #args: PurgeArgs | null = null;

  constructor(statement: Statement) {
    this.#statement = statement;
  }

  add(args: PurgeArgs): boolean {
    if (this.#args !== null) return false;
    this.#args = args;
    return true;
  }

  query(): Query | null {
    const lanes = [...(this.#args?.queue.lanes.values() ?? [])].map(({ id }) => id);
    const upTo = this.#args?.upTo ?? null;
    if (lanes.length === 0) return null;
    return { statement: this.#statement, values: [int4Array(lanes), upTo === null ? null : String(upTo)] };
  }

  read([row]: readonly Row[]): Purged[] {
    if (row === undefined) return [{ gone: 0, upTo: 0, isCut: false }];
    return [{ gone: number(row, 1), upTo: number(row, 2), isCut: number(row, 0) >= AT_ONCE }];
  }
}
