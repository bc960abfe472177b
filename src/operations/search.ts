import { createHash } from 'node:crypto';
import type { Queue } from '../broker/queue.ts';
import { SCAN_BYTES } from '../engine/scan-cursor.ts';
import type { ScannedDelivery, ScanPage } from '../engine/storage.ts';
import {
  DELIVERY_STATES,
  type DeliveryState,
  type ElementId,
  type GroupName,
  NO_BODY,
} from '../model/element.ts';
import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { SelectorFailure } from '../model/records.ts';
import { createCheckLimit } from '../sandbox/limits.ts';
import type { Payer } from '../sandbox/request-queue.ts';
import type { SelectorAnswer, SelectorProgram, SelectorSandbox } from '../sandbox/sandbox.ts';
import type { Clock } from '../util/clock.ts';
import type { ConcurrencyLimit } from '../util/concurrency-limit.ts';
import { quote } from '../util/quote.ts';

/** Which elements of a queue a search finds: those that meet all conditions. */
export interface ElementFilter {
  readonly states: readonly DeliveryState[];
  /** On a stream; null: the namespace's default. */
  readonly group: GroupName | null;
  /** Only these ids; not given or null: any. */
  readonly ids?: readonly ElementId[] | null;
  /** Source of a selector, as in exchanges. Only its decision counts; its changes are not stored. */
  readonly selector?: string | null;
  /** Only elements that were inserted before this moment, ms by the engine's clock: see `Storage.now`. */
  readonly insertedBefore?: number | null;
}

/** Options of a search. */
export interface SearchOptions {
  /** The user whose share of the selector thread is used, and in whose turn large bodies are read. */
  readonly payer: Payer;
  /** Where the selector was in the client's request, for errors: `where` or `where.selector`. */
  readonly path: string;
  /** Whether matches are returned with their bodies; otherwise these are empty. */
  readonly bodies: boolean;
  /** Rejects a selector that reads `env.msg.payload`, because the user may not see bodies. Default: false. */
  readonly hidesBodies?: boolean;
}

/** What one step of a search found. */
export interface SearchPage {
  /**
   * In delivery order within each state; states in the order of `DELIVERY_STATES`. With ids: roughly in their order.
   */
  readonly matches: ScannedDelivery[];
  /** How many elements were examined, including those that do not match. */
  readonly looked: number;
  /** How many of them made the selector throw; they do not match. */
  readonly failed: number;
  /** The first of these errors; null if there was none. */
  readonly error: SelectorFailure | null;
  /** The cursor of the next page; null: this was the last page. */
  readonly next: string | null;
}

interface SearchContext {
  readonly sandbox: SelectorSandbox;
  readonly clock: Clock;
  /** Whether selectors may be used at all (`selectors: off` in the configuration). */
  readonly selectors: boolean;
}

/** A page ends after about this many elements, or about this time, even if it is not full. */
const MAX_LOOKED = 50_000;
const MAX_PAGE_MS = 1_000;
/** A page ends when the bodies of its matches reach this size; the last one may exceed it. */
const MAX_BODY_BYTES = 16 * 1_048_576;
/** Elements of the first read of a page: few, because they may fill the page. */
const FIRST_CHUNK = 100;
/** Maximum elements per read. At 400, the median latency of other requests doubled; fewer cost throughput. */
export const MAX_CHUNK = 200;
/** Maximum elements of one read with bodies. */
const MAX_CHUNK_WITH_BODIES = 100;
/** Maximum elements of one read by ids with bodies, since all of them are in memory together. */
const MAX_IDS_WITH_BODIES = 16;

const CHECKSUM_LENGTH = 8;

/** Starts searches. A node has one instance, which limits concurrent searches with selectors. */
export class Searches {
  readonly #context: SearchContext;
  readonly #limit: ConcurrencyLimit = createCheckLimit();

  constructor(context: SearchContext) {
    this.#context = context;
  }

