import { setImmediate as turn } from 'node:timers/promises';
import type { Broker } from '../broker/broker.ts';
import { engineNow } from '../broker/engine-time.ts';
import { checkMigration } from '../broker/migration.ts';
import type { Namespace } from '../broker/namespace.ts';
import type { BrokerLog } from '../broker/ports.ts';
import type { Queue } from '../broker/queue.ts';
import { inTime, unknownOutcome } from '../engine/calls.ts';
import { type Definition, type Definitions, retryConflicts } from '../engine/definitions.ts';
import { DefinitionsCaches } from '../engine/definitions-cache.ts';
import type { Storage } from '../engine/storage.ts';
import { idOf } from '../exchange/declaration.ts';
import type { ExchangeOverview } from '../exchange/record.ts';
import { DELIVERY_STATES, type DeliveryState } from '../model/element.ts';
import { missingRight, QuaysideError } from '../model/errors.ts';
import type { Clock } from '../util/clock.ts';
import { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { quote } from '../util/quote.ts';
import { repeat } from '../util/repeat.ts';
import type { Service } from '../util/service.ts';
import { TRANSIT_QUEUE } from './changer.ts';
import {
  type Action,
  type OperationQueues,
  type OperationRequest,
  type OperatorRights,
  queuesOf,
  statesOf,
} from './request.ts';
import { MigrationRun, OperationRun } from './run.ts';
import type { Searches } from './search.ts';
import {
  BOUND_MS,
  type OperationEnd,
  type OperationProgress,
  type OperationRecord,
  type OperationState,
  operationRecord,
  operationValue,
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
  /** The rights of a user by name, as they are now; null: there is no such user. */
  readonly userNamed: (name: string) => OperatorRights | null;
  /** The exchanges of this node, and so of all. */
  readonly exchanges: { overview(): ExchangeOverview[] };
  readonly clock: Clock;
  /** 0 (inclusive) to 1. */
  readonly random: () => number;
  readonly log: BrokerLog;
}

/** On whose behalf operations are started and read. */
export interface OperationCaller {
  readonly name: string;
  may(right: 'manage' | 'browse', namespace: string): boolean;
  maySee(namespace: string): boolean;
  /** Whether bodies of the namespace's elements may be shown. */
  maySeeBodies(namespace: string): boolean;
  /** The API token with which the caller logged in; not given: none. */
  readonly token?: { readonly name: string; readonly owner: Pick<OperationCaller, 'may'> | null };
}

/** Which operations a list shows; null: all. */
interface OperationFilter {
  readonly ns: string | null;
  readonly queue: string | null;
  readonly state: OperationState | null;
}

/** BulkOperations of one store that run at a time. One may take days, so a user who has none may always start one. */
const MAX_RUNNING = 16;
/** Operations that ended are kept for so long, and of each store no more than the last ones. */
const KEPT_MS = 7 * 24 * 3_600_000;
const MAX_KEPT = 100;
/** Operations that no node runs are looked for this often, ± half. */
const LOOK_MS = 2_000;
/** A node that has not written for so long is gone: it writes every second, and a call to an engine takes up to 5 s. */
const SILENT_MS = 7_000;
/**
 * By then a node that can run an operation has continued it: a cancelled one that still has none is ended by a node
 * that cannot.
 */
const ABANDONED_MS = 30_000;
/** How long a cancel waits for the page in progress. */
const CANCEL_MS = 5_000;
/** Pages that wait for those of other operations on the same engine: each operation has one. */
const MAX_WAITING_PAGES = 1_000;

/** An operation as it is now: its record as a viewer may see it. */
export type OperationView = (viewer: RecordViewer) => OperationRecord;

/** A definition of an operation, and where it is stored. */
interface KnownOperation {
  readonly definitions: Definitions;
  readonly operation: StoredOperation;
}

/** What was last seen of an operation that another node runs. */
interface SilenceWatch {
  readonly version: string | null;
  /** On the monotonic clock, when that version was seen first. */
  readonly since: number;
}

/**
 * The bulk operations of this node, and those of the others as far as their definitions show them. One is stored in the
 * engine of its source, and run by the node that took the request; if that node stops or dies, another one, or a later
 * start, continues where it was.
 */
export class BulkOperations implements Service {
  readonly #options: BulkOperationsOptions;
  readonly #caches: DefinitionsCaches;
  readonly #runs = new Map<string, OperationRun | MigrationRun>();
  /** The users of operations that are being created, by store: they count before they are stored. */
  readonly #creating = new Map<Definitions, readonly string[]>();
  readonly #seen = new Map<string, SilenceWatch>();
  /** Those that no node runs, and that this one cannot run. */
  readonly #unroutable = new Set<string>();
  /** Those who wait for an operation to end. */
  readonly #awaited = new Map<string, Set<() => void>>();
  readonly #changed = new Map<string, { readonly ns: string; readonly action: Action; count: number }>();
  /** By engine. */
  readonly #pages = new Map<Storage, ConcurrencyLimit>();
  readonly #node: string;
  #made = 0;
  #endLooks: (() => void) | null = null;
  #looking: Promise<void> = Promise.resolve();
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
      onRead: (id, definition) => this.#follow(id, definition),
      onFailedRead: (operation, error) =>
        log.warn({ err: error, operation }, 'an operation that changed could not be read yet'),
    });
  }

  /** Reads what there is, and continues what no other node can. */
  async start(): Promise<void> {
    this.#caches.start();
    await this.#caches.reload();
    await this.#look(true);
    const look = (): Promise<void> => {
      this.#looking = this.#look(false);
      return this.#looking;
    };
    if (this.#stopping === null) this.#endLooks = repeat(look, LOOK_MS, this.#options);
  }

  /** Ends after the pages in progress; other nodes, or the next start, continue. */
  stop(): Promise<void> {
    this.#stopping ??= this.#stop();
    return this.#stopping;
  }

  async #stop(): Promise<void> {
    this.#endLooks?.();
    this.#caches.stop();
    for (const waiting of this.#awaited.values()) for (const done of waiting) done();
    await this.#looking;
    await Promise.all([...this.#runs.values()].map((run) => run.stop()));
    await this.#caches.idle();
  }

  /**
   * Starts an operation and returns its id. The caller's rights were checked.
   * @throws QuaysideError `invalid-parameter`, `invalid-body` (the selector), `not-supported`, `too-many-queues`,
   * `overloaded`
   */
  async create(
    request: OperationRequest,
    caller: Pick<OperationCaller, 'name' | 'maySee' | 'maySeeBodies'>,
  ): Promise<string> {
    const { broker } = this.#options;
    if (request.action === 'migrate') return this.#createMigration(request, caller);
    const queues = queuesOf(request, broker);
    const definitions = queues.source.namespace.currentDefinitions;
    // The target's name counts from here on, as with an insert.
    if (request.to !== null) broker.namespace(request.to.ns).queue(request.to.queue);
    const hidesBodies = !caller.maySeeBodies(request.source.ns);
    await this.#checkSelector(request, queues, { payer: caller.name, hidesBodies });
    const { id, operation } = await this.#begin(definitions, caller, async () => ({
      request,
      hidesBodies,
      estimate: await estimateOf(request, queues),
      bound: Math.ceil(engineNow(queues.source.namespace, queues.source.key)) + BOUND_MS,
    }));
    const fields = { event: 'operation', ...logged(id, operation), estimate: operation.estimate };
    this.#options.log.info(fields, 'a bulk operation starts');
    return id;
  }

  /**
   * @throws QuaysideError also `definition-conflict`, if the namespace moves already or something is about it that
   * would not move with it
   */
  async #createMigration(
    request: OperationRequest,
    caller: Pick<OperationCaller, 'name' | 'maySee'>,
  ): Promise<string> {
    const { broker, clock } = this.#options;
    const source = broker.namespace(request.source.ns);
    await checkMigration(source, broker.namespace(request.to?.ns ?? ''));
    this.#mustBeUnused(source.name, caller);
    const { id, operation } = await this.#begin(source.definitions, caller, async () => ({
      request,
      hidesBodies: true,
      estimate: (await source.storage.usage(source.name, false)).elements,
      bound: clock.now(),
    }));
    const fields = { event: 'operation', ...logged(id, operation), estimate: operation.estimate };
    this.#options.log.info(fields, 'a namespace moves to another engine');
    return id;
  }

  /**
   * Stores what `describe` says of a new operation, and runs it.
   * @throws QuaysideError `overloaded`, and as `describe` and `Definitions.put`
   */
  async #begin(
    definitions: Definitions,
    { name: by }: Pick<OperationCaller, 'name'>,
    describe: () => Promise<Pick<StoredOperation, 'request' | 'hidesBodies' | 'estimate' | 'bound'>>,
  ): Promise<{ readonly id: string; readonly operation: StoredOperation }> {
    const leave = this.#enter(definitions, by);
    try {
      const described = await describe();
      const startedAt = this.#options.clock.now();
      const operation = { ...described, by, startedAt, isCancelled: false, end: null };
      const id = this.#newId();
      const value = operationValue(operation);
      const version = await definitions.put('operation', id, value, null);
      this.#caches.of(definitions).note(id, { key: id, value, version });
      this.#run(id, { definitions, operation }, null);
      return { id, operation };
    } finally {
      leave();
    }
  }

  /** Exchanges are stored in the engine that is left, and operations have begun there. */
  #mustBeUnused(ns: string, caller: Pick<OperationCaller, 'maySee'>): void {
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
      throw inUse(`operation ${quote(id)} is about it`, 'Wait until it ends, or cancel it.');
    }
  }

  /**
   * One operation. @throws QuaysideError `operation-not-found` also if its source's namespace may not be seen;
   * `forbidden` without the right `manage` there
   */
  async get(id: string, caller: OperationCaller): Promise<OperationRecord> {
    const found = await this.#visible(id, caller);
    return (await this.#view(id, found))(caller);
  }

  /** Those whose source the caller may manage, the last one first. */
  async list(filter: OperationFilter, caller: OperationCaller): Promise<OperationRecord[]> {
    return (await this.views(filter, caller)).map((recordFor) => recordFor(caller));
  }

  /** The same, each as a function that returns its record as a caller may see it. */
  async views(filter: OperationFilter, caller: OperationCaller): Promise<OperationView[]> {
    const found = [...this.#all()].filter(({ operation }) => isListed(operation, filter, caller));
    const byId = new Map(found.map((one) => [one.id, one]));
    const sorted = [...byId.values()].sort((a, b) => {
      return b.operation.startedAt - a.operation.startedAt || (a.id < b.id ? 1 : -1);
    });
    return Promise.all(sorted.map((one) => this.#view(one.id, one)));
  }

  /**
   * Ends an operation after the page in progress; what it changed stays changed. Idempotent. Returns whether it has
   * ended: if its node is slow or gone, it ends later.
   * @throws QuaysideError as `get`
   */
  async cancel(id: string, caller: OperationCaller): Promise<boolean> {
    const { definitions, operation } = await this.#visible(id, caller);
    if (operation.end !== null) return true;
    if (operation.request.action === 'migrate') {
      throw new QuaysideError(
        'definition-conflict',
        `Operation ${quote(id)} cannot be cancelled: the elements of namespace ${quote(operation.request.source.ns)} are in two engines. It ends when the old one has none left.`,
      );
    }
    const ended = this.#ended(id);
    await this.#update(definitions, id, (stored) =>
      stored.end === null ? { ...stored, isCancelled: true } : null,
    );
    this.#runs.get(id)?.cancel();
    return ended;
  }

  /** Operations that run, by namespace and action, and elements that this node changed since its start: for metrics. */
  overview(): { readonly running: OperationTotals; readonly changed: OperationTotals } {
    const running = new Map<string, { readonly ns: string; readonly action: Action; count: number }>();
    const ids = new Set<string>();
    for (const { id, operation } of this.#all()) {
      if (operation.end !== null || ids.has(id)) continue;
      ids.add(id);
      addTo(running, operation.request, 1);
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
  #enter(definitions: Definitions, user: string): () => void {
    const running = this.#in(definitions).flatMap(({ operation: { end, by } }) => (end === null ? [by] : []));
    const creating = this.#creating.get(definitions) ?? [];
    const users = [...running, ...creating];
    if (users.length >= MAX_RUNNING && users.includes(user)) {
      throw new QuaysideError(
        'overloaded',
        `${users.length} operations run on this engine, its limit is ${MAX_RUNNING}. Wait until one ends, or cancel one.`,
      );
    }
    this.#creating.set(definitions, [...creating, user]);
    return () => {
      const left = this.#creating.get(definitions) ?? [];
      this.#creating.set(definitions, left.toSpliced(left.indexOf(user), 1));
    };
  }

  #newId(): string {
    this.#made += 1;
    return `${this.#node}-${this.#made.toString(36)}`;
  }

  /** An operation that the caller may manage; it may have been created by another node just now. */
  async #visible(id: string, caller: OperationCaller): Promise<KnownOperation> {
    const found = this.#known(id) ?? (await this.#find(id));
    const ns = found?.operation.request.source.ns;
    if (found === null || ns === undefined || !caller.maySee(ns)) throw notFound(id);
    if (caller.may('manage', ns)) return found;
    throw missingRight(caller, 'manage', ns);
  }

  /** All that this node knows of; twice what engines that share a store define. */
  *#all(): Generator<KnownOperation & { readonly id: string }> {
    for (const [definitions] of this.#caches) yield* this.#in(definitions);
  }

  /** Those that one store has. */
  #in(definitions: Definitions): (KnownOperation & { readonly id: string })[] {
    return this.#caches
      .of(definitions)
      .keys()
      .flatMap((id) => {
        const found = this.#cached(definitions, id);
        return found === null ? [] : [{ id, ...found }];
      });
  }

  #known(id: string): KnownOperation | null {
    for (const [definitions] of this.#caches) {
      const found = this.#cached(definitions, id);
      if (found !== null) return found;
    }
    return null;
  }

  /** Reads all stores. @throws QuaysideError if a store that failed may have it */
  async #find(id: string): Promise<KnownOperation | null> {
    const reading = this.#caches.read(id);
    await reading.catch(() => {});
    const found = this.#known(id);
    if (found === null) await reading;
    return found;
  }

  #cached(definitions: Definitions, id: string): KnownOperation | null {
    const definition = this.#caches.of(definitions).get(id);
    if (definition === null) return null;
    return { definitions, operation: toOperation(definition.value) };
  }

  async #view(id: string, { definitions, operation }: KnownOperation): Promise<OperationView> {
    let progress: OperationProgress | null = this.#runs.get(id)?.progress ?? null;
    if (operation.end === null && progress === null) {
      const stored = await definitions.get('operation-progress', id);
      progress = stored === null ? null : toProgress(stored.value);
      // Without progress it may have ended since.
      if (stored === null) await this.#caches.of(definitions).read(id);
    }
    const latest = this.#cached(definitions, id)?.operation ?? operation;
    return (viewer) => operationRecord(id, latest, progress, viewer);
  }

  /** A definition was read. */
  #follow(id: string, definition: Definition | null): void {
    const operation = definition === null ? null : toOperation(definition.value);
    if (operation === null || operation.end !== null) this.#noteEnd(id);
    else if (operation.isCancelled) this.#runs.get(id)?.cancel();
  }

  #noteEnd(id: string): void {
    this.#seen.delete(id);
    this.#unroutable.delete(id);
    for (const done of this.#awaited.get(id) ?? []) done();
  }

  /** Resolves with whether the operation ended within {@link CANCEL_MS}. */
  async #ended(id: string): Promise<boolean> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const waiting = this.#awaited.get(id) ?? new Set();
    this.#awaited.set(id, waiting.add(resolve));
    const cancel = this.#options.clock.after(CANCEL_MS, resolve);
    await promise;
    cancel();
    waiting.delete(resolve);
    if (waiting.size === 0) this.#awaited.delete(id);
    return this.#known(id)?.operation.end !== null;
  }

  /** Stores what `update` makes of an operation; null: nothing. It may be gone. */
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
      const value = operationValue(updated);
      const version = await definitions.put('operation', id, value, found.version);
      cache.note(id, { key: id, value, version });
      this.#follow(id, { key: id, value, version });
    });
  }

  #run(
    id: string,
    found: KnownOperation,
    before: { progress: OperationProgress; version: string } | null,
  ): void {
    const { broker, clock, random, log, searches, userNamed } = this.#options;
    const { operation, definitions } = found;
    if (this.#stopping !== null || this.#runs.has(id)) return;
    if (operation.request.action === 'migrate') {
      this.#start(
        id,
        new MigrationRun({
          id,
          operation,
          broker,
          clock,
          log,
          storeEnd: (end) => this.#storeEnd(id, found, end),
        }),
      );
      return;
    }
    let queues: OperationQueues;
    try {
      queues = queuesOf(operation.request, broker);
    } catch (error) {
      // Once for each: it is looked at again and again until it ends.
      if (!this.#unroutable.has(id))
        log.warn({ err: error, operation: id }, 'a stored operation cannot run on this node');
      this.#unroutable.add(id);
      return;
    }
    const { namespace, key } = queues.source;
    const run = new OperationRun({
      id,
      operation,
      queues,
      definitions,
      node: this.#node,
      before,
      now: () => engineNow(namespace, key),
      clock,
      random,
      log,
      searches,
      userNamed,
      pages: this.#pagesOf(namespace),
      onChanged: (count) => addTo(this.#changed, operation.request, count),
      storeEnd: (end) => this.#storeEnd(id, found, end),
    });
    this.#start(id, run);
  }

  #start(id: string, run: OperationRun | MigrationRun): void {
    this.#runs.set(id, run);
    void run.start().finally(() => this.#runs.delete(id));
  }

  #pagesOf({ storage }: Namespace): ConcurrencyLimit {
    const pages =
      this.#pages.get(storage) ??
      new ConcurrencyLimit({
        perKey: 1,
        total: 1,
        maxWaiting: MAX_WAITING_PAGES,
        rejection: () => new QuaysideError('overloaded', 'Too many operations run on this engine.'),
      });
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
    await this.#forgetOld(definitions).catch(() => {});
  }

  /** Deletes operations that ended long ago, or before many others. */
  async #forgetOld(definitions: Definitions): Promise<void> {
    const ended = this.#in(definitions).flatMap(({ id, operation: { end } }) => {
      return end === null ? [] : [{ id, at: end.at }];
    });
    ended.sort((a, b) => b.at - a.at);
    const oldest = this.#options.clock.now() - KEPT_MS;
    for (const [i, { id, at }] of ended.entries()) {
      if (i < MAX_KEPT && at >= oldest) continue;
      await definitions.delete('operation', id, 'any');
      await definitions.delete('operation-progress', id, 'any');
      this.#caches.of(definitions).note(id, null);
    }
  }

  /**
   * Takes over what no node runs. Never rejects.
   * @param isStart whether nothing of before can still run on this process
   */
  async #look(isStart: boolean): Promise<void> {
    const left = [...this.#all()].filter(
      ({ id, operation }) => operation.end === null && !this.#runs.has(id),
    );
    await Promise.all(left.map((found) => this.#lookAt(found.id, found, isStart).catch(() => {})));
  }

  async #lookAt(id: string, found: KnownOperation, isStart: boolean): Promise<void> {
    const { broker, clock } = this.#options;
    const { definitions, operation } = found;
    const namespace = broker.namespaces().find(({ name }) => name === operation.request.source.ns);
    const isHere = namespace?.isDefinedIn(definitions) === true;
    if (!isHere && !operation.isCancelled) return;
    const stored = await definitions.get('operation-progress', id);
    const before = stored === null ? null : { progress: toProgress(stored.value), version: stored.version };
    const version = stored?.version ?? null;
    const seen = this.#seen.get(id);
    const since = seen === undefined || seen.version !== version ? clock.monotonic() : seen.since;
    this.#seen.set(id, { version, since });
    const silentMs = clock.monotonic() - since;
    const isAbandoned = operation.isCancelled && silentMs >= ABANDONED_MS;
    if (!isHere && !isAbandoned) return;
    const isAlone = isStart && namespace?.isShared === false;
    if (silentMs < SILENT_MS && !isAlone && before?.progress.node !== null) return;
    // It may have ended since.
    const latest = await this.#caches.of(definitions).read(id);
    if (latest === null || toOperation(latest.value).end !== null) return;
    if (isHere) this.#run(id, { ...found, operation: toOperation(latest.value) }, before);
    if (this.#runs.has(id)) this.#seen.delete(id);
    else if (isAbandoned && this.#stopping === null) await this.#abandon(id, found, before?.progress ?? null);
  }

  /** Ends a cancelled operation that no node can run. */
  async #abandon(id: string, found: KnownOperation, progress: OperationProgress | null): Promise<void> {
    const { counters = ZERO, samples = [], pending = null } = progress ?? {};
    const { action, source } = found.operation.request;
    const onTheirWay =
      action === 'move' && pending !== null
        ? ` Elements that were on their way are in queue ${quote(TRANSIT_QUEUE + id)} of namespace ${quote(source.ns)}, if it has any.`
        : '';
    const error = `No node has the namespaces that it needs.${onTheirWay}`;
    const at = this.#options.clock.now();
    await this.#storeEnd(id, found, { state: 'cancelled', at, counters, samples, error, isThrown: false });
  }
}

