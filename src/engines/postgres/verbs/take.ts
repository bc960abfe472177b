import type { TakeOptions, TakeResult } from '../../../engine/old-port.ts';
import type { Delivery } from '../../../model/element.ts';
import type { LeaseTokens } from '../../../model/lease-token.ts';
import { ownerNumber } from '../../../model/owner.ts';
import { byteaArray, int4Array, int8Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import { delivery } from '../content.ts';
import type { DatabaseClock } from '../database-clock.ts';
import { drawToken, type Ids, type Token, tokenText } from '../ids.ts';
import type { Leases } from '../leases.ts';
import type { Lane, Queue } from '../names.ts';
import type { Prober } from '../prober.ts';
import { number, numberOrNull, type Query, type Row, type Statement, text } from '../statement.ts';
import { CONTENT_BYTES, finishShared, NOW, tally, WENT, withList } from './fragments.ts';

export interface TakeArgs extends TakeOptions {
  readonly queue: Queue;
}

export interface TakeHost {
  readonly ids: Ids;
  readonly tokens: LeaseTokens;
  readonly clock: DatabaseClock;
  readonly leases: Leases;
  readonly prober: Prober;
}

type TakeVerb = Verb<TakeArgs, TakeResult>;

/**
 * A statement hands out no more bytes than this, however many deliveries were asked for: a thousand bodies
 * of a megabyte would be two gigabytes of text on the wire. Whoever gets too few sees a `nextDueAt` that has
 * passed and asks again.
 */
const MOST_BYTES = 16 * 1024 * 1024;

/**
 * A server that was frozen runs what it had received when it thaws, and whoever asked is long gone. Up to
 * this long after it was sent, by the database's clock, a take hands something out, and not later.
 */
const TAKE_WITHIN_MS = 4000;

/**
 * Row locks make sure that no two takers get the same delivery; `SKIP LOCKED` that no taker waits for another
 * node's. Rows are changed by their place in the table, which their lock keeps from moving. Measured against
 * a join by key: 15 % less work.
 */
function takeStatement({ reserves, shared }: { reserves: boolean; shared: boolean }): Statement {
  const requests = reserves
    ? 'unnest($1::int[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[]) WITH ORDINALITY AS r(lane, n, from_due, from_seq, lease, token, secret, owner, ord)'
    : 'unnest($1::int[], $2::int[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS r(lane, n, from_due, from_seq, ord)';
  const eligible = `picked AS MATERIALIZED (SELECT r.ord${reserves ? ', t.now + r.lease AS until, r.token, r.secret, r.owner' : ''}, d.*
    FROM t CROSS JOIN ${requests} CROSS JOIN LATERAL (
      SELECT ctid AS tid, due_at, seq, bytes FROM delivery
      WHERE lane = r.lane AND lease_until IS NULL AND due_at <= t.now AND (due_at, seq) >= (r.from_due, r.from_seq)
      ORDER BY due_at, seq LIMIT r.n FOR UPDATE SKIP LOCKED) d
    WHERE t.now <= $${reserves ? 9 : 5}::bigint)`;
  const fitting = `k AS MATERIALIZED (SELECT p.*, row_number() OVER w AS place, sum(p.bytes) OVER w - p.bytes AS before
    FROM picked p WINDOW w AS (ORDER BY p.ord, p.due_at, p.seq))`;
  const columns = 'k.ord, d.seq, d.lane, d.due_at, d.tries, d.lease_until, d.token, d.head, d.body';
  const returned = reserves ? columns : `${columns}, ${CONTENT_BYTES}`;
  const chosen = `d.ctid = k.tid AND k.before < ${MOST_BYTES}`;
  const taken = reserves
    ? `g AS (UPDATE delivery d SET lease_until = k.until, token = k.token + k.place, secret = k.secret, owner = k.owner FROM k WHERE ${chosen} RETURNING ${returned})`
    : `g AS (DELETE FROM delivery d USING k WHERE ${chosen} RETURNING ${returned})`;
  const content = shared ? 'coalesce(g.head, e.head), coalesce(g.body, e.body)' : 'g.head, g.body';
  const join = shared ? 'LEFT JOIN element e ON g.head IS NULL AND e.seq = g.seq' : '';
  const next = `(SELECT d.due_at FROM delivery d WHERE d.lane = r.lane AND d.lease_until IS NULL AND d.due_at > t.now
      ORDER BY d.due_at, d.seq LIMIT 1)`;
  return {
    name: `${reserves ? 'reserve' : 'pop'}${shared ? ' shared' : ''}`,
    text: `${withList(
      NOW,
      eligible,
      fitting,
      taken,
      shared && !reserves && finishShared('g'),
      tally('gt', 'g', {
        waiting: '-count(*)',
        reserved: reserves ? 'count(*)' : '0',
        bytes: reserves ? '0' : WENT,
      }),
    )}
    SELECT g.ord, g.due_at, g.seq, g.tries, g.lease_until, g.token, ${content} FROM g ${join}
    UNION ALL
    SELECT r.ord, ${next}, NULL, NULL, t.now, NULL, (SELECT bool_or(k.before >= ${MOST_BYTES}) FROM k)::text, NULL
    FROM t CROSS JOIN ${requests} ORDER BY 1, 2, 3`,
  };
}

/** The verb for a take of a queue: pop or reserve, with or without shared elements. */
export function takeVerbs(host: TakeHost): (args: TakeArgs) => TakeVerb {
  const verb = (reserves: boolean, shared: boolean): TakeVerb => {
    const statement = takeStatement({ reserves, shared });
    return {
      name: statement.name,
      locksElements: shared && !reserves,
      batch: () => new TakeBatch(host, statement, reserves),
    };
  };
  const plain = { pop: verb(false, false), reserve: verb(true, false) };
  const stream = { pop: verb(false, true), reserve: verb(true, true) };
  return ({ queue, leaseMs }) => {
    const verbs = queue.isStream ? stream : plain;
    return leaseMs === null ? verbs.pop : verbs.reserve;
  };
}

/** What is asked for one lane: by several steps, if they ask alike, which share what is found in their order. */
interface Request {
  readonly lane: Lane;
  readonly leaseMs: number | null;
  /** What the tokens of its reservations are counted from; null for pops. */
  readonly token: Token | null;
  readonly owner: number;
  readonly counts: number[];
}

class TakeBatch implements Batch<TakeArgs, TakeResult> {
  readonly #host: TakeHost;
  readonly #statement: Statement;
  readonly #reserves: boolean;
  readonly #requests: Request[] = [];
  #handOutUntil = 0;
  readonly #byLane = new Map<Lane, number>();
  /** Per step, its request and its turn in it; null where the queue has no such group. */
  readonly #steps: ({ readonly request: number; readonly turn: number } | null)[] = [];

  constructor(host: TakeHost, statement: Statement, reserves: boolean) {
    this.#host = host;
    this.#statement = statement;
    this.#reserves = reserves;
  }

  add({ queue, group, count, leaseMs, owner: user }: TakeArgs): boolean {
    const lane = queue.lanes.get(group);
    if (lane === undefined) {
      this.#steps.push(null);
      return true;
    }
    const owner = this.#reserves ? ownerNumber(user) : 0;
    const at = this.#byLane.get(lane);
    const same = at === undefined ? undefined : this.#requests[at];
    if (at === undefined || same === undefined) {
      this.#byLane.set(lane, this.#requests.length);
      this.#steps.push({ request: this.#requests.length, turn: 0 });
      const token = this.#reserves ? drawToken(this.#host.tokens) : null;
      this.#requests.push({ lane, leaseMs, token, owner, counts: [count] });
      return true;
    }
    if (same.leaseMs !== leaseMs || same.owner !== owner) return false;
    this.#steps.push({ request: at, turn: same.counts.length });
    same.counts.push(count);
    return true;
  }

  query(): Query | null {
    const { now } = this.#host.clock;
    this.#handOutUntil = Number.isFinite(now) ? Math.ceil(now) + TAKE_WITHIN_MS : Number.MAX_SAFE_INTEGER;
    const requests = this.#requests;
    if (requests.length === 0) return null;
    const values = [
      int4Array(requests.map(({ lane }) => lane.id)),
      int4Array(requests.map(({ counts }) => sum(counts))),
      int8Array(requests.map(({ lane }) => lane.mark.place.dueAt)),
      int8Array(requests.map(({ lane }) => lane.mark.place.seq)),
    ];
    if (this.#reserves) {
      values.push(int8Array(requests.map(({ leaseMs }) => Math.ceil(leaseMs ?? 0))));
      values.push(int8Array(requests.map(({ token }) => token?.number ?? 0)));
      values.push(byteaArray(requests.map(({ token }) => Buffer.from(token?.secret ?? '', 'hex'))));
      values.push(int8Array(requests.map(({ owner }) => owner)));
    }
    return { statement: this.#statement, values: [...values, String(this.#handOutUntil)] };
  }

  read(rows: readonly Row[]): TakeResult[] {
    const found = this.#requests.map(
      (): Found => ({ deliveries: [], nextDueAt: null, now: 0, wasCut: false }),
    );
    for (const row of rows) this.#readRow(row, found);
    for (const [index, of] of found.entries()) this.#finish(this.#requests[index], of);
    return this.#steps.map((step) => {
      const request = step === null ? undefined : this.#requests[step.request];
      const of = step === null ? undefined : found[step.request];
      if (step === null || request === undefined || of === undefined)
        return { deliveries: [], nextDueAt: null };
      const from = sum(request.counts.slice(0, step.turn));
      const count = request.counts[step.turn] ?? 0;
      const deliveries = of.deliveries.slice(from, from + count);
      return { deliveries, nextDueAt: deliveries.length < count ? of.nextDueAt : null };
    });
  }

  /** The rows of a request come in the order of hand-out, the one without a number last. */
  #readRow(row: Row, found: readonly Found[]): void {
    const at = number(row, 0) - 1;
    const request = this.#requests[at];
    const of = found[at];
    if (request === undefined || of === undefined) throw new Error('a take answered for nobody');
    if (row[2] === null) {
      of.nextDueAt = numberOrNull(row, 1);
      of.now = number(row, 4);
      of.wasCut = row[6] === 'true';
      return;
    }
    const until = numberOrNull(row, 4);
    const secret = request.token?.secret ?? null;
    const lease = until === null ? null : { token: tokenText({ number: number(row, 5), secret }), until };
    if (until !== null) this.#host.leases.started(until);
    const content = { head: text(row, 6), body: text(row, 7) };
    const state = { tries: number(row, 3), matureAt: number(row, 1), lease };
    of.deliveries.push(delivery(this.#host.ids.text(number(row, 2)), request.lane.group, state, content));
  }

  #finish(request: Request | undefined, of: Found): void {
    if (request === undefined) return;
    const { clock, prober } = this.#host;
    clock.see(of.now);
    prober.took(request.lane, of.deliveries.length);
    if (of.deliveries.length === sum(request.counts)) return;
    // Where the database's clock was set forward, the limit was wrong; it is right the next time.
    if (of.wasCut || of.now > this.#handOutUntil) of.nextDueAt = of.now;
    else of.nextDueAt = prober.lookAgainAt(request.lane, of.now, of.nextDueAt);
  }
}

interface Found {
  deliveries: Delivery[];
  nextDueAt: number | null;
  now: number;
  /** Whether the statement left something behind because of its size. */
  wasCut: boolean;
}

function sum(counts: readonly number[]): number {
  let total = 0;
  for (const count of counts) total += count;
  return total;
}