  /**
   * Prepares a search. The caller must `close` it.
   * @throws QuaysideError `invalid-body` for a selector that does not compile, with its line and column;
   * `invalid-parameter` if selectors are switched off, or for a group of a namespace that has none
   */
  async open(queue: Queue, filter: ElementFilter, options: SearchOptions): Promise<ElementSearch> {
    const { sandbox, selectors } = this.#context;
    const source = filter.selector ?? null;
    // Throws if the namespace has no groups.
    const group = queue.groupOf(filter.group);
    let program: SelectorProgram | null = null;
    if (source !== null) {
      const { path, payer } = options;
      if (!selectors) throw invalidParameter(path, `${path}: this server runs with selectors: off.`);
      await sandbox.check([{ source, path }], payer);
      program = sandbox.open([source], { payer, decidesOnly: true });
    }
    return new ElementSearch(queue, { ...filter, group }, options, program, this.#context.clock);
  }

  /**
   * Returns one page of a search opened for it. A user may run only a few of these with a selector at a time.
   * @param after the `next` of the page before, as this method returned it; null for the first page
   * @throws QuaysideError as `open` and `page`; `invalid-parameter` if `after` is not such a cursor; `overloaded`
   */
  async page(
    queue: Queue,
    filter: ElementFilter,
    options: SearchOptions,
    after: string | null,
    limit: number,
  ): Promise<SearchPage> {
    const cursor = after === null ? null : checkedCursor(after, queue, filter);
    const find = async (): Promise<SearchPage> => {
      const search = await this.open(queue, filter, options);
      try {
        const page = await search.page(cursor, limit);
        return page.next === null ? page : { ...page, next: withChecksum(page.next, queue, filter) };
      } finally {
        search.close();
      }
    };
    return filter.selector == null ? find() : this.#limit.run(options.payer, find);
  }
}

/**
 * A cursor as clients receive it. It ends with a hash of the search that it was issued for: an engine that cannot read
 * a cursor starts at the first element, so a client with a wrong cursor would page through the queue without end. The
 * hash is no secret.
 */
function withChecksum(
  cursor: string,
  { key, namespace }: Queue,
  { group, ids }: ElementFilter,
  movesTo = namespace.migration?.to ?? null,
): string {
  const { type, defaultGroup } = namespace;
  const issuedFor = [key.ns, type, movesTo, key.name, group ?? defaultGroup, ids ?? null];
  const hash = createHash('sha256').update(JSON.stringify([...issuedFor, cursor]));
  return `${cursor}.${hash.digest('base64url').slice(0, CHECKSUM_LENGTH)}`;
}

/** @throws QuaysideError `invalid-parameter` if the cursor was not issued for this search */
function checkedCursor(after: string, queue: Queue, filter: ElementFilter): string {
  const cursor = after.slice(0, -1 - CHECKSUM_LENGTH);
  if (withChecksum(cursor, queue, filter) === after) return cursor;
  // The page before may have been read before the namespace began to move.
  if (withChecksum(cursor, queue, filter, null) === after) return cursor;
  throw invalidParameter(
    'after',
    `after ${quote(after)} is not a cursor of this search in queue ${quote(queue.key.name)}. Pass the next of the page before, or omit after to start at the first element.`,
  );
}

/** Elements that were read, and the selector's answers, which may still be pending. */
interface ReadElements {
  readonly deliveries: readonly ScannedDelivery[];
  readonly next: string | null;
  /** Whether the bodies were read. */
  readonly hasBodies: boolean;
  /** Null if there is nothing to evaluate. Resolves with null if the selector needs bodies that were not read. */
  readonly deciding: Promise<readonly SelectorAnswer[] | null> | null;
}

/**
 * Pages through the elements of a queue that match a filter, and changes nothing. A page does bounded work in bounded
 * memory, whatever the size of the queue: it ends when it is full, or when enough elements were examined, and returns
 * the cursor of the next one. Bodies are read only if the selector or the caller needs them.
 */
export class ElementSearch {
  readonly #queue: Queue;
  readonly #filter: ElementFilter;
  readonly #options: SearchOptions;
  readonly #program: SelectorProgram | null;
  readonly #clock: Clock;
  readonly #states: readonly DeliveryState[];
  /** Whether the engine finds elements by id. If not, bodies cannot be read later, only during the scan. */
  readonly #findsIds: boolean;
  /** Whether the selector has tried to read a body. */
  #selectorNeedsBodies = false;
  #isClosed = false;

  constructor(
    queue: Queue,
    filter: ElementFilter,
    options: SearchOptions,
    program: SelectorProgram | null,
    clock: Clock,
  ) {
    this.#queue = queue;
    this.#filter = filter;
    this.#options = options;
    this.#program = program;
    this.#clock = clock;
    this.#states = DELIVERY_STATES.filter((state) => filter.states.includes(state));
    this.#findsIds = queue.namespace.storage.capabilities.remove;
  }

  /** Releases the selector's VM. A read-ahead may still be pending; it must not open the VM again. */
  close(): void {
    this.#isClosed = true;
    this.#program?.close();
  }