type OperationTotals = readonly { readonly ns: string; readonly action: Action; readonly count: number }[];

function addTo(
  totals: Map<string, { readonly ns: string; readonly action: Action; count: number }>,
  { source: { ns }, action }: OperationRequest,
  count: number,
): void {
  const key = JSON.stringify([ns, action]);
  const total = totals.get(key);
  if (total === undefined) totals.set(key, { ns, action, count });
  else total.count += count;
}

/** Who does what, for the log. */
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
  caller: OperationCaller,
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

/**
 * Removes the deliveries of these states, of all groups, and returns how many they were. No more than there were when
 * it began: a queue into which producers insert all the while is not emptied for ever.
 * @throws QuaysideError `storage-unavailable`, `outcome-unknown`; then a part of them may be removed
 */
export async function purgeQueue(queue: Queue, states: readonly DeliveryState[]): Promise<number> {
  const { storage } = queue.namespace;
  const { groups, ...whole } = await storage.counts(queue.key);
  const counts = groups.size === 0 ? [whole] : [...groups.values()];
  const max = counts.reduce((sum, of) => states.reduce((all, state) => all + of[state], sum), 0);
  let removed = 0;
  for (;;) {
    const step = await storage.purge(queue.key, states);
    removed += step.removed;
    // Names come from clients: one that no queue has must not be kept.
    if (step.removed > 0) queue.namespace.activity.note(queue.key.name);
    if (step.isDone || removed >= max) return removed;
    // Each step is a call like any other; those of other users come in between.
    await turn();
  }
}

