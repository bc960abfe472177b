import type { Broker } from '../broker/broker.ts';
import { engineNow } from '../broker/engine-time.ts';
import { checkMigration } from '../broker/migration.ts';
import type { Namespace } from '../broker/namespace.ts';
import { inTime } from '../engine/calls.ts';
import { type Definition, type Definitions, retryConflicts } from '../engine/definitions.ts';
import { DefinitionsCaches, type FoundDefinition } from '../engine/definitions-cache.ts';
import type { Storage } from '../engine/storage.ts';
import { idOf } from '../exchange/declaration.ts';
import type { Exchanges } from '../exchange/exchanges.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import { isOutage, missingRight, overloaded, QuaysideError } from '../model/errors.ts';
import { atMember } from '../model/members.ts';
import type { Action, OperationRecord, OperationState } from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { EventLog } from '../util/log.ts';
import { quote } from '../util/quote.ts';
import { repeat } from '../util/repeat.ts';
import type { Service } from '../util/service.ts';
import { TRANSIT_QUEUE } from './changer.ts';
import { MigrationRun } from './migration-run.ts';
import { type OperationQueues, type OperationRequest, queuesOf, statesOf } from './request.ts';
import { OperationRun } from './run.ts';
import type { Searches } from './search.ts';
import {
  BOUND_MS,
  type OperationEnd,
  type OperationProgress,
  operationRecord,
  type RecordViewer,
  SELECTOR_PATH,
  type StoredOperation,
  toOperation,
  toProgress,
  ZERO,
} from './stored.ts';

interface BulkOperationsOptions {
  readonly broker: Broker;
  readonly searches: Searches;
  /** Returns the current rights of a user; null if the user does not exist. */
  readonly userNamed: (name: string) => Pick<UserRights, 'may'> | null;
  /** The exchanges, which are the same on all nodes. */
  readonly exchanges: Pick<Exchanges, 'moveDefinitions'> & { overview(): readonly ExchangeOverview[] };
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: EventLog;
}

/** Restricts a list of operations. Null: no restriction. */
interface OperationFilter {
  readonly ns: string | null;
  readonly queue: string | null;
  readonly state: OperationState | null;
}

/** Operations of one store that run at a time. One may take days, so a user who has none may always start one. */
const MAX_RUNNING = 16;
/** How long ended operations are kept, and how many of them per store. */
const KEPT_MS = 7 * 24 * 3_600_000;
/** Dry runs that are kept, and others. */
const MAX_KEPT = 100;
/** Interval between searches for operations that no node runs, ± half. */
const TAKEOVER_INTERVAL_MS = 2_000;
/** A node counts as gone if it is silent for this long. It writes every second; an engine call takes up to 5 s. */
const SILENT_MS = 7_000;
/**
 * By this time, a node that can run an operation has taken it over. If none has, a cancelled operation is ended by a
 * node that cannot run it.
 */
const ABANDONED_MS = 30_000;
/** How long a cancel waits for the page in progress. */
const CANCEL_MS = 5_000;

/** Returns the current record of an operation, as far as the viewer may see it. */
export type OperationView = (viewer: RecordViewer) => OperationRecord;

/** An operation, and the definitions that it is stored in. */
interface KnownOperation {
  readonly definitions: Definitions;
  readonly operation: StoredOperation;
}

/** An operation that runs on this node. */
interface StartedRun {
  readonly run: OperationRun | MigrationRun;
  /** Resolves when it no longer runs here. Never rejects. */
  readonly ended: Promise<void>;
}

/** The last progress seen of an operation that another node runs. */
interface SilenceWatch {
  readonly version: string | null;
  /** When that version was first seen, on the monotonic clock. */
  readonly since: number;
  readonly progress: OperationProgress | null;
}

/**
 * Runs the bulk operations of this node, and knows those of other nodes by their definitions. An operation is stored in
 * the engine of its source, and runs on the node that accepted the request. If that node stops or fails, another one,
 * or a later start, continues it.
 */
