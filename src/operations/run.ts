import { setImmediate as turn } from 'node:timers/promises';
import { engineNow } from '../broker/engine-time.ts';
import { cursorAfterMigration } from '../broker/migrating-storage.ts';
import { type Definitions, isDefinitionConflict } from '../engine/definitions.ts';
import type { ScannedDelivery } from '../engine/storage.ts';
import { type DeliveryState, WAITING_STATES } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { ElementSample } from '../model/records.ts';
import type { UserRights } from '../model/rights.ts';
import { Backoff } from '../util/backoff.ts';
import { textOfByteString } from '../util/byte-string.ts';
import type { CancelTimer, Clock } from '../util/clock.ts';
import type { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import type { EventLog } from '../util/log.ts';
import { Pause } from '../util/pause.ts';
import { quote } from '../util/quote.ts';
import { ElementChanger } from './changer.ts';
import { type OperationQueues, rightsFor, statesOf } from './request.ts';
import type { ElementSearch, Searches } from './search.ts';
import {
  BOUND_MS,
  NO_PROGRESS,
  type OperationEnd,
  type OperationProgress,
  type PageCursor,
  type PendingElement,
  SELECTOR_PATH,
  type StoredOperation,
  toOperation,
  toProgress,
} from './stored.ts';

interface RunOptions {
  readonly id: string;
  readonly operation: StoredOperation;
  readonly queues: OperationQueues;
  /** Definitions of the source's namespace. */
  readonly definitions: Definitions;
  /** This node. */
  readonly node: string;
  /** The stored progress and its version; null if the operation has not started. */
  readonly before: { readonly progress: OperationProgress; readonly version: string } | null;
  readonly clock: Clock;
  readonly random: () => number;
  readonly log: EventLog;
  readonly searches: Searches;
  /** Returns the current rights of a user; null if the user does not exist. */
  readonly userNamed: (name: string) => Pick<UserRights, 'may'> | null;
  /** The engine's page limit: one page at a time whatever the number of operations, and users take turns. */
  readonly pages: ConcurrencyLimit;
  /** Called after each page with the number of elements that were changed. */
  readonly onChanged: (count: number) => void;
  /** Stores the end. @throws QuaysideError as `Definitions.put` */
  readonly storeEnd: (end: OperationEnd) => Promise<void>;
}

/** The node that runs an operation writes its progress at least this often. */
const BEAT_MS = 1_000;

/**
 * If changing a page takes this much longer than the small write just before it, the page size is halved, because other
 * calls wait behind a page. The write is the baseline: a busy disk slows down both.
 */
const LONG_PAGE_MS = 10;
const MIN_PAGE = 64;
const FIRST_PAGE_SIZE = 128;
const MAX_PAGE = 1_000;

const FIRST_PAGE: PageCursor = { part: 0, after: null };
const MAX_SAMPLES = 10;
/** Maximum bytes of headers in a sample. */
const MAX_SAMPLE_BYTES = 1_024;

/** Codes of errors after which the failed step of an operation is repeated. Any other error fails the operation. */
const TRANSIENT: ReadonlySet<string> = new Set([
  'storage-unavailable',
  'outcome-unknown',
  'overloaded',
  'shutting-down',
]);

/** Whether an error is transient, so that the call is repeated. */
export function isTransient(error: unknown): boolean {
  return error instanceof QuaysideError && TRANSIENT.has(error.code);
}

/** Thrown if another node has taken over the operation. */
class Superseded extends Error {}

/**
 * Runs one operation on this node, from its stored progress to its end.
 *
 * Before a page of elements is changed, their ids are stored as pending, with the cursor of the next page. After a
 * failed call or a takeover, the pending page is repeated first: elements that are still there have not been changed,
 * and the others have. So a crash at any moment neither skips an element nor changes one twice, and `limit` holds.
 *
 * Progress is written with compare-and-set: a node that was silent for so long that another one took over gets a
 * conflict at its next write, and stops. If it was changing a page at that time, the other node repeats the page, and
 * each element is changed once, by one of the two.
 */
export class OperationRun {
  readonly #options: RunOptions;
  readonly #pages: OperationPages;
  readonly #changer: ElementChanger;
  #progress: OperationProgress;
  /** Version of the stored progress; null if none is stored; undefined after a write with an unknown outcome. */
  #version: string | null | undefined;
  /** The last write of progress. Writes are serialized. */
  #storing: Promise<void> = Promise.resolve();
  /** How long the last write of progress took. */
  #writeMs = 0;
  #beat: CancelTimer | null = null;
  /** Whether pending elements may have been changed already. */
  #isRepeated: boolean;
  #pageSize = FIRST_PAGE_SIZE;
  /** The earliest start of the next page that `rate` allows, on the monotonic clock. */
  #nextPageAt = Number.NEGATIVE_INFINITY;
  /** Delays between steps after an engine error. */
  readonly #backoff: Backoff;
  readonly #pause: Pause;
  #isCancelled = false;
  #isStopping = false;
  #isClaimed = false;
  #isSuperseded = false;

  constructor(options: RunOptions) {
    this.#options = options;
    this.#backoff = new Backoff(options.random);
    this.#pause = new Pause(options.clock);
    const { id, operation, queues, before, node } = options;
    const { request, bound } = operation;
    const dueAt = bound - BOUND_MS + (request.delayMs ?? 0);
    this.#pages = new OperationPages(options, dueAt);
    this.#changer = new ElementChanger({ id, request, queues, dueAt, isContinued: before !== null });
    this.#progress = { ...(before?.progress ?? { ...NO_PROGRESS, cursor: FIRST_PAGE }), node };
    this.#version = before?.version ?? null;
    this.#isRepeated = before !== null;
    this.#isCancelled = operation.isCancelled;
  }

  /** The progress so far; null if another node runs the operation now. */
  get progress(): OperationProgress | null {
    return this.#isSuperseded ? null : this.#progress;
  }

  /** Ends the operation after the page in progress. */
  cancel(): void {
    this.#isCancelled = true;
    this.#pause.end();
  }

  /** Stops after the page in progress. Another node, or a later start, continues the operation. */
  stop(): void {
    this.#isStopping = true;
    this.#pause.end();
  }

  /** Claims and runs the operation. Resolves when it has ended, was stopped, or runs on another node. Never rejects. */
  async run(): Promise<void> {
    const { log, id, operation } = this.#options;
    try {
      await this.#loop();
    } catch (error) {
      if (error instanceof Superseded) {
        log.info({ operation: id }, 'another node runs this operation now');
        await this.#clearTransit();
      } else {
        log.warn(
          { err: error, operation: id, ns: operation.request.source.ns },
          'an operation could not continue',
        );
      }
    } finally {
      this.#isStopping = true;
      this.#beat?.();
      this.#pages.close();
      await this.#storing.catch(() => {});
    }
  }

  /**
   * Empties the transit queue after a takeover. If the other node has ended the operation, it did not see elements that
   * this node moved to the transit queue afterwards. Never rejects.
   */
  async #clearTransit(): Promise<void> {
    const changer = this.#changer;
    if (changer.transit === null) return;
    changer.noteOtherNode();
    let mustReturn = false;
    while (!this.#isStopping) {
      try {
        // The other node returns a cancelled operation's elements to the source. Forwarding them would duplicate them.
        mustReturn ||= this.#isCancelled;
        return await (mustReturn ? changer.returnTransit() : changer.forward());
      } catch (error) {
        mustReturn ||= !isTransient(error);
        await this.#waitAfter(error);
      }
    }
  }

  async #loop(): Promise<void> {
    while (!this.#isStopping) {
      try {
        const end = await this.#step();
        this.#backoff.reset();
        if (end === null) continue;
        await this.#end(end);
        return;
      } catch (error) {
        if (error instanceof Superseded) throw error;
        if (!isTransient(error)) {
          await this.#fail(error);
          return;
        }
        this.#isRepeated = true;
        await this.#backOff(error);
      }
    }
    await this.#release();
  }

  /** Processes one page. Returns how the operation ended, or null if it continues. */
  async #step(): Promise<'done' | 'cancelled' | null> {
    // The first write claims the operation. After a write with an unknown outcome, another node may have claimed it.
    if (!this.#isClaimed || this.#version === undefined) await this.#store();
    await this.#waitForNextPage();
    const leave = await this.#options.pages.enter(this.#options.operation.by);
    try {
      if (this.#isSuperseded) throw new Superseded();
      if (this.#isStopping) return null;
      if (this.#progress.pending !== null) await this.#changePending();
      if (this.#isCancelled) return 'cancelled';
      this.#checkUser();
      const { cursor } = this.#progress;
      if (cursor === null || this.#remaining === 0) return 'done';
      await this.#processPage(cursor);
      return null;
    } finally {
      leave();
      await turn();
    }
  }

  /**
   * Checks that the user who started the operation still has the rights that it needs.
   * @throws QuaysideError `forbidden` if the user is gone or has lost a right
   */
  #checkUser(): void {
    const { operation, userNamed } = this.#options;
    const by = `User ${quote(operation.by)}, who started this operation,`;
    const user = userNamed(operation.by);
    if (user === null) throw new QuaysideError('forbidden', `${by} is no longer a user.`);
    // Names no namespace: a reader of the operation may not see all of them.
    if (rightsFor(operation.request).every(([right, namespace]) => user.may(right, namespace))) return;
    throw new QuaysideError('forbidden', `${by} has lost a right that the operation needs.`);
  }

  /** How many more elements `limit` allows, at most a page. */
  get #remaining(): number {
    const { limit, dryRun, action } = this.#options.operation.request;
    const { matched, changed } = this.#progress.counters;
    if (limit === null) return MAX_PAGE;
    return Math.min(MAX_PAGE, Math.max(0, limit - (dryRun || action === 'count' ? matched : changed)));
  }

  async #processPage(cursor: PageCursor): Promise<void> {
    const { request } = this.#options.operation;
    const isChange = !request.dryRun && request.action !== 'count';
    const size = isChange ? this.#changeSize() : this.#remaining;
    const { seen, matches, next, error } = await this.#pages.next(cursor, size);
    if (error !== null) this.#progress = { ...this.#progress, error, isThrown: true };
    const { counters } = this.#progress;
    const examined = { ...counters, seen: counters.seen + seen };
    this.#pace(matches.length);
    if (!isChange || matches.length === 0) {
      const { samples: before } = this.#progress;
      const samples =
        isChange || before.length === MAX_SAMPLES ? before : [...before, ...matches.map(sampleOf)];
      const found = { ...examined, matched: examined.matched + matches.length };
      this.#progress = {
        ...this.#progress,
        counters: found,
        samples: samples.slice(0, MAX_SAMPLES),
        cursor: next,
      };
      return;
    }
    const pending = matches.map(({ id, lease }) => [id, lease?.until ?? null] as const);
    this.#progress = { ...this.#progress, counters: examined, cursor: next, pending };
    this.#isRepeated = false;
    await this.#store();
    await this.#changePending(matches);
  }

  /** The size of the next page to change: at most one second of `rate`, and at most what `limit` leaves. */
  #changeSize(): number {
    const { rate } = this.#options.operation.request;
    return Math.max(1, Math.min(this.#pageSize, rate ?? MAX_PAGE, this.#remaining));
  }

  /** Delays the next page so that the operation does not exceed `rate`. */
  #pace(matches: number): void {
    const { clock, operation } = this.#options;
    const { rate } = operation.request;
    if (rate === null || matches === 0) return;
    this.#nextPageAt = Math.max(this.#nextPageAt, clock.monotonic()) + (matches / rate) * 1000;
  }

  /** @param found the pending elements, if they have just been read; null: read them again */
  async #changePending(found: readonly ScannedDelivery[] | null = null): Promise<void> {
    const { clock, onChanged } = this.#options;
    const pending = this.#progress.pending ?? [];
    const isRepeated = found === null || this.#isRepeated;
    const deliveries = found ?? (await this.#pages.readAgain(pending));
    const startedAt = clock.monotonic();
    const { changed, failed, error } = await this.#changer.change({ deliveries, isRepeated });
    if (found === null) await this.#changer.forward();
    this.#adjustPageSize(clock.monotonic() - startedAt);
    // Pending elements that are gone were changed by an earlier attempt.
    const all = changed + pending.length - deliveries.length - this.#changer.returnedCount;
    const { counters } = this.#progress;
    this.#progress = {
      ...this.#progress,
      pending: null,
      ...(error !== null && { error, isThrown: false }),
      counters: {
        seen: counters.seen,
        matched: counters.matched + pending.length,
        changed: counters.changed + all,
        failed: counters.failed + failed,
      },
    };
    this.#isRepeated = false;
    onChanged(all);
  }

  /** @param ms how long it took to change the last page */
  #adjustPageSize(ms: number): void {
    const longer = ms - this.#writeMs;
    const factor = longer > LONG_PAGE_MS ? 0.5 : longer < LONG_PAGE_MS / 2 ? 1.25 : 1;
    this.#pageSize = Math.ceil(Math.min(MAX_PAGE, Math.max(MIN_PAGE, this.#pageSize * factor)));
  }

  /**
   * Waits until `rate` allows the next page. `set` and `release` also wait until the bound has passed: a copy that is
   * stored before, or a lease that begins before, but after a release, would match the operation itself.
   */
  async #waitForNextPage(): Promise<void> {
    const { clock, operation, queues } = this.#options;
    const { request, bound } = operation;
    const mustPassBound = request.action === 'set' || request.action === 'release';
    while (!this.#isStopping && !this.#isCancelled && !this.#isSuperseded) {
      const { namespace, key } = queues.source;
      // At most a second at a time, because the clock of the engine may not be known yet.
      const boundMs = mustPassBound ? Math.min(bound + 1 - engineNow(namespace, key), BEAT_MS) : 0;
      const waitMs = Math.max(this.#nextPageAt - clock.monotonic(), boundMs);
      if (waitMs <= 0) return;
      await this.#wait(waitMs);
    }
  }

  async #backOff(error: unknown): Promise<void> {
    // A cancel returns elements that are in transit to an unavailable engine.
    if (this.#isCancelled && this.#changer.transit !== null) await this.#returnTransit().catch(() => {});
    await this.#waitAfter(error);
  }

  async #waitAfter(error: unknown): Promise<void> {
    const { log, id } = this.#options;
    if (!this.#backoff.isActive) log.warn({ err: error, operation: id }, 'an operation waits for an engine');
    this.#backoff.noteFailure();
    await this.#wait(this.#backoff.delayMs());
  }

  /** Ends early if the operation is cancelled or stopped. */
  async #wait(ms: number): Promise<void> {
    if (!this.#isStopping) await this.#pause.wait(ms);
  }

  async #end(state: OperationEnd['state']): Promise<void> {
    const { clock, storeEnd } = this.#options;
    // Only the node that runs the operation may store its end: this write throws after a takeover.
    await this.#store();
    this.#beat?.();
    await this.#changer.dropTransit();
    const { counters, samples, error, isThrown = true } = this.#progress;
    await storeEnd({ state, at: clock.now(), counters, samples, error, isThrown });
  }

  /** Ends the operation with an error, after no element is in transit any more. */
  async #fail(error: unknown): Promise<void> {
    const { log, id } = this.#options;
    if (!(error instanceof QuaysideError)) log.warn({ err: error, operation: id }, 'an operation failed');
    this.#progress = {
      ...this.#progress,
      error: error instanceof QuaysideError ? error.message : 'The server failed.',
      isThrown: false,
    };
    for (;;) {
      try {
        await this.#returnTransit();
        const { pending } = this.#progress;
        if (pending !== null && this.#changer.copied > 0) this.#countPart(pending, this.#changer.copied);
        return await this.#end('failed');
      } catch (failure) {
        if (!isTransient(failure)) throw failure;
        if (this.#isStopping) return this.#release();
        await this.#backOff(failure);
      }
    }
  }

  /**
   * Returns the elements in transit to the source, except those that have arrived. The rest of the page in progress
   * counts as moved.
   */
  async #returnTransit(): Promise<void> {
    const { pending } = this.#progress;
    if (this.#changer.transit === null || pending === null) return;
    const unchanged = (await this.#pages.readAgain(pending)).length;
    await this.#changer.returnTransit();
    this.#countPart(pending, Math.max(0, pending.length - unchanged - this.#changer.returnedCount));
  }

  /** Ends the page in progress, and counts `count` of its elements as changed. */
  #countPart(pending: readonly PendingElement[], count: number): void {
    const { counters } = this.#progress;
    const changed = counters.changed + count;
    const matched = counters.matched + pending.length;
    this.#progress = { ...this.#progress, pending: null, counters: { ...counters, matched, changed } };
    this.#options.onChanged(count);
  }

  async #release(): Promise<void> {
    this.#progress = { ...this.#progress, node: null };
    await this.#store().catch(() => {});
  }

  /** Writes the progress. @throws Superseded, QuaysideError as `Definitions.put` */
  #store(): Promise<void> {
    const stored = this.#storing.catch(() => {}).then(() => this.#put());
    this.#storing = stored;
    return stored;
  }

  async #put(): Promise<void> {
    const { definitions, id, node, clock } = this.#options;
    if (this.#isSuperseded) throw new Superseded();
    if (this.#version === undefined) {
      const found = await definitions.get('operation-progress', id);
      this.#isSuperseded = found === null ? await this.#hasEnded() : toProgress(found.value).node !== node;
      if (this.#isSuperseded) throw new Superseded();
      this.#version = found?.version ?? null;
    }
    const expected = this.#version;
    const startedAt = clock.monotonic();
    this.#version = undefined;
    try {
      this.#version = await definitions.put('operation-progress', id, this.#progress, expected);
    } catch (error) {
      if (!isDefinitionConflict(error)) throw error;
      this.#isSuperseded = true;
      this.#pause.end();
      throw new Superseded();
    }
    this.#isClaimed = true;
    this.#writeMs = clock.monotonic() - startedAt;
    this.#beatLater();
  }

  /** Whether another node has ended the operation. That deletes the progress, as if the operation had not started. */
  async #hasEnded(): Promise<boolean> {
    const stored = await this.#options.definitions.get('operation', this.#options.id);
    return stored === null || toOperation(stored.value).end !== null;
  }

  /**
   * Writes the progress again while pages change nothing, or a page or a wait takes long. This shows that the node is
   * alive.
   */
  #beatLater(): void {
    this.#beat?.();
    if (this.#isStopping || this.#isSuperseded) return;
    this.#beat = this.#options.clock.after(BEAT_MS, () => {
      this.#beat = null;
      // The next step writes again and handles the error.
      this.#store().catch(() => this.#beatLater());
    });
  }
}

