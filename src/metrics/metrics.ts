import { setImmediate as turn } from 'node:timers/promises';
import type { Gauge } from '@prometheus-io/client';
import type { Broker } from '../broker/broker.ts';
import { OPERATIONS, STORAGE_TIME_BUCKETS_S } from '../broker/meter.ts';
import type { Namespace } from '../broker/namespace.ts';
import { oldestReadyMs } from '../broker/queue-record.ts';
import type { DiskUsage } from '../engine/engine.ts';
import type { Counters } from '../engine/stats.ts';
import type { QueueCounts } from '../engine/storage.ts';
import type { EventCounts } from '../events/publisher.ts';
import { idOf } from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { DestinationCounters, ExchangeOverview } from '../exchange/record.ts';
import { DELIVERY_STATES, type GroupName } from '../model/element.ts';
import type { EngineHealth } from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import type { BulkOperations } from '../operations/operations.ts';
import type { SessionCounts } from '../session/server.ts';
import type { SpanCounts } from '../tracing/exporter.ts';
import type { Clock } from '../util/clock.ts';
import { Histogram } from '../util/histogram.ts';
import { mapConcurrently } from '../util/map-concurrently.ts';

export interface MetricsSources {
  readonly broker: Broker;
  readonly clock: Pick<Clock, 'monotonic'>;
  readonly exchanges: Pick<Exchanges, 'overview'>;
  readonly operations: Pick<BulkOperations, 'overview'>;
  readonly version: string;
  /** Whether queues have series of their own: `metrics.perQueue`. */
  readonly perQueue: boolean;
  /** How long HTTP requests took, by operation. */
  readonly requestTimes: () => ReadonlyMap<string, Histogram>;
  /** The engines of this node, each URL once. */
  readonly engines: () => Promise<readonly EngineHealth[]>;
  /** Logins by outcome. */
  readonly logins: () => Readonly<Record<string, number>>;
  readonly events: () => Readonly<EventCounts>;
  /** Spans by outcome; undefined if tracing is off. */
  readonly spans?: () => Readonly<SpanCounts>;
  /** The counts of each front end with sessions, by protocol. */
  readonly sessions: () => ReadonlyMap<string, SessionCounts>;
}

/** For this long after a collection of numbers, scrapes share it. */
const SHARED_MS = 1_000;

interface Collection {
  /** Its end, on the monotonic clock; infinite while it runs. */
  endedAt: number;
  readonly numbers: Promise<Numbers>;
  /** Formatted texts, by the namespaces that a viewer may see and read. */
  readonly texts: Map<string, Promise<string>>;
}

interface Numbers {
  readonly families: readonly Family[];
  /** All namespaces on which what a viewer gets depends. Stored exchanges may name some that are not configured. */
  readonly namespaces: ReadonlySet<string>;
}

/**
 * The text of `/metrics`. Numbers are collected when they are scraped, at most once a second and never twice at once:
 * an engine that is slow must not get more to do because of that. Each viewer gets those of the namespaces that it may
 * see. Formatting thousands of series is the larger part of a scrape, so the texts are cached as well.
 */
export class Metrics {
  readonly #sources: MetricsSources;
  #collection: Collection | null = null;

  constructor(sources: MetricsSources) {
    this.#sources = sources;
  }

  async text(viewer: Viewer): Promise<string> {
    const { clock } = this.#sources;
    if (this.#collection === null || clock.monotonic() - this.#collection.endedAt >= SHARED_MS) {
      this.#collection = this.#startCollection();
    }
    const { numbers, texts } = this.#collection;
    const { families, namespaces } = await numbers;
    const visible = [...namespaces].filter((name) => viewer.maySee(name));
    const key = JSON.stringify(visible.map((name) => [name, viewer.may('read', name)]));
    const text = texts.get(key) ?? exposition(families, viewer);
    texts.set(key, text);
    return text;
  }

