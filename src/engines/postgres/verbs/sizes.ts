import type { GroupSizes, QueueSizes } from '../../../engine/old-port.ts';
import type { GroupName } from '../../../model/element.ts';
import { int4Array, int8Array } from '../arrays.ts';
import type { Batch, Verb } from '../call.ts';
import type { Lane, Queue } from '../names.ts';
import type { Prober } from '../prober.ts';
import { number, numberOrNull, type Parameter, type Query, type Row, type Statement } from '../statement.ts';
import { NOW, STEP_BITS, withList } from './fragments.ts';

export interface SizesArgs {
  readonly queue: Queue;
  readonly group: GroupName;
}

/**
 * Counts come from the tally: steps of due time that are past are ready, those to come are scheduled, and of
 * the present one the scheduled are counted in the index.
 */
const LANES = `SELECT l.ord, s.waiting - s.later - x.soon, s.later + x.soon, s.reserved,
    s.first, (SELECT d.due_at FROM delivery d WHERE d.lane = l.id AND d.lease_until IS NULL
      AND (d.due_at, d.seq) >= (l.from_due, l.from_seq) ORDER BY d.due_at, d.seq LIMIT 1)
  FROM t CROSS JOIN unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
    AS l(id, from_due, from_seq, from_id, ord)
  CROSS JOIN LATERAL (
    SELECT coalesce(sum(waiting), 0) AS waiting, coalesce(sum(reserved), 0) AS reserved,
      coalesce(sum(waiting) FILTER (WHERE step > t.now >> ${STEP_BITS}), 0) AS later, min(y.id) AS first
    FROM tally y WHERE y.lane = l.id AND y.id >= l.from_id) s
  CROSS JOIN LATERAL (
    SELECT count(*) AS soon FROM delivery d WHERE d.lane = l.id AND d.lease_until IS NULL
      AND d.due_at > t.now AND d.due_at < ((t.now >> ${STEP_BITS}) + 1) << ${STEP_BITS}) x`;

const SIZES: Statement = { name: 'sizes', text: `${withList(NOW)} ${LANES}` };

/**
 * The same, and in a row 0 the elements, each in its most advanced state. How many there are is in the tally.
 * Those with nothing but reserved deliveries are looked for among the reserved, those with nothing ready among
 * the scheduled; all others are ready. So a deep stream costs no more than a shallow one, unless it is
 * deep in scheduled elements.
 */
const STREAM_SIZES: Statement = {
  name: 'sizes of a stream',
  text: `${withList(
    NOW,
    `a AS MATERIALIZED (SELECT coalesce(sum(waiting), 0) AS elements, min(id) AS first FROM tally
      WHERE lane = -$5::int AND id >= $6::bigint)`,
    `r AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM unnest($1::int[]) AS l(id)
        JOIN delivery d ON d.lane = l.id AND d.head IS NULL AND d.lease_until IS NOT NULL) x
      WHERE NOT EXISTS (SELECT FROM delivery w WHERE w.seq = x.seq AND w.lease_until IS NULL))`,
    `s AS MATERIALIZED (SELECT count(*) AS elements FROM (
        SELECT DISTINCT d.seq FROM t CROSS JOIN unnest($1::int[]) AS l(id)
        JOIN delivery d ON d.lane = l.id AND d.lease_until IS NULL AND d.due_at > t.now AND d.head IS NULL) x
      CROSS JOIN t
      WHERE NOT EXISTS (SELECT FROM delivery w WHERE w.seq = x.seq AND w.lease_until IS NULL AND w.due_at <= t.now))`,
  )}
  ${LANES}
  UNION ALL
  SELECT 0, a.elements - r.elements - s.elements, s.elements, r.elements, a.first, NULL FROM a, r, s`,
};

export interface SizesHost {
  readonly prober: Prober;
  /** Milliseconds from an arbitrary start. */
  readonly monotonic: () => number;
}

/** Sizes of one group. */
export function sizesVerb(host: SizesHost): Verb<SizesArgs, GroupSizes> {
  return { name: SIZES.name, batch: () => new SizesBatch(host) };
}

/** Sizes of a stream's elements. */
export function streamSizesVerb(host: SizesHost): Verb<Queue, QueueSizes> {
  return { name: STREAM_SIZES.name, batch: () => new StreamSizesBatch(host) };
}

