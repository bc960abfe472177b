import type { QueueReading } from '../broker/activity.ts';
import type { Broker } from '../broker/broker.ts';
import type { Namespace } from '../broker/namespace.ts';
import { shownSizes } from '../broker/queue-record.ts';
import { idsOf, NODE } from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import type {
  AlarmPicture,
  EngineHealth,
  ExchangePicture,
  NodeRecord,
  OperationPicture,
  OperationRecord,
  QueuePicture,
} from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import type { BulkOperations, OperationView } from '../operations/operations.ts';
import type { Clock } from '../util/clock.ts';

/** What events are about. */
export const EVENT_KINDS = ['queues', 'exchanges', 'nodes', 'operations', 'alarms'] as const;
export type EventKind = (typeof EVENT_KINDS)[number];

/** A namespace, or one of its queues, that a picture is about. */
interface PicturePlace {
  readonly ns: string;
  /** Null: the namespace as a whole. */
  readonly queue: string | null;
}

/**
 * The current state of a queue, an exchange, a node, an operation or an alarm. A new picture with the same key replaces
 * it.
 */
export interface Picture {
  readonly kind: EventKind;
  /** Unique among those of its kind. */
  readonly key: string;
  /** For filters by namespace and queue. */
  readonly places: readonly PicturePlace[];
  /** Equal to that of the previous picture if there is nothing new to show. */
  readonly state: string;
  /** Viewers with the same rights in every namespace see the same. */
  isFor(viewer: UserRights): boolean;
  /** The picture as a JSON object. */
  json(viewer: UserRights): string;
  /** The JSON object when the thing is gone: what identifies it, and `"gone": true`. */
  goneJson(viewer: UserRights): string;
}

/** Creates pictures of one kind. Read every two seconds, but only while there are subscribers. */
export interface PictureSource {
  readonly kind: EventKind;
  /** All current pictures. If it rejects, the previous ones stay. */
  read(): Promise<Iterable<Picture>> | Iterable<Picture>;
}

/** What a subscriber wants to receive. */
export interface EventFilter {
  readonly kinds: ReadonlySet<EventKind>;
  /** Null: all. */
  readonly ns: string | null;
  /** Null: all. */
  readonly queue: string | null;
}

export function isWanted({ kind, places }: Picture, { kinds, ns, queue }: EventFilter): boolean {
  if (!kinds.has(kind)) return false;
  if (ns === null) return true;
  return places.some(
    (place) => place.ns === ns && (queue === null || place.queue === null || place.queue === queue),
  );
}

/** A queue, with its counts named as in the queue information record. Clients compute its age from `next_mature_t`. */
export function queuePicture(namespace: Namespace, name: string, { counts, totals }: QueueReading): Picture {
  const ns = namespace.name;
  const named = { ns, queue: name };
  const picture: QueuePicture = {
    ...named,
    ...shownSizes(counts),
    paused: namespace.pausedNames.has(name),
    stats: totals,
  };
  const json = JSON.stringify(picture);
  return {
    kind: 'queues',
    key: JSON.stringify([ns, name]),
    places: [named],
    state: json,
    isFor: (viewer) => viewer.may('read', ns),
    json: () => json,
    goneJson: () => JSON.stringify({ ...named, gone: true }),
  };
}

type KnownNode = ReturnType<Broker['nodes']>[number];

/** A node with those of its namespaces that the viewer may see. */
export function nodeRecord(
  { startedAt, namespaces, conflicts, ...node }: KnownNode,
  viewer: Pick<UserRights, 'maySee'>,
): NodeRecord {
  return {
    ...node,
    startedAt: new Date(startedAt).toISOString(),
    namespaces: namespaces.filter((name) => viewer.maySee(name)),
    conflicts: conflicts.filter(({ namespace }) => viewer.maySee(namespace)),
  };
}

/** This node and those that share namespaces with it, for every user. */
export function nodePictures(broker: Pick<Broker, 'nodes'>): PictureSource {
  const picture = (node: KnownNode): Picture => ({
    kind: 'nodes',
    key: node.id,
    places: node.namespaces.map((ns) => ({ ns, queue: null })),
    state: JSON.stringify(node),
    isFor: () => true,
    json: (viewer) => JSON.stringify(nodeRecord(node, viewer)),
    goneJson: () => JSON.stringify({ id: node.id, gone: true }),
  });
  return { kind: 'nodes', read: () => broker.nodes().map(picture) };
}