  #startCollection(): Collection {
    const numbers = this.#collect();
    const collection = { endedAt: Number.POSITIVE_INFINITY, numbers, texts: new Map() };
    const end = (): void => {
      collection.endedAt = this.#sources.clock.monotonic();
    };
    numbers.then(end, end);
    return collection;
  }

  async #collect(): Promise<Numbers> {
    const {
      broker,
      engines,
      exchanges,
      operations,
      version,
      perQueue,
      requestTimes,
      logins,
      events,
      sessions,
      spans,
    } = this.#sources;
    const namespaces = broker.namespaces();
    const [queues, health] = await Promise.all([queueFamilies(namespaces, perQueue), engines()]);
    const families = [
      ...queues,
      ...diskFamilies(health, broker),
      ...brokerFamilies(namespaces),
      ...exchangeFamilies(exchanges),
      ...operationFamilies(operations),
      histogram(
        'quayside_http_request_duration_seconds',
        'Time from the head of an HTTP request to the end of its response, including time blocked, by operation.',
        requestTimes(),
      ),
      loginFamily(logins()),
      ...eventFamilies(events()),
      ...sessionFamilies(sessions()),
      ...(spans === undefined ? [] : [spanFamily(spans())]),
      ...processFamilies(version),
    ];
    return { families, namespaces: namespacesOf(families) };
  }
}

function namespacesOf(families: readonly Family[]): Set<string> {
  const all = new Set<string>();
  for (const { samples } of families) {
    for (const { namespaces = [], neededBy = [] } of samples) {
      for (const name of namespaces) all.add(name);
      for (const name of neededBy) all.add(name);
    }
  }
  return all;
}

function eventFamilies({ subscribers, bytes }: EventCounts): Family[] {
  return [
    gauge('quayside_event_subscribers', 'Subscribers of events on this node.', singleSample(subscribers)),
    counter('quayside_event_bytes_total', 'Bytes of events sent, before compression.', singleSample(bytes)),
  ];
}

function spanFamily(counts: Readonly<SpanCounts>): Family {
  return counter(
    'quayside_trace_spans_total',
    'Spans by outcome: exported; dropped (the queue was full); failed (the collector did not accept them).',
    byOutcome(counts),
  );
}

function loginFamily(counts: Readonly<Record<string, number>>): Family {
  return counter(
    'quayside_logins_total',
    'Logins by password, client certificate or SASL ANONYMOUS, and by tokens if they failed, by outcome; limited: rejected without a check.',
    byOutcome(counts),
  );
}

function byOutcome(counts: Readonly<Record<string, number>> | Readonly<SpanCounts>): MetricSample[] {
  return Object.entries(counts).map(([outcome, value]) => ({ labels: { outcome }, value }));
}

/** One metric with its samples, as plain numbers read at the moment of the scrape. */
interface Family {
  readonly name: string;
  readonly help: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  readonly samples: readonly MetricSample[];
}

interface MetricSample {
  readonly labels: Readonly<Record<string, string | number>>;
  readonly value: number;
  /** For a series of a histogram: the family's name with `_bucket`, `_sum` or `_count`. */
  readonly metricName?: string;
  /** The namespaces of the sample: only viewers who may see all of them get it. Undefined: all viewers get it. */
  readonly namespaces?: readonly string[];
  /**
   * Whether viewers need the right `read` in `namespaces`. Samples of queues do: other routes hide the names and sizes
   * of queues from writers, too.
   */
  readonly needsRead?: true;
  /** The namespaces that use the engine of the sample: only viewers who may see one of them get it. */
  readonly neededBy?: readonly string[];
}

/** The user who reads the metrics, or a viewer with all rights if no login is needed. */
type Viewer = Pick<UserRights, 'may' | 'maySee'>;

/** Samples that are formatted at once, which takes about 10 ms. */
const SAMPLES_AT_ONCE = 1000;

/**
 * Formats the samples that the viewer may see in the Prometheus text format. The library is only used for the format,
 * and is loaded by the first scrape: with its dependencies it would take a tenth of the start. Serves other requests
 * between two families, and within one that has many samples: destinations of exchanges may have 150,000.
 */