export class BulkOperations implements Service {
  readonly #options: BulkOperationsOptions;
  readonly #caches: DefinitionsCaches;
  readonly #runs = new Map<string, StartedRun>();
  /** Operations that are being created: these count toward the limit before they are stored. */
  readonly #creating = new Set<{ readonly definitions: Definitions; readonly by: string }>();
  readonly #seen = new Map<string, SilenceWatch>();
  /** Operations without a node that this one cannot run. Each is logged once. */
  readonly #unroutable = new Set<string>();
  /** Resolved at the end of operations for which a cancel has waited. */
  readonly #ends = new Map<string, PromiseWithResolvers<void>>();
  readonly #changed = new Map<string, OperationTotal>();
  /** The page limit of each engine. */
  readonly #pages = new Map<Storage, ConcurrencyLimit>();
  readonly #node: string;
  #idCount = 0;
  #endTakeovers: (() => void) | null = null;
  #takingOver: Promise<void> = Promise.resolve();
  #stopping: Promise<void> | null = null;

  constructor(options: BulkOperationsOptions) {
    this.#options = options;
    const { broker, clock, random, log } = options;
    this.#node = `${clock.now().toString(36)}-${Math.floor(random() * 2 ** 48).toString(36)}`;
    this.#caches = new DefinitionsCaches({
      stores: broker.namespaces().map(({ definitions }) => definitions),
      kind: 'operation',
      clock,
      random,
      onRead: (id, definition) => this.#onDefinition(id, definition),
      onFailedRead: (operation, error) =>
        log.warn({ err: error, operation }, 'an operation that changed could not be read yet'),
    });
  }

  /** Reads the stored operations, and continues those that no node runs. */
  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
    await this.#takeOverAll(true);
    const takeOver = (): Promise<void> => {
      this.#takingOver = this.#takeOverAll(false);
      return this.#takingOver;
    };
    if (this.#stopping === null) this.#endTakeovers = repeat(takeOver, TAKEOVER_INTERVAL_MS, this.#options);
  }

  /** Stops after the pages in progress. Other nodes, or the next start, continue the operations. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#endTakeovers?.();
    const cachesStopped = this.#caches.stop();
    for (const { resolve } of this.#ends.values()) resolve();
    for (const { run } of this.#runs.values()) run.stop();
    const ended = [...this.#runs.values()].map((run) => run.ended);
    await Promise.all([cachesStopped, this.#takingOver, ...ended]);
  }

  /**
   * Starts an operation and returns its id. Front ends check the caller's rights before.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (the selector), `not-supported`, `too-many-queues`,
   * `overloaded`
   */
  async create(
    request: OperationRequest,
    caller: Pick<UserRights, 'name' | 'maySee' | 'maySeeBodies'>,
  ): Promise<string> {
    const { broker } = this.#options;
    if (request.action === 'migrate') return this.#createMigration(request, caller);
    const queues = queuesOf(request, broker);
    const definitions = queues.source.namespace.currentDefinitions;
    // Throws, as an insert does, if the target would be one queue too many.
    if (request.to !== null) broker.namespace(request.to.ns).queue(request.to.queue);
    const hidesBodies = !caller.maySeeBodies(request.source.ns);
    await this.#checkSelector(request, queues, { payer: caller.name, hidesBodies });
    const logStart = (fields: object): void => this.#options.log.info(fields, 'a bulk operation starts');
    return this.#store(definitions, caller, logStart, async () => ({
      request,
      hidesBodies,
      estimate: await estimateOf(request, queues),
      bound: Math.ceil(engineNow(queues.source.namespace, queues.source.key)) + BOUND_MS,
    }));
  }

  /**
   * @throws QuaysideError also `definition-conflict`, if the namespace is being migrated already, or if an exchange or
   * an operation names it
   */
  async #createMigration(
    request: OperationRequest,
    caller: Pick<UserRights, 'name' | 'maySee'>,
  ): Promise<string> {
    const { broker, clock, log } = this.#options;
    const source = atMember('source.ns', () => broker.namespace(request.source.ns));
    const target = atMember('to.ns', () => broker.namespace(request.to?.ns ?? ''));
    await checkMigration(source, target);
    this.#mustBeUnused(source.name, caller);
    const logStart = (fields: object): void => log.info(fields, 'a namespace moves to another engine');
    return this.#store(source.definitions, caller, logStart, async () => ({
      request,
      hidesBodies: true,
      estimate: (await source.storage.usage(source.name, false)).elements,
      bound: clock.now(),
    }));
  }

  /**
   * Stores the new operation that `describe` returns, runs and logs it, and returns its id.
   * @throws QuaysideError `overloaded`, and as `describe` and `Definitions.put`
   */
  async #store(
    definitions: Definitions,
    { name: by }: Pick<UserRights, 'name'>,
    logStart: (fields: object) => void,
    describe: () => Promise<Pick<StoredOperation, 'request' | 'hidesBodies' | 'estimate' | 'bound'>>,
  ): Promise<string> {
    const leave = this.#admit(definitions, by);
    try {
      const described = await describe();
      const startedAt = this.#options.clock.now();
      const operation = { ...described, by, startedAt, isCancelled: false, end: null };
      const id = this.#newId();
      await this.#caches.of(definitions).put(id, operation, null);
      this.#run(id, { definitions, operation }, null);
      const { estimate } = operation;
      logStart({ event: 'operation', ...logged(id, operation), estimate });
      return id;
    } finally {
      leave();
    }
  }

  /** Exchanges and operations are stored in the old engine, and do not move with the namespace. */
  #mustBeUnused(ns: string, caller: Pick<UserRights, 'maySee'>): void {
    const inUse = (what: string, hint: string): QuaysideError =>
      new QuaysideError('definition-conflict', `Namespace ${quote(ns)} cannot be moved: ${what}. ${hint}`);
    for (const { key, declaration } of this.#options.exchanges.overview()) {
      if (![declaration.src, ...declaration.dst].some((place) => place.ns === ns)) continue;
      const isShown = caller.maySee(declaration.src.ns);
      throw inUse(
        `${isShown ? `exchange ${quote(idOf(key))}` : 'an exchange that you may not see'} names it`,
        'Delete the exchange, and create it again when the move is done.',
      );
    }
    for (const { id, operation } of this.#all()) {
      const { request, end } = operation;
      if (end !== null || (request.source.ns !== ns && request.to?.ns !== ns)) continue;
      throw inUse(`operation ${quote(id)} uses it`, 'Wait until it ends, or cancel it.');
    }
  }

  /**
   * Returns one operation.
   * @throws QuaysideError `operation-not-found`, also if the caller may not see the source's namespace; `forbidden`
   * without the right `manage` there
   */
  async get(id: string, caller: UserRights): Promise<OperationRecord> {
    const found = await this.#visible(id, caller);
    return (await this.#view(id, found))(caller);
  }

  /** Returns the operations whose source the caller may manage, newest first. */
  async list(filter: OperationFilter, caller: UserRights): Promise<OperationRecord[]> {
    return (await this.views(filter, caller)).map((recordFor) => recordFor(caller));
  }

  /**
   * Like `list`, but each operation is a function that returns its record for a viewer. If its engine is unavailable,
   * the record has the progress that this node saw last.
   */
  async views(filter: OperationFilter, caller: UserRights): Promise<OperationView[]> {
    const found = [...this.#all()].filter(({ operation }) => isListed(operation, filter, caller));
    found.sort((a, b) => b.operation.startedAt - a.operation.startedAt || (a.id < b.id ? 1 : -1));
    return Promise.all(
      found.map(async (one) => {
        try {
          return await this.#view(one.id, one);
        } catch (error) {
          if (!isOutage(error)) throw error;
          // An unavailable engine must not hide the operations of others.
          const progress = this.#seen.get(one.id)?.progress ?? null;
          return (viewer) => operationRecord(one.id, one.operation, progress, viewer);
        }
      }),
    );
  }

  /**
   * Cancels an operation: it ends after the page in progress, and its changes stay. Idempotent. Returns whether it has
   * ended; if its node is slow or gone, it ends later.
   * @throws QuaysideError as `get`, and `definition-conflict` for a migration
   */
  async cancel(id: string, caller: UserRights): Promise<boolean> {
    const { definitions, operation } = await this.#visible(id, caller);
    if (operation.end !== null) return true;
    if (operation.request.action === 'migrate') {
      throw new QuaysideError(
        'definition-conflict',
        `Operation ${quote(id)} cannot be cancelled: the elements of namespace ${quote(operation.request.source.ns)} are in two engines. It ends when the old engine is empty.`,
      );
    }
    const ended = this.#ended(id);
    await this.#update(definitions, id, (stored) =>
      stored.end === null ? { ...stored, isCancelled: true } : null,
    );
    this.#runs.get(id)?.run.cancel();
    return ended;
  }

  /** For metrics: running operations by namespace and action, and elements changed by this node since its start. */
  overview(): Record<'running' | 'changed', readonly Readonly<OperationTotal>[]> {
    const running = new Map<string, OperationTotal>();
    for (const { operation } of this.#all()) {
      if (operation.end === null) addTo(running, operation.request, 1);
    }
    return { running: [...running.values()], changed: [...this.#changed.values()] };
  }

  /** @throws QuaysideError as `Searches.open` */
  async #checkSelector(
    { where: { selector } }: OperationRequest,
    { source }: OperationQueues,
    { payer, hidesBodies }: { readonly payer: string; readonly hidesBodies: boolean },
  ): Promise<void> {
    if (selector === null) return;
    const filter = { states: ['ready'], group: null, selector } as const;
    const options = { payer, path: SELECTOR_PATH, bodies: false, hidesBodies };
    (await this.#options.searches.open(source, filter, options)).close();
  }

  /** @throws QuaysideError `overloaded` */
  #admit(definitions: Definitions, by: string): () => void {
    const running = this.#operationsOf(definitions).map(({ operation }) => operation);
    const creating = [...this.#creating].filter((one) => one.definitions === definitions);
    const users = [...running.filter(({ end }) => end === null), ...creating].map((one) => one.by);
    if (users.length >= MAX_RUNNING && users.includes(by)) {
      throw overloaded(
        `${users.length} operations are running on this engine. The limit is ${MAX_RUNNING}. Wait until one ends, or cancel one.`,
      );
    }
    const entry = { definitions, by };
    this.#creating.add(entry);
    return () => this.#creating.delete(entry);
  }

  #newId(): string {
    this.#idCount += 1;
    return `${this.#node}-${this.#idCount.toString(36)}`;
  }

  /** Returns an operation that the caller may manage. An unknown one is looked up: another node may have created it. */
  async #visible(id: string, caller: UserRights): Promise<KnownOperation> {
    const [found] = (await this.#caches.find(id)).map(knownOperation);
    const ns = found?.operation.request.source.ns;
    if (found === undefined || ns === undefined || !caller.maySee(ns)) throw notFound(id);
    if (caller.may('manage', ns)) return found;
    throw missingRight(caller, 'manage', ns);
  }

  /** All operations that this node knows, each once, although engines may share a store. */
  #all(): Iterable<KnownOperation & { readonly id: string }> {
    const all = [...this.#caches].flatMap(([definitions]) => this.#operationsOf(definitions));
    return new Map(all.map((one) => [one.id, one])).values();
  }

  /** The known operations of one store. */
  #operationsOf(definitions: Definitions): (KnownOperation & { readonly id: string })[] {
    return this.#caches
      .of(definitions)
      .keys()
      .flatMap((id) => {
        const found = this.#cached(definitions, id);
        return found === null ? [] : [{ id, ...found }];
      });
  }

  #cached(definitions: Definitions, id: string): KnownOperation | null {
    const definition = this.#caches.of(definitions).get(id);
    return definition && knownOperation({ definitions, definition });
  }

  async #view(id: string, { definitions, operation }: KnownOperation): Promise<OperationView> {
    let progress: OperationProgress | null = this.#runs.get(id)?.run.progress ?? null;
    if (operation.end === null && progress === null) {
      const stored = await definitions.get('operation-progress', id);
      progress = stored === null ? null : toProgress(stored.value);
      // No progress: the operation may have just ended.
      if (stored === null) await this.#caches.of(definitions).read(id);
      else if (this.#cached(definitions, id)?.operation.end === null) this.#watch(id, stored);
    }
    const latest = this.#cached(definitions, id)?.operation ?? operation;
    return (viewer) => operationRecord(id, latest, progress, viewer);
  }

  /** Handles a definition that was read: it may say that the operation has ended or was cancelled. */
  #onDefinition(id: string, definition: Definition | null): void {
    const operation = definition === null ? null : toOperation(definition.value);
    if (operation === null || operation.end !== null) this.#noteEnd(id);
    else if (operation.isCancelled) this.#runs.get(id)?.run.cancel();
  }

  #noteEnd(id: string): void {
    this.#seen.delete(id);
    this.#unroutable.delete(id);
    this.#ends.get(id)?.resolve();
    this.#ends.delete(id);
  }

  /** Resolves with whether the operation ended within {@link CANCEL_MS}. */
  async #ended(id: string): Promise<boolean> {
    const end = this.#ends.get(id) ?? Promise.withResolvers();
    this.#ends.set(id, end);
    const late = (): Error => new Error('The operation has not ended.');
    await inTime(this.#options.clock, end.promise, late, CANCEL_MS).catch(() => {});
    const [found] = this.#caches.get(id).map(knownOperation);
    return found?.operation.end !== null;
  }

  /** Stores the operation that `update` returns. Stores nothing if it returns null, or if the operation is gone. */
  async #update(
    definitions: Definitions,
    id: string,
    update: (stored: StoredOperation) => StoredOperation | null,
  ): Promise<void> {
    await retryConflicts(async () => {
      const cache = this.#caches.of(definitions);
      const found = await cache.read(id);
      const updated = found === null ? null : update(toOperation(found.value));
      if (found === null || updated === null) return;
      this.#onDefinition(id, await cache.put(id, updated, found.version));
    });
  }

  #run(
    id: string,
    found: KnownOperation,
    before: { progress: OperationProgress; version: string } | null,
  ): void {
    const { broker, exchanges, clock, random, log, searches, userNamed } = this.#options;
    const { operation, definitions } = found;
    if (this.#stopping !== null || this.#runs.has(id)) return;
    const storeEnd = (end: OperationEnd): Promise<void> => this.#storeEnd(id, found, end);
    if (operation.request.action === 'migrate') {
      this.#start(id, new MigrationRun({ id, operation, broker, exchanges, clock, log, storeEnd }));
      return;
    }
    let queues: OperationQueues;
    try {
      queues = queuesOf(operation.request, broker);
    } catch (error) {
      // Logged once per operation: every search finds it again until it ends.
      if (!this.#unroutable.has(id))
        log.warn({ err: error, operation: id }, 'a stored operation cannot run on this node');
      this.#unroutable.add(id);
      return;
    }
    const run = new OperationRun({
      id,
      operation,
      queues,
      definitions,
      node: this.#node,
      before,
      clock,
      random,
      log,
      searches,
      userNamed,
      pages: this.#pagesOf(queues.source.namespace),
      onChanged: (count) => addTo(this.#changed, operation.request, count),
      storeEnd,
    });
    this.#start(id, run);
  }

  #start(id: string, run: StartedRun['run']): void {
    this.#runs.set(id, { run, ended: run.run().finally(() => this.#runs.delete(id)) });
  }

  #pagesOf({ storage }: Namespace): ConcurrencyLimit {
    const pages = this.#pages.get(storage) ?? new ConcurrencyLimit({ perKey: 1, total: 1 });
    this.#pages.set(storage, pages);
    return pages;
  }

  async #storeEnd(id: string, { definitions }: KnownOperation, end: OperationEnd): Promise<void> {
    let ended: StoredOperation | null = null;
    await this.#update(definitions, id, (stored) => {
      ended = stored.end === null ? { ...stored, end } : null;
      return ended;
    });
    if (ended !== null) {
      const { state, counters, error } = end;
      const fields = { event: 'operation', ...logged(id, ended), state, ...counters, error };
      this.#options.log.info(fields, 'a bulk operation ended');
    }
    await definitions.delete('operation-progress', id, 'any');
    await this.#deleteOld(definitions).catch(() => {});
  }

  /**
   * Deletes operations that ended long ago, or before many others. Dry runs are counted apart: each confirmation in the
   * console starts one.
   */
  async #deleteOld(definitions: Definitions): Promise<void> {
    const ended = this.#operationsOf(definitions).flatMap(({ id, operation: { request, end } }) => {
      return end === null ? [] : [{ id, at: end.at, isDryRun: request.dryRun }];
    });
    ended.sort((a, b) => b.at - a.at);
    const oldest = this.#options.clock.now() - KEPT_MS;
    for (const some of Map.groupBy(ended, ({ isDryRun }) => isDryRun).values()) {
      for (const [i, { id, at }] of some.entries()) {
        if (i < MAX_KEPT && at >= oldest) continue;
        await definitions.delete('operation-progress', id, 'any');
        await this.#caches.of(definitions).delete(id, 'any');
      }
    }
  }

  /**
   * Takes over operations that no node runs. Never rejects.
   * @param isStart whether this process has just started, so that it cannot run any of them already
   */
  async #takeOverAll(isStart: boolean): Promise<void> {
    const unowned = [...this.#all()].filter(
      ({ id, operation }) => operation.end === null && !this.#runs.has(id),
    );
    await Promise.all(unowned.map((found) => this.#takeOver(found.id, found, isStart).catch(() => {})));
  }

  async #takeOver(id: string, found: KnownOperation, isStart: boolean): Promise<void> {
    const { broker, clock } = this.#options;
    const { definitions, operation } = found;
    const namespace = broker.namespaces().find(({ name }) => name === operation.request.source.ns);
    const isHere = namespace?.isDefinedIn(definitions) === true;
    if (!isHere && !operation.isCancelled) return;
    const stored = await definitions.get('operation-progress', id);
    const before = stored === null ? null : { progress: toProgress(stored.value), version: stored.version };
    const silentMs = clock.monotonic() - this.#watch(id, stored).since;
    const isAbandoned = operation.isCancelled && silentMs >= ABANDONED_MS;
    if (!isHere && !isAbandoned) return;
    const isAlone = isStart && namespace?.isShared === false;
    if (silentMs < SILENT_MS && !isAlone && before?.progress.node !== null) return;
    // The operation may have ended since it was cached.
    const latest = await this.#caches.of(definitions).read(id);
    if (latest === null || toOperation(latest.value).end !== null) return;
    if (isHere) this.#run(id, { ...found, operation: toOperation(latest.value) }, before);
    if (this.#runs.has(id)) this.#seen.delete(id);
    else if (isAbandoned && this.#stopping === null) await this.#abandon(id, found, before?.progress ?? null);
  }

  /** Notes the progress that was read of an operation of another node. */
  #watch(id: string, stored: Definition | null): SilenceWatch {
    const version = stored?.version ?? null;
    const seen = this.#seen.get(id);
    const since = seen?.version === version ? seen.since : this.#options.clock.monotonic();
    const watch = { version, since, progress: stored === null ? null : toProgress(stored.value) };
    this.#seen.set(id, watch);
    return watch;
  }

  /** Ends a cancelled operation that no node can run. */
  async #abandon(id: string, found: KnownOperation, progress: OperationProgress | null): Promise<void> {
    const { counters = ZERO, samples = [], pending = null } = progress ?? {};
    const { action, source } = found.operation.request;
    const onTheirWay =
      action === 'move' && pending !== null
        ? ` Elements in transit, if any, are in queue ${quote(TRANSIT_QUEUE + id)} of namespace ${quote(source.ns)}.`
        : '';
    const error = `No node has the namespaces that the operation needs.${onTheirWay}`;
    const at = this.#options.clock.now();
    await this.#storeEnd(id, found, { state: 'cancelled', at, counters, samples, error, isThrown: false });
  }
}

