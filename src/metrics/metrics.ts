import type { Broker } from '../broker/broker.ts';
import type { EventCounts } from '../events/publisher.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { BulkOperations } from '../operations/operations.ts';
import type { SessionCounts } from '../session/server.ts';
import type { SpanCounts } from '../tracing/exporter.ts';
import type { Clock } from '../util/clock.ts';
import type { Histogram } from '../util/histogram.ts';
import { exchangeFamilies } from './exchange-families.ts';
import { exposition, type Family, histogram, scalar, type Viewer } from './family.ts';
import { brokerFamilies, type DiskSource, diskFamilies, processFamilies } from './node-families.ts';
import { operationFamilies } from './operation-families.ts';
import { queueFamilies } from './queue-families.ts';
import { sessionFamilies } from './session-families.ts';

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
  /** The engines that have files on a disk of this machine. */
  readonly disks: readonly DiskSource[];
  /** Logins by how they ended. */
  readonly logins: () => Readonly<Record<string, number>>;
  readonly events: () => Readonly<EventCounts>;
  /** What became of spans; not given: there is no tracing. */
  readonly spans?: () => Readonly<SpanCounts>;
  /** Of each front end whose clients keep a session, by protocol. */
  readonly sessions: () => ReadonlyMap<string, SessionCounts>;
}

/** Scrapes within this time of another one show the same numbers. */
const SHARED_MS = 1_000;

interface Collection {
  /** On the monotonic clock, when it began. */
  readonly at: number;
  readonly families: Promise<readonly Family[]>;
  /** By the names of the namespaces that a viewer may see. */
  readonly texts: Map<string, Promise<string>>;
}

/**
 * The text of `/metrics`. The numbers are collected when they are scraped, at most once a second, and each viewer
 * gets those of the namespaces that it may see. Writing thousands of series is the larger part of a scrape, so the
 * texts are kept as well.
 */
export class Metrics {
  readonly #sources: MetricsSources;
  #collection: Collection | null = null;

  constructor(sources: MetricsSources) {
    this.#sources = sources;
  }

  text(viewer: Viewer): Promise<string> {
    const { broker, clock } = this.#sources;
    const now = clock.monotonic();
    if (this.#collection === null || now - this.#collection.at >= SHARED_MS) {
      this.#collection = { at: now, families: this.#collect(), texts: new Map() };
      this.#collection.families.catch(() => {
        this.#collection = null;
      });
    }
    const { families, texts } = this.#collection;
    const visible = broker.namespaces().filter(({ name }) => viewer.maySee(name));
    const key = JSON.stringify(visible.map(({ name }) => [name, viewer.may('read', name)]));
    let text = texts.get(key);
    if (text === undefined) {
      text = families.then((collected) => exposition(collected, viewer));
      texts.set(key, text);
    }
    return text;
  }

  async #collect(): Promise<readonly Family[]> {
    const {
      broker,
      exchanges,
      operations,
      version,
      perQueue,
      requestTimes,
      disks,
      logins,
      events,
      sessions,
      spans,
    } = this.#sources;
    const namespaces = broker.namespaces();
    const [queues, files] = await Promise.all([queueFamilies(namespaces, perQueue), diskFamilies(disks)]);
    return [
      ...queues,
      ...files,
      ...brokerFamilies(namespaces),
      ...exchangeFamilies(exchanges),
      ...operationFamilies(operations),
      histogram(
        'quayside_http_request_duration_seconds',
        'Time from the head of an HTTP request to its response being written, waiting included, by operation.',
        requestTimes(),
      ),
      loginFamily(logins()),
      ...eventFamilies(events()),
      ...sessionFamilies(sessions()),
      ...(spans === undefined ? [] : [spanFamily(spans())]),
      ...processFamilies(version),
    ];
  }
}

function eventFamilies({ subscribers, bytes }: EventCounts): Family[] {
  return [
    scalar(
      'gauge',
      'quayside_event_subscribers',
      'Clients that listen for events on this node.',
      subscribers,
    ),
    scalar('counter', 'quayside_event_bytes_total', 'Bytes of events that were sent.', bytes),
  ];
}

function spanFamily(counts: Readonly<SpanCounts>): Family {
  return {
    name: 'quayside_trace_spans_total',
    help: 'Spans by what became of them: exported; dropped: the queue was full; failed: not taken by the collector.',
    type: 'counter',
    samples: Object.entries(counts).map(([outcome, value]) => ({ labels: { outcome }, value })),
  };
}

function loginFamily(counts: Readonly<Record<string, number>>): Family {
  return {
    name: 'quayside_logins_total',
    help: 'Logins that were checked, by password, client certificate or SASL ANONYMOUS, by how that ended; limited: turned away unchecked.',
    type: 'counter',
    samples: Object.entries(counts).map(([outcome, value]) => ({ labels: { outcome }, value })),
  };
}