async function exposition(families: readonly Family[], viewer: Viewer): Promise<string> {
  const { Registry } = await import('@prometheus-io/client');
  const registry = new Registry();
  const texts: string[] = [];
  for (const { samples, ...family } of families) {
    for (let from = 0; from === 0 || from < samples.length; from += SAMPLES_AT_ONCE) {
      if (texts.length > 0) await turn();
      const values = samples
        .slice(from, from + SAMPLES_AT_ONCE)
        .filter(
          ({ namespaces = [], needsRead, neededBy }) =>
            namespaces.every((name) => (needsRead ? viewer.may('read', name) : viewer.maySee(name))) &&
            neededBy?.some((name) => viewer.maySee(name)) !== false,
        );
      const metric = { get: async () => ({ ...family, values }) };
      const text = await registry.getMetricsAsString(metric as Pick<Gauge, 'get'> as Gauge);
      if (from === 0) texts.push(`${texts.length === 0 ? '' : '\n'}${text}\n`);
      else if (values.length > 0) texts.push(`${withoutHead(text)}\n`);
    }
  }
  return texts.join('');
}

/** The lines of a family behind HELP and TYPE, which occur once. */
function withoutHead(text: string): string {
  return text.slice(text.indexOf('\n', text.indexOf('\n') + 1) + 1);
}

function gauge(name: string, help: string, samples: readonly MetricSample[]): Family {
  return { name, help, type: 'gauge', samples };
}

function counter(name: string, help: string, samples: readonly MetricSample[]): Family {
  return { name, help, type: 'counter', samples };
}

/** The sample of a family that has only one, without labels. */
function singleSample(value: number): MetricSample[] {
  return [{ labels: {}, value }];
}

/**
 * A family with a histogram for each operation. The counts of `Histogram` are per bucket; the format needs cumulative
 * ones.
 */
function histogram(name: string, help: string, byOperation: ReadonlyMap<string, Histogram>): Family {
  return {
    name,
    help,
    type: 'histogram',
    samples: [...byOperation].flatMap(([operation, timings]) => histogramSamples(name, operation, timings)),
  };
}

function histogramSamples(
  name: string,
  operation: string,
  { bounds, counts, sum, count }: Histogram,
): MetricSample[] {
  let cumulative = 0;
  const buckets = bounds.map((le, i) => {
    cumulative += counts[i] ?? 0;
    return { metricName: `${name}_bucket`, labels: { operation, le }, value: cumulative };
  });
  return [
    ...buckets,
    { metricName: `${name}_bucket`, labels: { operation, le: '+Inf' }, value: count },
    { metricName: `${name}_sum`, labels: { operation }, value: sum },
    { metricName: `${name}_count`, labels: { operation }, value: count },
  ];
}

/**
 * Maximum number of queues with series of their own, in all namespaces together, in the order of the configuration and
 * then of names. Without it, scrapes and the memory of Prometheus would grow with the queues that clients create; the
 * series of namespaces count all queues.
 */
export const MAX_QUEUE_SERIES = 1000;

/**
 * Queues read at once. 5,000 queues took 23 ms on SQLite, 118 ms on PostgreSQL and 450 ms on Redis, and the replies of
 * one such step never blocked the event loop for more than 40 ms.
 */
const READ_AT_ONCE = 100;

/**
 * The contents of the namespaces, read from their engines. Omits the series of an unavailable engine.
 * @param perQueue whether queues have series of their own as well
 */
async function queueFamilies(namespaces: readonly Namespace[], perQueue: boolean): Promise<Family[]> {
  const contents = await Promise.all(namespaces.map((namespace) => contentsOf(namespace, perQueue)));
  const families = namespaceFamilies(contents);
  return perQueue ? [...families, ...perQueueFamilies(contents)] : families;
}

/** The contents of a namespace. */
interface Contents {
  readonly namespace: Namespace;
  /** Null if the engine is unavailable. */
  readonly queues: readonly QueueContents[] | null;
}

interface QueueContents {
  readonly name: string;
  readonly counts: QueueCounts;
  /** How long its oldest ready element has been ready, in seconds; 0 if none is. */
  readonly oldestReadyS: number;
  /** How many of its elements went to the dead-letter queue; 0 if that was not read. */
  readonly deadLetters: number;
  readonly waitingConsumers: number;
}

