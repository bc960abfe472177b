import type { RollbackItem } from '../../../engine/old-port.ts';
import { boolArray, int4Array, int8Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { DeadLetters } from '../dead-letters.ts';
import type { Ids } from '../ids.ts';
import type { Lane, Queue } from '../names.ts';
import { flag, type Query, type Row, type Statement } from '../statement.ts';
import { CONTENT_BYTES, NOW, tally, withList } from './fragments.ts';
import { moving } from './moving.ts';
import {
  IS_HOLDER,
  outcomeRows,
  parseRef,
  placeOf,
  REF_PARAMETERS,
  RefColumns,
  refs,
  refusal,
  type Settled,
  wasChanged,
} from './refs.ts';

export interface RollbackArgs {
  readonly queue: Queue;
  /** None named twice. */
  readonly items: readonly RollbackItem[];
}

export interface RollbackHost {
  readonly ids: Ids;
  readonly deadLetters: DeadLetters;
  /** A try was the last one and the element moved. */
  died(lane: Lane): void;
}

type RollbackVerb = Verb<RollbackArgs, Settled[]>;

/** Parameters behind those of the references: delay, whether to count, tries at which the element moves, and where to; null: never. */
function rollbackStatement(moves: boolean): Statement {
  const held = `d.seq = r.seq AND d.lane = r.lane AND d.lease_until > t.now AND ${IS_HOLDER}`;
  const isLast = '(r.counts AND r.target IS NOT NULL AND d.tries + 1 >= r.max_tries)';
  return {
    name: `rollback${moves ? ' moving' : ''}`,
    text: `${withList(
      NOW,
      refs(['delay', 'bigint'], ['counts', 'bool'], ['max_tries', 'int'], ['target', 'int']),
      // Due again at now plus the delay; one that nobody saw, and that is not to be delayed, keeps its place.
      `kept AS (UPDATE delivery d SET lease_until = NULL, token = NULL, tries = d.tries + r.counts::int,
          due_at = CASE WHEN r.counts OR r.delay > 0 THEN t.now + r.delay ELSE d.due_at END
        FROM r, t WHERE ${held}${moves ? ` AND ${isLast} IS NOT TRUE` : ''} RETURNING r.ord, d.lane, d.due_at)`,
      tally('kt', 'kept', { waiting: 'count(*)', reserved: '-count(*)', bytes: '0' }),
      moves &&
        `moved AS (DELETE FROM delivery d USING r, t WHERE ${held} AND ${isLast}
        RETURNING r.ord, r.target, d.seq, d.lane, d.due_at, d.tries, d.head, d.body, ${CONTENT_BYTES})`,
      ...(moves ? moving(REF_PARAMETERS + 5) : []),
      `g AS (SELECT ord, false AS died FROM kept${moves ? ' UNION ALL SELECT ord, true FROM moved' : ''})`,
    )} ${outcomeRows(', g.died')}`,
  };
}

/** A queue whose elements may move needs the longer statement. */
export function rollbackVerbs(host: RollbackHost): (queue: Queue) => RollbackVerb {
  const verb = (moves: boolean): RollbackVerb => {
    const statement = rollbackStatement(moves);
    return {
      name: statement.name,
      locksElements: moves,
      batch: () => new RollbackBatch(host, statement, moves),
    };
  };
  const [staying, moving] = [verb(false), verb(true)];
  return (queue) => (host.deadLetters.targetOf(queue) === null ? staying : moving);
}

class RollbackBatch implements Batch<RollbackArgs, Settled[]> {
  readonly #host: RollbackHost;
  readonly #statement: Statement;
  readonly #moves: boolean;
  readonly #refs = new RefColumns();
  readonly #items: RollbackItem[] = [];
  readonly #steps: (number | null)[][] = [];
  /** Lanes in which something regains an old maturity. */
  readonly #uncounted = new Set<Lane>();

  constructor(host: RollbackHost, statement: Statement, moves: boolean) {
    this.#host = host;
    this.#statement = statement;
    this.#moves = moves;
  }

  add({ queue, items }: RollbackArgs): boolean {
    const parsed = items.map((item) => parseRef(this.#host.ids, queue, item));
    if (!this.#refs.hasRoomFor(parsed)) return false;
    const places = items.map((item, index) => {
      const ref = parsed[index] ?? null;
      if (ref !== null) this.#items.push(item);
      if (ref !== null && !item.countTry) this.#uncounted.add(ref.lane);
      return this.#refs.add(ref);
    });
    this.#steps.push(places);
    this.#lowerMarks();
    return true;
  }

  query(): Query | null {
    if (this.#refs.count === 0) return null;
    const { deadLetters } = this.#host;
    const targets = this.#items.map((_, place) => deadLetters.targetOf(this.#refs.at(place).lane.queue));
    const values = [
      ...this.#refs.values(),
      int8Array(this.#items.map(({ delayMs }) => Math.ceil(delayMs))),
      boolArray(this.#items.map(({ countTry }) => countTry)),
      int4Array(targets.map((target) => target?.maxTries ?? null)),
      int4Array(targets.map((target) => target?.number ?? null)),
      ...(this.#moves ? deadLetters.values() : []),
    ];
    return { statement: this.#statement, values };
  }

  read(rows: readonly Row[]): Settled[][] {
    this.#lowerMarks();
    const outcomes: Settled[] = [];
    for (const row of rows) {
      const place = placeOf(row);
      const ref = this.#refs.at(place);
      if (!wasChanged(row)) outcomes[place] = refusal(row, ref, 'other');
      else if (flag(row, 6)) {
        this.#host.died(ref.lane);
        outcomes[place] = 'dead-lettered';
      } else outcomes[place] = 'done';
    }
    return this.#steps.map((places) =>
      places.map((place) => (place === null ? 'not-found' : (outcomes[place] ?? 'not-found'))),
    );
  }

  /** Before it is sent and after it is done: a probe in between may not have seen what went back. */
  #lowerMarks(): void {
    for (const { mark } of this.#uncounted) mark.lower(Number.NEGATIVE_INFINITY);
  }
}
