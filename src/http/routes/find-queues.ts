import {
  historyLengthMs,
  INTERVAL_MS,
  NO_RATES,
  type QueueReading,
  sumOfHistories,
} from '../../broker/activity.ts';
import type { Namespace } from '../../broker/namespace.ts';
import { oldestReadyMs, readQueue, shownSizes } from '../../broker/queue-record.ts';
import { invalidParameter } from '../../model/errors.ts';
import { type FoundQueue, FoundQueues, type Rates, SumHistory } from '../../model/records.ts';
import { compareStrings } from '../../util/compare-strings.ts';
import { didYouMean } from '../../util/did-you-mean.ts';
import { mapConcurrently } from '../../util/map-concurrently.ts';
import { quote } from '../../util/quote.ts';
import { Type } from '../../util/schema.ts';
import { READ_AT_ONCE, readEach } from '../listing.ts';
import { nameOf, oneOf, type QueryParameter, wholeNumber } from '../parameters.ts';
import { json, type Route, route } from '../route.ts';

/**
 * The measures of a queue that a filter may compare. Ages are in seconds, rates per second. Computed only if they are
 * compared: the rates of 10,000 queues take a tenth of a second.
 */
const MEASURES = {
  ready: ({ reading }) => reading.counts.ready,
  scheduled: ({ reading }) => reading.counts.scheduled,
  reserved: ({ reading }) => reading.counts.reserved,
  depth: ({ reading: { counts } }) => counts.ready + counts.scheduled + counts.reserved,
  age: ({ oldestReadyMs }) => (oldestReadyMs ?? 0) / 1000,
  in: ({ rates }) => rates.insert,
  out: ({ rates }) => rates.take,
} satisfies Record<string, (queue: ReadQueue) => number>;

const MEASURE_NAMES = Object.keys(MEASURES) as (keyof typeof MEASURES)[];
const SORTS = ['name', ...MEASURE_NAMES] as const;
type Sort = (typeof SORTS)[number];

const filter: QueryParameter<QueueFilter | null> = {
  description:
    'Terms that must all match: part of a name, `ns:N` or `ns:"two words"`, `paused`, `running`, and `ready`, `scheduled`, `reserved`, `depth`, `age`, `in` or `out` with a comparison, such as `depth:>1000`.',
  schema: Type.String(),
  fallback: null,
  read: readQueueFilter,
};

const DEFAULT_PAGE = 100;
const MAX_PAGE = 1_000;
const MAX_OFFSET = 1_000_000;

/**
 * Maximum number of changed queues of a namespace that one request reads again. The others keep their last reading,
 * which the next round of the watch replaces.
 */
const MAX_CHANGED = 500;

const namespaceParameter = nameOf(
  'namespace',
  'Only this namespace; defaults to all that the user may read.',
);

export const findQueuesRoutes: readonly Route[] = [
  route({
    id: 'findQueues',
    path: '/queues',
    summary:
      'Find queues of all namespaces, filtered, sorted and in pages, as of the last time that this node read them',
    access: 'user',
    query: {
      filter,
      ns: namespaceParameter,
      sort: oneOf<Sort>('What to sort by; defaults to name.', SORTS),
      order: oneOf<'asc' | 'desc'>('Defaults to `asc` by name, and to `desc` by a number.', ['asc', 'desc']),
      limit: wholeNumber(
        'Maximum number of queues.',
        { from: 1, to: MAX_PAGE, unit: 'a count' },
        DEFAULT_PAGE,
      ),
      offset: wholeNumber('How many to skip before them.', { from: 0, to: MAX_OFFSET, unit: 'a count' }, 0),
    },
    responses: [json('One page.', FoundQueues)],
    problems: ['namespace-not-found', 'invalid-name', 'forbidden', 'storage-unavailable', 'outcome-unknown'],
    handle: (call, { ns, filter, sort, order, limit, offset }) =>
      call.front.limits.listInTurn(call, async () => {
        const { found, unavailable } = await readRows(call.namespacesWith('read', ns));
        const matched = filter === null ? found : found.filter(filter);
        const sortBy = sort ?? 'name';
        const sign = (order ?? (sortBy === 'name' ? 'asc' : 'desc')) === 'asc' ? 1 : -1;
        matched.sort((a, b) => sign * compareBy(sortBy, a, b) || compareNames(a, b));
        call.sendJson({
          queues: matched.slice(offset, offset + limit).map(queueRecord),
          matched: matched.length,
          total: found.length,
          sums: sumsOf(matched),
          unavailable,
        } satisfies FoundQueues);
      }),
  }),
  route({
    id: 'sumHistory',
    path: '/history',
    summary: 'Read the last hour of all queues together, minute by minute, as this node saw it',
    access: 'user',
    query: { ns: namespaceParameter },
    responses: [
      json('Columns of 60 values, the oldest first; null where this node has no value.', SumHistory),
    ],
    problems: ['namespace-not-found', 'invalid-name', 'forbidden'],
    handle(call, { ns }) {
      const { clock } = call.front.parts;
      const histories = call.namespacesWith('read', ns).map(({ activity }) => activity.sumHistory());
      call.sendJson({
        from: new Date(clock.now() - historyLengthMs(clock.monotonic())).toISOString(),
        intervalMs: INTERVAL_MS,
        ...sumOfHistories(histories),
      } satisfies SumHistory);
    },
  }),
];