async function contentsOf(namespace: Namespace, perQueue: boolean): Promise<Contents> {
  try {
    const names = await namespace.queueNames();
    const waiting = namespace.waitingOfUsers();
    const queues = await mapConcurrently([...names.entries()], READ_AT_ONCE, ([at, name]) =>
      queueContents(namespace, name, { hasSeries: perQueue && at < MAX_QUEUE_SERIES, waiting }),
    );
    return { namespace, queues };
  } catch {
    return { namespace, queues: null };
  }
}

async function queueContents(
  namespace: Namespace,
  name: string,
  { hasSeries, waiting }: { hasSeries: boolean; waiting: ReadonlyMap<string, number> },
): Promise<QueueContents> {
  const key = { ns: namespace.name, name };
  const { storage, stats } = namespace;
  const [counts, counters] = await Promise.all([storage.counts(key), hasSeries ? stats.read(key) : null]);
  return {
    name,
    counts,
    oldestReadyS: (oldestReadyMs({ namespace, key }, counts) ?? 0) / 1000,
    deadLetters: counters === null ? 0 : deadLettersOf(counters),
    waitingConsumers: waiting.get(name) ?? 0,
  };
}

function deadLettersOf(counters: ReadonlyMap<GroupName, Counters>): number {
  let count = 0;
  for (const { deadletter } of counters.values()) count += deadletter;
  return count;
}

function namespaceFamilies(contents: readonly Contents[]): Family[] {
  const samples = (
    samplesOf: (queues: readonly QueueContents[], namespace: Namespace) => MetricSample[],
  ): MetricSample[] =>
    contents.flatMap(({ namespace, queues }) => (queues === null ? [] : samplesOf(queues, namespace)));
  return [
    gauge(
      'quayside_queues',
      'Queues of a namespace.',
      samples((queues, namespace) => [sampleOf(namespace, {}, queues.length)]),
    ),
    gauge(
      'quayside_elements',
      'Elements of a namespace by state.',
      samples((queues, namespace) =>
        DELIVERY_STATES.map((state) =>
          sampleOf(
            namespace,
            { state },
            sum(queues, ({ counts }) => counts[state]),
          ),
        ),
      ),
    ),
    gauge(
      'quayside_oldest_ready_element_age_seconds',
      'Time since the oldest ready element of a namespace became ready, dead-letter queues excluded; 0 if none is ready.',
      samples((queues, namespace) => {
        // Dead letters stay until a person acts: an alert on the age would never end.
        const deadLetterQueues = new Set(namespace.options.deadLetterQueues);
        const consumed = queues.filter(({ name }) => !deadLetterQueues.has(name));
        const oldestS = consumed.reduce((oldest, { oldestReadyS }) => Math.max(oldest, oldestReadyS), 0);
        return [sampleOf(namespace, {}, oldestS)];
      }),
    ),
    gauge(
      'quayside_dead_letter_elements',
      'Elements in the dead-letter queues of a namespace.',
      samples((queues, namespace) => {
        const deadLetterQueues = new Set(namespace.options.deadLetterQueues);
        const deadLetters = queues.filter(({ name }) => deadLetterQueues.has(name));
        const count = sum(
          deadLetters,
          ({ counts: { ready, scheduled, reserved } }) => ready + scheduled + reserved,
        );
        return deadLetterQueues.size === 0 ? [] : [sampleOf(namespace, {}, count)];
      }),
    ),
    gauge(
      'quayside_paused_queues',
      'Queues of a namespace that are paused.',
      samples((_, namespace) => [sampleOf(namespace, {}, namespace.pausedNames.size)]),
    ),
    gauge(
      'quayside_storage_up',
      'Whether the engine of a namespace answered this scrape.',
      contents.map(({ namespace, queues }) => sampleOf(namespace, {}, queues === null ? 0 : 1)),
    ),
  ];
}