interface OperationPage {
  readonly seen: number;
  readonly matches: readonly ScannedDelivery[];
  /** The first error that the selector threw; null if none. */
  readonly error: string | null;
  /** Null: this was the last page. */
  readonly next: PageCursor | null;
}

/**
 * Reads the elements that an operation applies to, page by page. There is one search per state, so that an element that
 * matures during the operation is not missed; with ids, one search covers all states.
 */
class OperationPages {
  readonly #options: Pick<RunOptions, 'operation' | 'queues' | 'searches'>;
  /** For `delay`: elements with this maturity have already been changed. */
  readonly #dueAt: number;
  readonly #parts: readonly (readonly DeliveryState[])[];
  readonly #searches = new Map<number, ElementSearch>();

  constructor(options: Pick<RunOptions, 'operation' | 'queues' | 'searches'>, dueAt: number) {
    this.#options = options;
    this.#dueAt = dueAt;
    const { request } = options.operation;
    const states = statesOf(request);
    this.#parts = request.where.ids === null ? states.map((state) => [state]) : [states];
  }

  close(): void {
    for (const search of this.#searches.values()) search.close();
    this.#searches.clear();
  }

  /** At most `limit` matches. @throws QuaysideError as `Searches.open` and `ElementSearch.page` */
  async next({ part, after }: PageCursor, limit: number): Promise<OperationPage> {
    if (part >= this.#parts.length) return { seen: 0, matches: [], error: null, next: null };
    const search = await this.#searchOf(part);
    const { namespace } = this.#options.queues.source;
    const cursor = after === null || namespace.migration !== null ? after : cursorAfterMigration(after);
    const { matches, looked, error, next } = await search.page(cursor, limit);
    const following = part + 1 < this.#parts.length ? { part: part + 1, after: null } : null;
    return {
      seen: looked,
      matches: matches.filter((delivery) => this.#applies(delivery)),
      error: error && `${SELECTOR_PATH} failed with element ${error.id}: ${error.message}`,
      next: next === null ? following : { part, after: next },
    };
  }

  /** Reads the pending elements again, without those that are gone or already changed. */
  async readAgain(pending: readonly PendingElement[]): Promise<ScannedDelivery[]> {
    const { operation, queues } = this.#options;
    const untils = new Map(pending);
    const { deliveries } = await queues.source.namespace.storage.scan(queues.source.key, {
      group: queues.group,
      states: operation.request.action === 'release' ? ['reserved'] : WAITING_STATES,
      ids: [...untils.keys()],
      after: null,
      limit: Math.max(1, untils.size),
      bodies: false,
    });
    return deliveries.filter(
      (one) => untils.get(one.id) === (one.lease?.until ?? null) && !this.#isDelayed(one),
    );
  }

  async #searchOf(part: number): Promise<ElementSearch> {
    const { operation, queues, searches } = this.#options;
    const { request, by, hidesBodies, bound } = operation;
    const { group, ids, selector, olderThanMs } = request.where;
    let search = this.#searches.get(part);
    if (search === undefined) {
      const insertedBefore = bound + 1 - (olderThanMs ?? 0);
      const filter = { states: this.#parts[part] ?? [], group, ids, selector, insertedBefore };
      const options = { payer: by, path: SELECTOR_PATH, bodies: false, hidesBodies };
      search = await searches.open(queues.source, filter, options);
      this.#searches.set(part, search);
    }
    return search;
  }

  #applies(delivery: ScannedDelivery): boolean {
    const { request, bound } = this.#options.operation;
    // Leases that began after the operation are not released.
    const isTooNew = request.action === 'release' && (delivery.holder?.since ?? 0) > bound;
    return !isTooNew && !this.#isDelayed(delivery);
  }

  #isDelayed({ matureAt }: ScannedDelivery): boolean {
    const { request } = this.#options.operation;
    return request.action === 'delay' && !request.dryRun && matureAt === this.#dueAt;
  }
}

function sampleOf({
  id,
  state,
  matureAt,
  insertedAt,
  tries,
  reason,
  bytes,
  contentType,
  headers,
}: ScannedDelivery): ElementSample {
  const shown: [string, string][] = [];
  let bytesLeft = MAX_SAMPLE_BYTES;
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = headers.slice(at, at + 2);
    bytesLeft -= name.length + value.length;
    if (bytesLeft >= 0) shown.push([name, textOfByteString(value)]);
  }
  return {
    id,
    state,
    mature: new Date(matureAt).toISOString(),
    insertedAt: new Date(insertedAt).toISOString(),
    tries,
    reason,
    bytes,
    contentType: contentType && textOfByteString(contentType),
    headers: Object.fromEntries(shown),
  };
}