  /**
   * Returns up to `limit` matches after the cursor. A page with few matches, or none, may not be the last.
   * @param after the `next` of an earlier page of the same filter; null for the first page
   * @throws QuaysideError `invalid-parameter` if the selector exceeds its time or memory limit; `forbidden` if it reads
   * bodies that are hidden; `not-supported` with ids on an engine that does not find elements by id
   */
  async page(after: string | null, limit: number): Promise<SearchPage> {
    const startedAt = this.#clock.monotonic();
    const found = new PageContents(limit);
    let size = FIRST_CHUNK;
    let cursor: string | null = after;
    let reading = this.#read(cursor, size, found.left);
    for (;;) {
      const chunk = await reading;
      size = Math.min(size * 2, MAX_CHUNK);
      // Read the next chunk while the selector evaluates this one, except after the first: it may fill the page.
      const isAhead = found.looked > 0 && chunk.deciding !== null && chunk.next !== null && !this.#byIds;
      if (isAhead) {
        reading = this.#read(chunk.next, size, found.left);
        // It may fail before it is awaited, or may never be needed.
        reading.catch(ignore);
      }
      const answers = await chunk.deciding;
      if (chunk.deciding !== null && answers === null) {
        this.#noteNeedOfBodies();
        await reading;
        reading = this.#read(cursor, size, found.left);
        continue;
      }
      const cutAt = this.#addMatches(chunk, answers, found);
      cursor = cutAt ?? chunk.next;
      const isOver =
        cutAt !== null ||
        cursor === null ||
        found.isFull ||
        found.looked >= MAX_LOOKED ||
        this.#clock.monotonic() - startedAt >= MAX_PAGE_MS;
      if (isOver) break;
      if (!isAhead) reading = this.#read(cursor, size, found.left);
    }
    const matches =
      this.#options.bodies && !this.#readsBodiesOfAll ? await this.#withBodies(found.matches) : found.matches;
    const { looked, failed, error } = found;
    return { matches, looked, failed, error, next: cursor };
  }

  get #byIds(): boolean {
    return this.#filter.ids != null;
  }

