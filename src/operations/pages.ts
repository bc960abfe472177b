import type { ScannedDelivery } from '../engine/storage.ts';
import { type DeliveryState, WAITING_STATES } from '../model/element.ts';
import { type OperationRequest, type Route, statesOf } from './request.ts';
import type { ElementSearch, Searches } from './search.ts';
import type { PageCursor, PendingElement } from './stored.ts';

interface PagesOptions {
  readonly request: OperationRequest;
  readonly route: Route;
  readonly searches: Searches;
  /** The user who requested it: whose share of the selector thread it uses. */
  readonly by: string;
  /** Whether that user may see no bodies, and so no selector of theirs may. */
  readonly hidesBodies: boolean;
  /** Elements inserted later, by the engine's clock, are left alone. */
  readonly bound: number;
  /** Of `delay`: elements that have this maturity are done. */
  readonly dueAt: number;
}

interface OperationPage {
  readonly seen: number;
  readonly matches: readonly ScannedDelivery[];
  /** What a selector threw, if one did. */
  readonly error: string | null;
  /** Null: this was the last page. */
  readonly next: PageCursor | null;
}

export const FIRST_PAGE: PageCursor = { part: 0, after: null };
/** Where a selector stands in a request. */
export const SELECTOR_PATH = 'where.selector';

/**
 * Reads the elements that an operation is about, in pages: one search for each state, since an element that matures in between
 * must not be missed, or one for all if ids are given.
 */
export class Pages {
  readonly #options: PagesOptions;
  readonly #parts: readonly (readonly DeliveryState[])[];
  readonly #searches = new Map<number, ElementSearch>();
  /** Of `release`: those that it released. What was reserved again within the same milliseconds is another's. */
  readonly #released = new Set<string>();

  constructor(options: PagesOptions) {
    this.#options = options;
    const states = statesOf(options.request);
    this.#parts = options.request.where.ids === null ? states.map((state) => [state]) : [states];
  }

  close(): void {
    for (const search of this.#searches.values()) search.close();
    this.#searches.clear();
  }

  /** At most `limit` matches. @throws QuaysideError as `Searches.open` and `ElementSearch.page` */
  async next({ part, after }: PageCursor, limit: number): Promise<OperationPage> {
    if (part >= this.#parts.length) return { seen: 0, matches: [], error: null, next: null };
    const search = await this.#searchOf(part);
    const { matches, looked, error, next } = await search.page(after, limit);
    const following = part + 1 < this.#parts.length ? { part: part + 1, after: null } : null;
    return {
      seen: looked,
      matches: matches.filter((delivery) => this.#isMeant(delivery)),
      error: error === null ? null : `${SELECTOR_PATH} failed with element ${error.id}: ${error.message}`,
      next: next === null ? following : { part, after: next },
    };
  }

  /** These elements, as they are now; without those that are gone, or were changed already. */
  async named(pending: readonly PendingElement[]): Promise<ScannedDelivery[]> {
    const { request, route } = this.#options;
    const untils = new Map(pending);
    const { deliveries } = await route.source.namespace.storage.scan(route.source.key, {
      group: route.group,
      states: request.action === 'release' ? ['reserved'] : WAITING_STATES,
      ids: [...untils.keys()],
      after: null,
      limit: Math.max(1, untils.size),
      bodies: false,
    });
    return deliveries.filter(
      (one) => untils.get(one.id) === (one.lease?.until ?? null) && !this.#isDelayed(one),
    );
  }

  noteReleased(deliveries: readonly ScannedDelivery[]): void {
    if (this.#isReleasing) for (const { id } of deliveries) this.#released.add(id);
  }

  get #isReleasing(): boolean {
    const { action, dryRun } = this.#options.request;
    return action === 'release' && !dryRun;
  }

  async #searchOf(part: number): Promise<ElementSearch> {
    const { request, route, searches, by, hidesBodies, bound } = this.#options;
    const { group, ids, selector, olderThanMs } = request.where;
    let search = this.#searches.get(part);
    if (search === undefined) {
      const insertedBefore = bound + 1 - (olderThanMs ?? 0);
      const filter = { states: this.#parts[part] ?? [], group, ids, selector, insertedBefore };
      const options = { payer: by, path: SELECTOR_PATH, bodies: false, hidesBodies };
      search = await searches.open(route.source, filter, options);
      this.#searches.set(part, search);
    }
    return search;
  }

  #isMeant(delivery: ScannedDelivery): boolean {
    if (this.#isDelayed(delivery)) return false;
    if (!this.#isReleasing) return true;
    // What was reserved after the start is another's.
    return (delivery.holder?.since ?? 0) <= this.#options.bound && !this.#released.has(delivery.id);
  }

  #isDelayed({ matureAt }: ScannedDelivery): boolean {
    const { request, dueAt } = this.#options;
    return request.action === 'delay' && !request.dryRun && matureAt === dueAt;
  }
}