const ALL = { ns: null, queue: null, state: null };

/**
 * Bulk operations and their progress, for users who may manage their source. Samples are only in the operation's
 * record.
 */
export function operationPictures(operations: Pick<BulkOperations, 'views'>) {
  return {
    kind: 'operations',
    read: async () => (await operations.views(ALL, NODE)).map(operationPicture),
  } as const satisfies PictureSource;
}

function operationPicture(recordFor: OperationView): Picture {
  const record = recordFor(NODE);
  const { id, source, to = null } = record;
  const places = [source, ...(to === null ? [] : [to])].map(({ ns, queue = null }) => ({ ns, queue }));
  return {
    kind: 'operations',
    key: id,
    places,
    state: operationJson(record),
    isFor: (viewer) => viewer.may('manage', source.ns),
    json: (viewer) => operationJson(recordFor(viewer)),
    goneJson: () => JSON.stringify({ id, gone: true }),
  };
}

function operationJson({ samples: _, where: __, set: ___, ...shown }: OperationRecord): string {
  return JSON.stringify(shown satisfies OperationPicture);
}

/**
 * Exchanges, with what their record shows to a viewer. Each has two pictures, one for viewers who may see all
 * destinations and one for the others: these must not notice activity at a hidden destination, not even as an update.
 */
export function exchangePictures(exchanges: Pick<Exchanges, 'overview'>): PictureSource {
  return {
    kind: 'exchanges',
    *read() {
      const all = exchanges.overview();
      const ids = new VisibleIds(all);
      for (const exchange of all) {
        yield exchangePicture(exchange, ids, true);
        yield exchangePicture(exchange, ids, false);
      }
    },
  };
}

/**
 * An exchange for viewers who may see its source.
 * @param isWhole whether it is for those who may see each destination as well; otherwise it has no counts by
 * destination
 */
function exchangePicture(exchange: ExchangeOverview, ids: VisibleIds, isWhole: boolean): Picture {
  const { declaration, counters, stopped, lastError } = exchange;
  const { src, dst } = declaration;
  const { totals, destinations } = counters;
  const places = [src, ...dst].map(({ ns, queue }) => ({ ns, queue }));
  const shown = {
    src: { q: src.queue, ns: src.ns },
    stopped,
    lastError,
    stats: {
      no_route: totals.noRoute,
      too_many_hops: totals.tooManyHops,
      put_back: totals.requeued,
      ...(isWhole && { dst: destinations }),
    },
  } satisfies Omit<ExchangePicture, 'id' | 'dst'>;
  return {
    kind: 'exchanges',
    key: `${isWhole ? 'whole' : 'part'} ${exchange.key}`,
    places,
    // The namespaces decide who may see the picture.
    state: JSON.stringify([shown, places]),
    isFor: (viewer) => viewer.maySee(src.ns) && dst.every(({ ns }) => viewer.maySee(ns)) === isWhole,
    json: (viewer) =>
      JSON.stringify({
        id: ids.of(exchange, viewer),
        ...shown,
        dst: dst.map(({ ns, queue }) =>
          viewer.maySee(ns) ? { q: queue, ns } : { q: '', ns: '', hidden: true },
        ),
      } satisfies ExchangePicture),
    goneJson: (viewer) => JSON.stringify({ id: ids.of(exchange, viewer), gone: true }),
  };
}

/** The ids of exchanges by viewer: an id depends on whether the viewer may see another exchange with the same one. */
class VisibleIds {
  readonly #all: readonly ExchangeOverview[];
  readonly #ofViewer = new WeakMap<UserRights, ReadonlyMap<string, string>>();

  constructor(all: readonly ExchangeOverview[]) {
    this.#all = all;
  }