  /** Whether elements that are read may fail to match. */
  get #isSelective(): boolean {
    return this.#program !== null || this.#filter.insertedBefore != null;
  }

  /** Whether all elements are read with bodies for the caller. If only some match, bodies are read afterwards. */
  get #readsBodiesOfAll(): boolean {
    return this.#options.bodies && (!this.#findsIds || (!this.#isSelective && !this.#byIds));
  }

  get #readsBodies(): boolean {
    return this.#selectorNeedsBodies || this.#readsBodiesOfAll;
  }

  #noteNeedOfBodies(): void {
    const { hidesBodies = false, path } = this.#options;
    if (hidesBodies) {
      throw new QuaysideError(
        'forbidden',
        `${path}: this selector reads env.msg.payload, and you may not see bodies here. Use env.msg.hdrs, id, tries or mature.`,
        { parameter: path },
      );
    }
    this.#selectorNeedsBodies = true;
  }

  /** Reads up to `size` elements, but no more than the page can take, and starts the selector. */
  async #read(after: string | null, size: number, left: number): Promise<ReadElements> {
    const bodies = this.#readsBodies;
    const count = Math.min(size, this.#isSelective ? MAX_CHUNK : left);
    const { deliveries, next } = await (this.#byIds
      ? this.#readIds(after, Math.min(count, left), bodies)
      : this.#scan({ after, limit: bodies ? Math.min(count, MAX_CHUNK_WITH_BODIES) : count, bodies }));
    const old = deliveries.filter((delivery) => this.#isInRange(delivery));
    const program = this.#isClosed ? null : this.#program;
    const deciding = program === null || old.length === 0 ? null : this.#evaluate(program, old, bodies);
    // Awaited later, or never if something fails first.
    deciding?.catch(ignore);
    return { deliveries, next, hasBodies: bodies, deciding };
  }

  /** For ids, the cursor is an index in the list. */
  async #readIds(after: string | null, size: number, bodies: boolean): Promise<ScanPage> {
    const { ids } = this.#filter;
    const all = ids ?? [];
    const from = /^\d{1,15}$/.test(after ?? '') ? Number(after) : 0;
    const to = from + Math.min(size, bodies || this.#options.bodies ? MAX_IDS_WITH_BODIES : size);
    const pageIds = all.slice(from, to);
    if (pageIds.length === 0) return { deliveries: [], next: null };
    const found = await this.#scan({ after: null, limit: pageIds.length, bodies: false, ids: pageIds });
    const deliveries = bodies ? await this.#withBodies(found.deliveries) : found.deliveries;
    return { deliveries, next: to < all.length ? String(to) : null };
  }

  #scan(options: {
    after: string | null;
    limit: number;
    bodies: boolean;
    ids?: readonly ElementId[];
  }): Promise<ScanPage> {
    const user = this.#options.payer;
    return this.#queue.scan({ group: this.#filter.group, states: this.#states, user, ...options });
  }

  #isInRange({ insertedAt }: ScannedDelivery): boolean {
    const { insertedBefore } = this.#filter;
    return insertedBefore == null || insertedAt < insertedBefore;
  }

  async #evaluate(
    program: SelectorProgram,
    deliveries: readonly ScannedDelivery[],
    hasBodies: boolean,
  ): Promise<readonly SelectorAnswer[] | null> {
    return hasBodies ? program.select(deliveries) : program.selectWithoutBodies(deliveries);
  }

  /**
   * Adds the matches to the page. Returns the cursor after the last match if the page is full before the end of the
   * chunk; otherwise null.
   */
  #addMatches(
    { deliveries, next }: ReadElements,
    answers: readonly SelectorAnswer[] | null,
    found: PageContents,
  ): string | null {
    let answerAt = 0;
    for (const [index, delivery] of deliveries.entries()) {
      found.looked += 1;
      if (!this.#isInRange(delivery)) continue;
      if (this.#program !== null && !this.#accepts(delivery, answers?.[answerAt++], found)) continue;
      const keepsBody = this.#options.bodies || delivery.body.length === 0;
      found.add(keepsBody ? delivery : { ...delivery, body: NO_BODY }, this.#options.bodies);
      const isLast = index === deliveries.length - 1 && next === null;
      if (found.isFull && !isLast && delivery.cursor !== null) return delivery.cursor;
    }
    return null;
  }

  #accepts({ id }: ScannedDelivery, answer: SelectorAnswer | undefined, found: PageContents): boolean {
    if (answer?.outcome === 'evaluated') {
      const [verdict] = answer.verdicts;
      if (verdict === undefined) return false;
      const { accepted, error, place } = verdict;
      if (error !== null)
        found.fail({ id, message: error, line: place?.[0] ?? null, column: place?.[1] ?? null });
      return accepted;
    }
    if (answer?.outcome === 'overrun' && answer.inPayload) {
      found.fail({ id, message: answer.error, line: null, column: null });
      return false;
    }
    const { path } = this.#options;
    if (answer?.outcome !== 'overrun') throw new QuaysideError('shutting-down', 'The search was closed.');
    throw new QuaysideError(
      'invalid-parameter',
      `${path}: the selector exceeds its time or memory limit with element ${quote(id)}: ${answer.error}.`,
      { parameter: path, extra: { element: id, cause: answer.cause } },
    );
  }

  /** Returns the deliveries with their bodies, without those that have left the filter's states. */
  async #withBodies(matches: readonly ScannedDelivery[]): Promise<ScannedDelivery[]> {
    const full = new Map<ElementId, ScannedDelivery>();
    const missing = matches.filter(({ body, bytes }) => body.length !== bytes);
    for (let from = 0; from < missing.length; ) {
      const ids: ElementId[] = [];
      // No more than a scan returns at once, so that other calls can run in between.
      for (
        let bytesLeft = SCAN_BYTES;
        bytesLeft > 0 && ids.length < MAX_CHUNK && from < missing.length;
        from++
      ) {
        const { id, bytes } = missing[from] as ScannedDelivery;
        ids.push(id);
        bytesLeft -= bytes;
      }
      const { deliveries } = await this.#scan({ after: null, limit: ids.length, bodies: true, ids });
      for (const delivery of deliveries) full.set(delivery.id, delivery);
    }
    return matches.flatMap((delivery) => {
      const whole = delivery.body.length === delivery.bytes ? delivery : full.get(delivery.id);
      // Keep the cursor of the scan: the next page may start there.
      return whole === undefined ? [] : [{ ...whole, cursor: delivery.cursor }];
    });
  }
}

function ignore(): void {}

/** The matches and counters of a page in progress. */
class PageContents {
  readonly matches: ScannedDelivery[] = [];
  readonly #limit: number;
  looked = 0;
  failed = 0;
  error: SelectorFailure | null = null;
  #bytes = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get left(): number {
    return Math.max(1, this.#limit - this.matches.length);
  }

  get isFull(): boolean {
    return this.matches.length >= this.#limit || this.#bytes >= MAX_BODY_BYTES;
  }

  /** @param withBody whether the page will contain its body */
  add(delivery: ScannedDelivery, withBody: boolean): void {
    this.matches.push(delivery);
    if (withBody) this.#bytes += delivery.bytes;
  }

  fail(failure: SelectorFailure): void {
    this.failed += 1;
    this.error ??= failure;
  }
}