interface DeleteOptions {
  /** Removes what it holds and ends the calls that wait for it, in place of a rejection. */
  readonly force: boolean;
  /** The exchanges of this node, and so of all. */
  readonly exchanges: { overview(): ExchangeOverview[] };
}

/** Elements that come while a queue is deleted by force are removed so often. */
const MAX_ROUNDS = 10;

/**
 * Deletes a queue with its pause flag, options and statistics. Returns how many deliveries it held.
 * @throws QuaysideError `queue-in-use` if it holds elements, calls wait for it on any node, or an exchange names it; by
 * force, only if elements come faster than they are removed
 */
export async function deleteQueue(queue: Queue, { force, exchanges }: DeleteOptions): Promise<number> {
  const { namespace } = queue;
  const late = (): Error => unknownOutcome(new Error('The engines of the queue took too long.'));
  if (!force) return inTime(namespace.clock, deleteUnused(queue, exchanges), late);
  let removed = 0;
  for (let round = 0; round < MAX_ROUNDS; round += 1) {
    await endWaiting(queue);
    removed += await purgeQueue(queue, DELIVERY_STATES);
    if (await inTime(namespace.clock, namespace.drop(queue.key), late)) return removed;
  }
  throw inUse(queue, 'holds elements');
}

async function deleteUnused(queue: Queue, exchanges: DeleteOptions['exchanges']): Promise<0> {
  await mustBeUnused(queue, exchanges);
  if (await queue.namespace.drop(queue.key)) return 0;
  throw inUse(queue, 'holds elements');
}

async function mustBeUnused(queue: Queue, exchanges: DeleteOptions['exchanges']): Promise<void> {
  const { ns, name } = queue.key;
  const isNamed = exchanges.overview().some(({ declaration: { src, dst } }) => {
    return [src, ...dst].some((one) => one.ns === ns && one.queue === name);
  });
  if (isNamed) throw inUse(queue, 'is named by an exchange');
  if ((await queue.allConsumers()).length > 0) throw inUse(queue, 'has calls that wait for its elements');
}

/** On all nodes, with `pop-cancelled`. */
async function endWaiting(queue: Queue): Promise<void> {
  const tids = new Set((await queue.allConsumers()).map(({ tid }) => tid));
  for (const tid of tids) queue.cancel(tid, null);
}

function inUse({ key: { name } }: Queue, why: string): QuaysideError {
  return new QuaysideError(
    'queue-in-use',
    `Queue ${quote(name)} ${why}. Wait until it is unused, or delete it with force=1.`,
  );
}