function perQueueFamilies(contents: readonly Contents[]): Family[] {
  const listed = contents
    .flatMap(({ namespace, queues }) => (queues ?? []).map((queue) => ({ namespace, queue })))
    .slice(0, MAX_QUEUE_SERIES);
  const samples = (read: (queue: QueueContents, namespace: Namespace) => number): MetricSample[] =>
    listed.map(({ namespace, queue }) =>
      queueSample(namespace, { queue: queue.name }, read(queue, namespace)),
    );
  return [
    gauge(
      'quayside_queue_elements',
      `Elements by queue and state, for the first ${MAX_QUEUE_SERIES} queues.`,
      listed.flatMap(({ namespace, queue: { name, counts } }) =>
        DELIVERY_STATES.map((state) => queueSample(namespace, { queue: name, state }, counts[state])),
      ),
    ),
    gauge(
      'quayside_queue_oldest_ready_element_age_seconds',
      'Time since the oldest ready element of a queue became ready; 0 if none is ready.',
      samples(({ oldestReadyS }) => oldestReadyS),
    ),
    gauge(
      'quayside_queue_waiting_consumers',
      'Blocked gets of a queue on this node.',
      samples(({ waitingConsumers }) => waitingConsumers),
    ),
    gauge(
      'quayside_queue_paused',
      'Whether a queue is paused.',
      samples(({ name }, namespace) => (namespace.pausedNames.has(name) ? 1 : 0)),
    ),
    counter(
      'quayside_queue_dead_letters_total',
      'Elements that left a queue for the dead-letter queue, on all nodes.',
      samples(({ deadLetters }) => deadLetters),
    ),
  ];
}

function sum(queues: readonly QueueContents[], read: (queue: QueueContents) => number): number {
  return queues.reduce((total, queue) => total + read(queue), 0);
}

function sampleOf({ name }: Namespace, labels: MetricSample['labels'], value: number): MetricSample {
  return { labels: { namespace: name, ...labels }, value, namespaces: [name] };
}

function queueSample(namespace: Namespace, labels: MetricSample['labels'], value: number): MetricSample {
  return { ...sampleOf(namespace, labels, value), needsRead: true };
}

/** Maximum number of exchanges with series of their own, the first ones by id; see `MAX_QUEUE_SERIES`. */
const MAX_EXCHANGE_SERIES = 200;

const NOTHING: Readonly<DestinationCounters> = { matched: 0, skipped: 0, failed: 0 };

/**
 * Counters of the exchanges of this node since it started them. As with `GET /x`, viewers must see the namespace of the
 * source; for a sample that names a destination, they must see its namespace as well.
 */
function exchangeFamilies(exchanges: Pick<Exchanges, 'overview'>): Family[] {
  const all = exchanges.overview();
  const listed = all.slice(0, MAX_EXCHANGE_SERIES);
  return [
    gauge(
      'quayside_exchanges',
      'Exchanges on this node, by the namespace of their source.',
      [...Map.groupBy(all, ({ declaration }) => declaration.src.ns)].map(([namespace, own]) => ({
        labels: { namespace },
        value: own.length,
        namespaces: [namespace],
      })),
    ),
    gauge(
      'quayside_exchange_stopped',
      `Whether an exchange is stopped, for the first ${MAX_EXCHANGE_SERIES}.`,
      listed.map((exchange) => sample(exchange, {}, exchange.stopped ? 1 : 0)),
    ),
    counter(
      'quayside_exchange_copies_total',
      'Elements by exchange, destination and outcome: matched, skipped, failed.',
      listed.flatMap(destinationSamples),
    ),
    counter(
      'quayside_exchange_strays_total',
      'Elements that were forwarded to no destination: no_route, too_many_hops, or put_back for a later try.',
      listed.flatMap(unforwardedSamples),
    ),
    counter(
      'quayside_exchange_selector_seconds_total',
      'Time that an exchange spent waiting for its selectors.',
      listed.map((exchange) => sample(exchange, {}, exchange.counters.totals.selectorMs / 1000)),
    ),
  ];
}

/** One series for each destination queue: several destinations may have the same queue and different selectors. */
function destinationSamples(exchange: ExchangeOverview): MetricSample[] {
  const sums = new Map<string, DestinationCounters & { readonly ns: string }>();
  for (const [i, { ns, queue }] of exchange.declaration.dst.entries()) {
    const counters = exchange.counters.destinations[i] ?? NOTHING;
    const total = sums.get(`${ns}/${queue}`) ?? NOTHING;
    sums.set(`${ns}/${queue}`, {
      ns,
      matched: total.matched + counters.matched,
      skipped: total.skipped + counters.skipped,
      failed: total.failed + counters.failed,
    });
  }
  return [...sums].flatMap(([destination, { ns, matched, skipped, failed }]) =>
    Object.entries({ matched, skipped, failed }).map(([outcome, value]) =>
      sample(exchange, { destination, outcome }, value, [ns]),
    ),
  );
}