  of({ key }: ExchangeOverview, viewer: UserRights): string {
    let ids = this.#ofViewer.get(viewer);
    if (ids === undefined) {
      const visible = this.#all.filter(({ declaration }) => viewer.maySee(declaration.src.ns));
      ids = new Map([...idsOf(visible.map((one) => one.key))].map(([id, own]) => [own, id]));
      this.#ofViewer.set(viewer, ids);
    }
    return ids.get(key) ?? key;
  }
}

interface AlarmParts {
  readonly namespaces: readonly Namespace[];
  /** The engines of this node, each URL once. */
  readonly engines: () => Promise<readonly EngineHealth[]>;
  readonly clock: Pick<Clock, 'now'>;
}

/** Conditions that need an operator. They are derived from what `/readyz`, metrics and status records show as well. */
export function alarms({ namespaces, engines, clock }: AlarmParts): PictureSource {
  /** When each alarm began, by its key. */
  let since = new Map<string, number>();
  return {
    kind: 'alarms',
    async read() {
      const present = [
        ...(await engines()).flatMap((engine) => engineAlarms(engine, namespaces)),
        ...namespaces.flatMap((namespace) =>
          namespace.options.deadLetterQueues.flatMap((queue) => deadLettersGrew(namespace, queue)),
        ),
      ];
      const now = clock.now();
      since = new Map(present.map(({ key }) => [key, since.get(key) ?? now]));
      return present.map((alarm) => alarmPicture(alarm, since.get(alarm.key) ?? now));
    },
  };
}

/** The alarms about an engine, for viewers who may see a namespace that uses it. */
function engineAlarms({ engine, state, check, disk }: EngineHealth, all: readonly Namespace[]): Alarm[] {
  const namespaces = all.filter(({ engineUrls }) => engineUrls.includes(engine)).map(({ name }) => name);
  const alarmOf = (alarm: string, details: Alarm['details']): Alarm => ({
    alarm,
    key: JSON.stringify([alarm, engine]),
    identity: { engine },
    details,
    places: namespaces.map((ns) => ({ ns, queue: null })),
    isFor: (viewer) => namespaces.some((ns) => viewer.maySee(ns)),
    namespaces,
  });
  return [
    ...(state === 'unavailable' ? [alarmOf('engine-unavailable', { detail: check })] : []),
    ...(disk !== null && disk.freeBytes < disk.minFreeBytes ? [alarmOf('disk-nearly-full', {})] : []),
  ];
}

/** The alarm for a queue that received dead letters in the last five minutes. */
function deadLettersGrew({ name: ns, activity }: Namespace, queue: string): Alarm[] {
  const last = activity.last(queue);
  const rates = last === null ? null : activity.rates(queue, last.totals);
  if (last === null || rates === null || rates['5m'].insert === 0) return [];
  const { ready, scheduled, reserved } = last.counts;
  const place = { ns, queue };
  return [
    {
      alarm: 'dead-letters-grew',
      key: JSON.stringify(['dead-letters-grew', ns, queue]),
      identity: place,
      details: { totalSize: ready + scheduled + reserved },
      places: [place],
      isFor: (viewer) => viewer.may('read', ns),
      namespaces: null,
    },
  ];
}

interface Alarm extends Pick<Picture, 'key' | 'places' | 'isFor'> {
  readonly alarm: string;
  /** The members that identify what it is about. */
  readonly identity: Pick<AlarmPicture, 'engine' | 'ns' | 'queue'>;
  readonly details: Pick<AlarmPicture, 'detail' | 'totalSize'>;
  /** The namespaces that an engine serves; null: it is about a queue. */
  readonly namespaces: readonly string[] | null;
}

function alarmPicture(
  { alarm, identity: named, details: more, namespaces, ...rest }: Alarm,
  since: number,
): Picture {
  const shown: AlarmPicture = { alarm, ...named, since: new Date(since).toISOString(), ...more };
  return {
    ...rest,
    kind: 'alarms',
    state: JSON.stringify(shown),
    json: (viewer) =>
      JSON.stringify(
        namespaces === null ? shown : { ...shown, namespaces: namespaces.filter((ns) => viewer.maySee(ns)) },
      ),
    goneJson: () => JSON.stringify({ alarm, ...named, gone: true }),
  };
}