/** Sizes of the lane that was asked for; nothing is there where the queue has no such group. */
class SizesBatch implements Batch<SizesArgs, GroupSizes> {
  readonly #reads: LaneReads;
  readonly #lanes: Lane[] = [];
  readonly #steps: (number | null)[] = [];

  constructor(host: SizesHost) {
    this.#reads = new LaneReads(host);
  }

  add({ queue, group }: SizesArgs): boolean {
    const lane = queue.lanes.get(group);
    this.#steps.push(lane === undefined ? null : this.#lanes.push(lane) - 1);
    return true;
  }

  query(): Query | null {
    this.#reads.sent();
    return this.#lanes.length === 0 ? null : { statement: SIZES, values: laneValues(this.#lanes) };
  }

  read(rows: readonly Row[]): GroupSizes[] {
    const found: GroupSizes[] = [];
    for (const row of rows) {
      const place = number(row, 0) - 1;
      found[place] = readSizes(row);
      const lane = this.#lanes[place];
      if (lane !== undefined) this.#reads.note(lane, row);
    }
    return this.#steps.map((place) => (place === null ? null : found[place]) ?? EMPTY);
  }
}

const EMPTY: GroupSizes = { ready: 0, scheduled: 0, reserved: 0, nextMatureAt: null };

function readSizes(row: Row): GroupSizes {
  const [ready, scheduled, reserved] = [number(row, 1), number(row, 2), number(row, 3)];
  return { ready, scheduled, reserved, nextMatureAt: ready + scheduled === 0 ? null : numberOrNull(row, 5) };
}

/** A read that takes longer may have stepped over much that is dead; a look from the second connection tells. */
const SLOW_MS = 20;

/** What a read of lanes tells of where the next one may begin. */
class LaneReads {
  readonly #host: SizesHost;
  #sentAt = 0;

  constructor(host: SizesHost) {
    this.#host = host;
  }

  sent(): void {
    this.#sentAt = this.#host.monotonic();
  }

  note(lane: Lane, row: Row): void {
    const now = this.#host.monotonic();
    lane.tally.read(numberOrNull(row, 4), now);
    if (now - this.#sentAt > SLOW_MS) this.#host.prober.asked(lane);
  }
}

/** One stream a statement. */
class StreamSizesBatch implements Batch<Queue, QueueSizes> {
  readonly #host: SizesHost;
  readonly #reads: LaneReads;
  #queue: Queue | null = null;

  constructor(host: SizesHost) {
    this.#host = host;
    this.#reads = new LaneReads(host);
  }

  add(queue: Queue): boolean {
    if (this.#queue !== null) return false;
    this.#queue = queue;
    return true;
  }

  query(): Query | null {
    const queue = this.#queue;
    if (queue === null || queue.id === null || queue.lanes.size === 0) return null;
    this.#reads.sent();
    const values = [...laneValues([...queue.lanes.values()]), String(queue.id), String(queue.tally.from)];
    return { statement: STREAM_SIZES, values };
  }

  read(rows: readonly Row[]): QueueSizes[] {
    const lanes = [...(this.#queue?.lanes.values() ?? [])];
    const groups = new Map<GroupName, GroupSizes>();
    let elements: GroupSizes = EMPTY;
    let nextMatureAt: number | null = null;
    for (const row of rows) {
      const sizes = readSizes(row);
      const lane = lanes[number(row, 0) - 1];
      if (lane === undefined) {
        elements = sizes;
        this.#queue?.tally.read(numberOrNull(row, 4), this.#host.monotonic());
        continue;
      }
      this.#reads.note(lane, row);
      if (sizes.ready + sizes.scheduled + sizes.reserved > 0) {
        groups.set(lane.group, sizes);
        nextMatureAt = earliest(nextMatureAt, sizes.nextMatureAt);
      }
    }
    return [{ ...elements, nextMatureAt, groups }];
  }
}

function laneValues(lanes: readonly Lane[]): Parameter[] {
  const places = lanes.map(({ mark }) => mark.place);
  return [
    int4Array(lanes.map(({ id }) => id)),
    int8Array(places.map(({ dueAt }) => dueAt)),
    int8Array(places.map(({ seq }) => seq)),
    int8Array(lanes.map(({ tally }) => tally.from)),
  ];
}

function earliest(a: number | null, b: number | null): number | null {
  return a === null || (b !== null && b < a) ? b : a;
}