function unforwardedSamples(exchange: ExchangeOverview): MetricSample[] {
  const { noRoute, tooManyHops, requeued } = exchange.counters.totals;
  return Object.entries({ no_route: noRoute, too_many_hops: tooManyHops, put_back: requeued }).map(
    ([outcome, value]) => sample(exchange, { outcome }, value),
  );
}

/** @param namespaces that viewers must see in addition to the source's */
function sample(
  { key, declaration }: ExchangeOverview,
  moreLabels: MetricSample['labels'],
  value: number,
  namespaces: readonly string[] = [],
): MetricSample {
  // Exchanges of two namespaces may have the same id.
  const labels = { exchange: idOf(key), namespace: declaration.src.ns, ...moreLabels };
  return { labels, value, namespaces: [declaration.src.ns, ...namespaces] };
}

type Totals = ReturnType<BulkOperations['overview']>['running'];

/** Running bulk operations on all nodes, and the elements that this node has changed for them since its start. */
function operationFamilies(operations: Pick<BulkOperations, 'overview'>): Family[] {
  const { running, changed } = operations.overview();
  return [
    gauge(
      'quayside_bulk_operations_running',
      'Running bulk operations on all nodes, by the namespace of their source and action.',
      samplesOf(running),
    ),
    counter(
      'quayside_bulk_operation_elements_total',
      'Elements that bulk operations changed on this node, by the namespace of their source and action.',
      samplesOf(changed),
    ),
  ];
}

function samplesOf(totals: Totals): MetricSample[] {
  return totals.map(({ ns, action, count }) => ({
    labels: { namespace: ns, action },
    value: count,
    namespaces: [ns],
  }));
}

/** One sample per protocol that is on; a protocol that is off has none. */
function sessionFamilies(counts: ReadonlyMap<string, SessionCounts>): Family[] {
  const samples = (of: keyof SessionCounts): MetricSample[] =>
    [...counts].map(([protocol, own]) => ({ labels: { protocol }, value: own[of] }));
  return [
    gauge('quayside_sessions', 'Clients that are logged in.', samples('sessions')),
    gauge(
      'quayside_subscriptions',
      'Subscriptions of STOMP sessions and receiving links of AMQP sessions.',
      samples('subscriptions'),
    ),
    gauge('quayside_links', 'Sending and receiving links of AMQP clients.', samples('links')),
    gauge(
      'quayside_unacknowledged_elements',
      'Elements that clients hold and have not settled.',
      samples('unacknowledged'),
    ),
    gauge(
      'quayside_subscription_window_elements',
      'Unsettled elements that clients may hold: the sum of all windows.',
      samples('window'),
    ),
    gauge(
      'quayside_session_outgoing_bytes',
      'Bytes buffered until clients read them.',
      samples('outgoingBytes'),
    ),
    gauge(
      'quayside_sessions_stalled',
      'Clients that have not read all of the last write yet.',
      samples('stalled'),
    ),
    counter(
      'quayside_session_connections_total',
      'Accepted connections, including those without a login.',
      samples('connections'),
    ),
    counter(
      'quayside_session_received_bytes_total',
      'Bytes received from clients.',
      samples('receivedBytes'),
    ),
    counter('quayside_session_frames_total', 'Frames received from clients.', samples('frames')),
    counter('quayside_session_messages_total', 'Elements sent to clients.', samples('messages')),
    counter(
      'quayside_session_errors_total',
      'Sessions that the server ended with an error.',
      samples('errors'),
    ),
  ];
}