type OperationTotal = { readonly ns: string; readonly action: Action; count: number };

function knownOperation({ definitions, definition }: FoundDefinition): KnownOperation {
  return { definitions, operation: toOperation(definition.value) };
}

function addTo(
  totals: Map<string, OperationTotal>,
  { source: { ns }, action }: OperationRequest,
  count: number,
): void {
  const key = JSON.stringify([ns, action]);
  const total = totals.get(key);
  if (total === undefined) totals.set(key, { ns, action, count });
  else total.count += count;
}

/** The log fields of an operation. */
function logged(id: string, { request, by }: StoredOperation): object {
  const { action, source, to, dryRun } = request;
  return {
    operation: id,
    action,
    user: by,
    ...source,
    ...(to !== null && { to }),
    ...(dryRun && { dryRun }),
  };
}

function isListed(
  { request: { source }, end }: StoredOperation,
  { ns, queue, state }: OperationFilter,
  caller: UserRights,
): boolean {
  if (!caller.may('manage', source.ns)) return false;
  if (ns !== null && ns !== source.ns) return false;
  if (queue !== null && queue !== source.queue) return false;
  return state === null || state === (end?.state ?? 'running');
}

async function estimateOf(request: OperationRequest, { source, group }: OperationQueues): Promise<number> {
  if (request.where.ids !== null) return request.where.ids.length;
  const { isStream, storage } = source.namespace;
  const counts = await storage.counts(source.key, isStream ? group : undefined);
  return statesOf(request).reduce((sum, state) => sum + counts[state], 0);
}

function notFound(id: string): QuaysideError {
  return new QuaysideError('operation-not-found', `There is no operation ${quote(id)}.`, { parameter: 'id' });
}
