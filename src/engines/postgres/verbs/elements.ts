import { hash } from 'node:crypto';
import type { GroupName, NewElement } from '../../../model/element.ts';
import { boolArray, byteaArray, int4Array, int8Array, textArray } from '../arrays.ts';
import { encodeHead } from '../content.ts';
import type { Lane, Queue } from '../names.ts';
import type { Parameter } from '../statement.ts';
import { CAME, CONTENT_BYTES, elementColumns, queueOf, tally, tallyElements } from './fragments.ts';

/** Which of the rarer things some element of a statement has; each costs something, so each has its own text. */
export interface ElementKinds {
  /** A stream's queue, whose groups share elements. */
  readonly shared: boolean;
  /** A dedup key. */
  readonly keyed: boolean;
}

export function kindsOf(
  inserts: Iterable<{ readonly queue: Queue; readonly element: NewElement }>,
): ElementKinds {
  let shared = false;
  let keyed = false;
  for (const { queue, element } of inserts) {
    shared ||= queue.isStream;
    keyed ||= element.dedupKey !== null;
  }
  return { shared, keyed };
}

/** New elements as columns, in the order of the parameters that {@link storing} reads. */
export class ElementColumns {
  readonly #kinds: ElementKinds;
  readonly #lanes: number[] = [];
  readonly #laneSets: Buffer[] = [];
  readonly #dues: (number | null)[] = [];
  readonly #delays: number[] = [];
  readonly #tries: number[] = [];
  readonly #isInStream: boolean[] = [];
  readonly #heads: Buffer[] = [];
  readonly #bodies: Uint8Array[] = [];
  readonly #queues: number[] = [];
  readonly #keys: (Buffer | null)[] = [];
  readonly #fingerprints: (Buffer | null)[] = [];
  readonly #seen = new Map<string, number>();
  /** What matures at a moment of the producer's choice, which may lie in the past. */
  readonly #chosen: { readonly lane: Lane; readonly dueAt: number }[] = [];

  constructor(kinds: ElementKinds) {
    this.#kinds = kinds;
  }

  get count(): number {
    return this.#heads.length;
  }

  /** The place of the element with this key, if the columns have one; a statement cannot take a key twice. */
  placeOfKey(queue: Queue, { dedupKey }: NewElement): number | undefined {
    return dedupKey === null ? undefined : this.#seen.get(keyName(queue, keyHash(dedupKey)));
  }