/** Operations and engine calls of this node since its start, its waiting consumers, and configuration conflicts. */
function brokerFamilies(namespaces: readonly Namespace[]): Family[] {
  return [
    counter(
      'quayside_operations_total',
      'Operations on queues by namespace, kind and outcome: ok, or the code of the error.',
      namespaces.flatMap(operationSamples),
    ),
    gauge(
      'quayside_waiting_consumers',
      'Blocked gets on this node.',
      namespaces.map((namespace) => sampleOf(namespace, {}, waitingIn(namespace))),
    ),
    gauge(
      'quayside_configuration_conflicts',
      'Options of a namespace that differ between other nodes and this one.',
      namespaces.map((namespace) => {
        const conflicts = [...namespace.cluster.differences().values()].flat().length;
        return sampleOf(namespace, {}, conflicts);
      }),
    ),
    counter(
      'quayside_storage_data_losses_total',
      'How often this node found that an engine had lost the data of a namespace, such as by FLUSHALL.',
      namespaces.map((namespace) => sampleOf(namespace, {}, namespace.cluster.dataLosses)),
    ),
    histogram(
      'quayside_storage_duration_seconds',
      'Time from an engine call to its reply, by operation.',
      storageTimes(namespaces),
    ),
  ];
}

function waitingIn(namespace: Namespace): number {
  let waiting = 0;
  for (const ofUsers of namespace.waitingOfUsers().values()) waiting += ofUsers;
  return waiting;
}

function operationSamples(namespace: Namespace): MetricSample[] {
  return [...namespace.meter.operations()].flatMap(([operation, outcomes]) =>
    [...outcomes].map(([outcome, value]) => sampleOf(namespace, { operation, outcome }, value)),
  );
}

/** The sums of all namespaces: several of them share an engine, and nine buckets for each would be too many series. */
function storageTimes(namespaces: readonly Namespace[]): Map<string, Histogram> {
  const sums = new Map<string, Histogram>();
  for (const operation of OPERATIONS) sums.set(operation, new Histogram(STORAGE_TIME_BUCKETS_S));
  for (const { meter } of namespaces) {
    for (const [operation, own] of meter.storageTimes()) sums.get(operation)?.add(own);
  }
  return sums;
}

/** Only of engines with files on a disk of this machine that can be read. */
function diskFamilies(engines: readonly EngineHealth[], broker: Broker): Family[] {
  const byEngine = broker.namespacesByEngine();
  const samples = (read: (disk: DiskUsage) => number): MetricSample[] =>
    engines.flatMap(({ engine, disk }) =>
      disk === null ? [] : [{ labels: { engine }, value: read(disk), neededBy: byEngine.get(engine) ?? [] }],
    );
  return [
    gauge(
      'quayside_storage_file_bytes',
      'Size of the database and its log, of an engine with a file on this machine.',
      samples(({ fileBytes }) => fileBytes),
    ),
    gauge(
      'quayside_storage_free_bytes',
      'Free space of the disk that contains the file.',
      samples(({ freeBytes }) => freeBytes),
    ),
  ];
}

/**
 * The process metrics that Prometheus dashboards expect. Read at the scrape, because the library's own collection keeps
 * timers of 10 ms and 100 ms running for the life of the process.
 */
function processFamilies(version: string): Family[] {
  const { user, system } = process.cpuUsage();
  const { rss, heapUsed, heapTotal, external } = process.memoryUsage();
  const { active } = performance.eventLoopUtilization();
  return [
    gauge('quayside_build_info', 'Versions of the server and of Node.js.', [
      { labels: { version, node: process.version }, value: 1 },
    ]),
    counter(
      'process_cpu_seconds_total',
      'CPU time of all threads, user and system.',
      singleSample((user + system) / 1e6),
    ),
    gauge(
      'process_start_time_seconds',
      'When the process started, Unix time.',
      singleSample(performance.timeOrigin / 1000),
    ),
    gauge('process_resident_memory_bytes', 'Memory in RAM.', singleSample(rss)),
    gauge('nodejs_heap_size_used_bytes', 'Heap of the main thread in use.', singleSample(heapUsed)),
    gauge('nodejs_heap_size_total_bytes', 'Heap of the main thread.', singleSample(heapTotal)),
    gauge('nodejs_external_memory_bytes', 'Memory of buffers outside of the heap.', singleSample(external)),
    counter(
      'nodejs_eventloop_active_seconds_total',
      'Time in which the event loop was busy.',
      singleSample(active / 1000),
    ),
  ];
}