/** A queue with its last reading. Computes rates only if they are used: most queues are only counted. */
class ReadQueue {
  readonly queue: string;
  readonly reading: QueueReading;
  readonly oldestReadyMs: number | null;
  readonly #namespace: Namespace;
  #rates: Rates | null = null;

  constructor(namespace: Namespace, name: string, reading: QueueReading) {
    this.#namespace = namespace;
    this.queue = name;
    this.reading = reading;
    this.oldestReadyMs = oldestReadyMs({ namespace, key: { ns: namespace.name, name } }, reading.counts);
  }

  get ns(): string {
    return this.#namespace.name;
  }

  get paused(): boolean {
    return this.#namespace.pausedNames.has(this.queue);
  }

  get rates(): Rates {
    const { activity } = this.#namespace;
    this.#rates ??= activity.rates(this.queue, this.reading.totals)?.['1m'] ?? NO_RATES;
    return this.#rates;
  }
}

/**
 * All queues of namespaces. Reads only those that changed since their last reading: 10,000 queues would be 10,000 calls
 * of an engine.
 * @throws QuaysideError the first one's error, if no namespace can be read
 */
async function readRows(
  namespaces: readonly Namespace[],
): Promise<{ found: ReadQueue[]; unavailable: readonly string[] }> {
  const rows = await readEach(namespaces, rowsOf);
  return {
    found: rows.flatMap((found) => found ?? []),
    unavailable: namespaces.filter((_, i) => rows[i] === null).map(({ name }) => name),
  };
}

async function rowsOf(namespace: Namespace): Promise<ReadQueue[]> {
  const { activity } = namespace;
  const names = [...namespace.knownNames];
  const changed = activity.changed(MAX_CHANGED);
  // Without event subscribers, a new queue would otherwise be listed as empty for up to ten seconds.
  const stale = names.filter((name) => activity.last(name) === null || changed.has(name));
  // What was read last does not show whether the engine is available now.
  if (stale.length === 0) stale.push(...names.slice(0, 1));
  await mapConcurrently(stale, READ_AT_ONCE, async (name) => {
    activity.noteReading(name, await readQueue(namespace.visit(name)), changed.get(name) ?? null);
  });
  return names.flatMap((name) => {
    const reading = activity.last(name);
    return reading === null ? [] : [new ReadQueue(namespace, name, reading)];
  });
}

function compareBy(sort: Sort, a: ReadQueue, b: ReadQueue): number {
  return sort === 'name' ? compareNames(a, b) : MEASURES[sort](a) - MEASURES[sort](b);
}

function compareNames(a: ReadQueue, b: ReadQueue): number {
  return compareStrings(a.queue, b.queue) || compareStrings(a.ns, b.ns);
}

