import { cursorAfterMigration } from '../broker/migrating-storage.ts';
import type { ScannedDelivery } from '../engine/storage.ts';
import { type DeliveryState, WAITING_STATES } from '../model/element.ts';
import { type OperationQueues, statesOf } from './request.ts';
import type { ElementSearch, Searches } from './search.ts';
import { type PageCursor, type PendingElement, SELECTOR_PATH, type StoredOperation } from './stored.ts';

interface PagesOptions {
  readonly operation: StoredOperation;
  readonly queues: OperationQueues;
  readonly searches: Searches;
  /** For `delay`: elements with this maturity have already been changed. */
  readonly dueAt: number;
}

interface OperationPage {
  readonly seen: number;
  readonly matches: readonly ScannedDelivery[];
  /** The first error that the selector threw; null if none. */
  readonly error: string | null;
  /** Null: this was the last page. */
  readonly next: PageCursor | null;
}

export const FIRST_PAGE: PageCursor = { part: 0, after: null };

/**
 * Reads the elements that an operation applies to, page by page. There is one search per state, so that an element that
 * matures during the operation is not missed; with ids, one search covers all states.
 */
export class OperationPages {
  readonly #options: PagesOptions;
  readonly #parts: readonly (readonly DeliveryState[])[];
  readonly #searches = new Map<number, ElementSearch>();

  constructor(options: PagesOptions) {
    this.#options = options;
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
    const { operation, dueAt } = this.#options;
    const { request } = operation;
    return request.action === 'delay' && !request.dryRun && matureAt === dueAt;
  }
}