  /** Adds an element of a queue that has its number and lanes. Answers its place. */
  add(queue: Queue, element: NewElement): number {
    const place = this.count;
    const lanes = [...new Set(element.groups)].map((group) => laneOf(queue, group));
    const dueAt = element.matureAt === null ? null : Math.ceil(element.matureAt);
    if (dueAt !== null) for (const lane of lanes) this.#choose(lane, dueAt);
    if (this.#kinds.shared) this.#laneSets.push(Buffer.from(`{${lanes.map(({ id }) => id).join(',')}}`));
    else this.#lanes.push(lanes[0]?.id ?? 0);
    this.#dues.push(dueAt);
    this.#delays.push(Math.ceil(element.delayMs));
    this.#tries.push(element.tries);
    this.#isInStream.push(queue.isStream);
    this.#heads.push(encodeHead(element));
    this.#bodies.push(element.body);
    if (this.#kinds.keyed) this.#addKey(queue, element, place);
    return place;
  }

  /** They are stored. A probe that looked meanwhile may not have seen them, so marks are lowered once more. */
  stored(): void {
    for (const { lane, dueAt } of this.#chosen) lane.mark.lower(dueAt);
  }

  /** What the database calls the key of the element at this place; null where it has none. */
  keyNameAt(place: number): string | null {
    const key = this.#keys[place] ?? null;
    return key === null ? null : storedKeyName(this.#queues[place] ?? 0, `\\x${key.toString('hex')}`);
  }

  values(): Parameter[] {
    const { shared, keyed } = this.#kinds;
    return [
      shared ? textArray(this.#laneSets) : int4Array(this.#lanes),
      int8Array(this.#dues),
      int8Array(this.#delays),
      int4Array(this.#tries),
      boolArray(this.#isInStream),
      textArray(this.#heads),
      byteaArray(this.#bodies),
      ...(keyed ? [int4Array(this.#queues), byteaArray(this.#keys), textArray(this.#fingerprints)] : []),
    ];
  }

  #choose(lane: Lane, dueAt: number): void {
    lane.mark.lower(dueAt);
    this.#chosen.push({ lane, dueAt });
  }

  #addKey(queue: Queue, { dedupKey, fingerprint = null }: NewElement, place: number): void {
    const key = dedupKey === null ? null : keyHash(dedupKey);
    this.#queues.push(queue.id ?? 0);
    this.#keys.push(key);
    this.#fingerprints.push(fingerprint === null ? null : Buffer.from(fingerprint));
    if (key !== null) this.#seen.set(keyName(queue, key), place);
  }
}

/** How a key is named in an answer: by its queue's number and PostgreSQL's text of its hash. */
export function storedKeyName(queue: number, key: string): string {
  return `${queue} ${key}`;
}

/**
 * The `WITH` entries that store elements: `n` has those that are new, `i` all that were given.
 * Needs `t`, and where keys are checked also a parameter for the dedup window.
 * @param first the number of the first parameter of {@link ElementColumns}
 * @param extra more columns of the elements, after those: name and array parameter
 * @param where which of the elements to store, over alias `u`
 */
export function storing(
  { shared, keyed }: ElementKinds,
  first: number,
  {
    windowParameter,
    extra,
    where,
  }: { windowParameter: number; extra?: readonly [string, string]; where?: string },
): string[] {
  const types = [shared ? 'text' : 'int', 'bigint', 'bigint', 'int', 'bool', 'text', 'bytea'];
  const names = [shared ? 'lanes' : 'lane', 'due', 'delay', 'tries', 'in_stream', 'head', 'body'];
  if (keyed) {
    types.push('int', 'bytea', 'text');
    names.push('queue', 'key', 'fingerprint');
  }
  const arrays = types.map((type, index) => `$${first + index}::${type}[]`);
  if (extra) {
    names.push(extra[0]);
    arrays.push(extra[1]);
  }
  return [
    `i AS MATERIALIZED (SELECT nextval('element_seq') AS seq, u.*
      FROM unnest(${arrays.join(', ')}) WITH ORDINALITY AS u(${names.join(', ')}, ord)${where ? ` WHERE ${where}` : ''})`,
    ...(keyed ? checkingKeys(windowParameter) : []),
    ...storingNew(shared, keyed ? 'n' : 'i'),
  ];
}

/**
 * A key that is there and not too old keeps its element and its age. The row is written anyway: that is
 * what makes PostgreSQL wait for another node's insert of the same key and answer whose it is.
 */
function checkingKeys(windowParameter: number): string[] {
  const isOld = `x.seen_at <= excluded.seen_at - $${windowParameter}::bigint`;
  return [
    `q AS (INSERT INTO dedup AS x (queue, key, seq, seen_at, fingerprint)
      SELECT i.queue, i.key, i.seq, t.now, i.fingerprint FROM i, t WHERE i.key IS NOT NULL ORDER BY i.queue, i.key
      ON CONFLICT (queue, key) DO UPDATE SET
        seq = CASE WHEN ${isOld} THEN excluded.seq ELSE x.seq END,
        seen_at = CASE WHEN ${isOld} THEN excluded.seen_at ELSE x.seen_at END,
        fingerprint = CASE WHEN ${isOld} THEN excluded.fingerprint ELSE x.fingerprint END
      RETURNING queue, key, seq, fingerprint)`,
    // "IS TRUE" keeps the planner from turning the look-up in a hash into a comparison of each with each.
    'n AS MATERIALIZED (SELECT i.* FROM i WHERE i.key IS NULL OR (i.seq IN (SELECT q.seq FROM q)) IS TRUE)',
  ];
}

function storingNew(shared: boolean, from: string): string[] {
  const lane = shared ? 'l.lane' : 'n.lane';
  const content = (column: string): string =>
    shared ? `CASE WHEN NOT n.in_stream THEN n.${column} END` : `n.${column}`;
  return [
    `d AS (INSERT INTO delivery AS d (seq, due_at, inserted_at, lane, tries, bytes, head, body)
      SELECT n.seq, coalesce(n.due, t.now + n.delay), CASE WHEN n.in_stream THEN t.now END, ${lane}, n.tries,
        octet_length(n.head) + octet_length(n.body), ${content('head')}, ${content('body')}
      FROM ${from} n CROSS JOIN t${shared ? ' CROSS JOIN LATERAL unnest(n.lanes::int[]) AS l(lane)' : ''}
      RETURNING d.lane, d.due_at, ${CONTENT_BYTES})`,
    ...(shared ? storingShared(from) : []),
    tally('dt', 'd', { waiting: 'count(*)', reserved: '0', bytes: CAME }),
  ];
}

function storingShared(from: string): string[] {
  return [
    `e AS (INSERT INTO element AS e (seq, queue, remaining, head, body)
      SELECT n.seq, ${queueOf('(n.lanes::int[])[1]')}, cardinality(n.lanes::int[]), n.head, n.body
      FROM ${from} n WHERE n.in_stream RETURNING ${elementColumns('e')})`,
    tallyElements('et', 'e', ''),
  ];
}

function laneOf(queue: Queue, group: GroupName): Lane {
  const lane = queue.lanes.get(group);
  if (lane === undefined) throw new Error(`group "${group}" of ${queue.key.name} has no number`);
  return lane;
}

function keyHash(key: string): Buffer {
  return hash('sha256', key, 'buffer');
}

function keyName(queue: Queue, key: Buffer): string {
  return `${queue.id} ${key.toString('latin1')}`;
}