function queueRecord({ ns, queue, paused, reading, rates, oldestReadyMs: ageMs }: ReadQueue): FoundQueue {
  return {
    ns,
    queue,
    ...shownSizes(reading.counts),
    oldestReadyAge: ageMs === null ? null : Math.round(ageMs) / 1000,
    paused,
    ...rates,
  };
}

function sumsOf(rows: readonly ReadQueue[]): FoundQueues['sums'] {
  const sums = { size: 0, schedSize: 0, resvSize: 0, totalSize: 0 };
  for (const row of rows) {
    sums.size += MEASURES.ready(row);
    sums.schedSize += MEASURES.scheduled(row);
    sums.resvSize += MEASURES.reserved(row);
    sums.totalSize += MEASURES.depth(row);
  }
  return sums;
}

type QueueFilter = (queue: ReadQueue) => boolean;

/** Maximum number of words of a filter: each of them is tested on each queue. */
const MAX_WORDS = 16;
/** A word in double quotes may contain spaces, and `"` or `\` after a `\`. */
const WORD = /(?:[a-z]+:)?"(?:[^"\\]|\\.)*"(?=\s|$)|\S+/gis;
const QUOTED = /^"((?:[^"\\]|\\.)*)"$/s;
const COMPARISON = /^(>=|<=|>|<|=)?(\d{1,15}(?:\.\d{1,9})?)$/;
const QUALIFIED = /^([a-z]+):(.*)$/is;

/**
 * Parses a filter: parts of names, `ns:N`, `depth:>1000`, `paused`, `running`, `queue:word` for a part of a name that
 * is one of these words, and double quotes around values with spaces. All terms must match. Letter case does not
 * matter.
 * @throws QuaysideError `invalid-parameter`
 */
function readQueueFilter(name: string, text: string): QueueFilter {
  const words = text.match(WORD) ?? [];
  if (words.length > MAX_WORDS) {
    throw invalidParameter(name, `${name} has ${words.length} words. Allowed: up to ${MAX_WORDS}.`);
  }
  const filters = words.map((word) => filterOf(name, word));
  return (queue) => filters.every((filter) => filter(queue));
}

function filterOf(name: string, word: string): QueueFilter {
  const lower = word.toLowerCase();
  if (lower === 'paused') return ({ paused }) => paused;
  if (lower === 'running') return ({ paused }) => !paused;
  // Match the unquoted word, but quote the given one in messages: it can be copied into a filter.
  const unquotedWord = unquoted(lower);
  const [, qualifier, given = ''] = QUALIFIED.exec(unquotedWord) ?? [];
  if (qualifier === undefined) return nameContains(unquotedWord);
  const value = unquoted(given);
  if (qualifier === 'ns') return ({ ns }) => ns.toLowerCase() === value;
  if (qualifier === 'queue') return nameContains(value);
  const measure = MEASURE_NAMES.find((one) => one === qualifier);
  if (measure === undefined) {
    const known = [...MEASURE_NAMES, 'ns', 'queue'];
    const hint =
      didYouMean(qualifier, known) ||
      ` Allowed: ${known.join(', ')}; to search for it in names, write ${quote(`queue:${word}`)}.`;
    throw invalidParameter(
      name,
      `${name} has ${quote(word)}, but there is no measure ${quote(qualifier)}.${hint}`,
    );
  }
  const [, sign = '=', digits] = COMPARISON.exec(value) ?? [];
  if (digits === undefined) {
    throw invalidParameter(
      name,
      `${name} has ${quote(word)}. Give a number after ${measure}:, or one of > >= < <= = and a number.`,
    );
  }
  const bound = Number(digits);
  return (queue) => compare(MEASURES[measure](queue), sign, bound);
}

function unquoted(word: string): string {
  const [, text] = QUOTED.exec(word) ?? [];
  return text === undefined ? word : text.replace(/\\(["\\])/g, '$1');
}

function nameContains(part: string): QueueFilter {
  return ({ queue }) => queue.toLowerCase().includes(part);
}

function compare(value: number, sign: string, bound: number): boolean {
  if (sign === '>') return value > bound;
  if (sign === '<') return value < bound;
  if (sign === '>=') return value >= bound;
  return sign === '<=' ? value <= bound : value === bound;
}
