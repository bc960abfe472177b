import { requireExpiry, requireTiming } from '../broker/capabilities.ts';
import type { Queue } from '../broker/queue.ts';
import type { ScannedDelivery } from '../engine/storage.ts';
import {
  DELIVERY_STATES,
  type ElementContent,
  type ElementId,
  type GroupName,
  type NewElement,
} from '../model/element.ts';
import { MAX_CHUNK } from './search.ts';

/** Exported again because front ends may not import storage. */
export type { ScannedDelivery };

/**
 * Returns all elements of a queue with their state, page by page, in delivery order within each state. This is not a
 * snapshot: elements that change state during the export may be returned twice, or not at all. For an exact export,
 * pause the queue and wait until its reservations have ended.
 * @param group on a stream: only its deliveries; null: those of every group that has any, group by group
 * @param user in whose turn large bodies are read
 * @throws QuaysideError `invalid-parameter` for a group of a namespace that has none
 */
export async function* exportPages(
  queue: Queue,
  group: GroupName | null,
  user: string,
): AsyncGenerator<readonly ScannedDelivery[], void, undefined> {
  const groups = group === null && queue.namespace.isStream ? await queue.occupiedGroups() : [group];
  for (const one of groups) {
    let after: string | null = null;
    do {
      const page = await queue.scan({
        group: one,
        states: DELIVERY_STATES,
        after,
        limit: MAX_CHUNK,
        bodies: true,
        user,
      });
      if (page.deliveries.length > 0) yield page.deliveries;
      after = page.next;
    } while (after !== null);
  }
}

/** An element of an export. */
export interface ExportedElement extends ElementContent {
  /** Its id in the queue that was exported. */
  readonly id: ElementId;
  /** On a stream; null: the default groups of the namespace. */
  readonly group: GroupName | null;
  readonly tries: number;
  /** Moments in ms since 1970. */
  readonly matureAt: number;
  readonly insertedAt: number;
  readonly expiresAt: number | null;
}

/** Elements per insert, and about how many bytes of bodies. */
const MAX_BATCH = 500;
const MAX_BATCH_BYTES = 1_048_576;

/**
 * Stores the elements of an export in a queue, each of them once: an element that is still in the queue, or that was
 * imported within the window of idempotency keys, is skipped. So an interrupted import can be repeated from the start.
 */
export class QueueImport {
  readonly #queue: Queue;
  readonly #user: string;
  /** Whether elements that are still in the queue can be recognized. */
  readonly #findsIds: boolean;
  #batch: ExportedElement[] = [];
  #bytes = 0;
  imported = 0;
  /** Elements skipped because they are, or were, in the queue. */
  repeated = 0;

  /** @param user in whose turn they are stored */
  constructor(queue: Queue, user: string) {
    this.#queue = queue;
    this.#user = user;
    this.#findsIds = queue.namespace.storage.capabilities.remove;
  }

  /**
   * Adds an element. Stores the added elements when they fill a batch.
   * @throws QuaysideError `invalid-parameter` for a group of a namespace that has none, `not-supported` for a maturity
   * or an expiry that the engine does not support, and what `Queue.insert` throws
   */
  async add(element: ExportedElement): Promise<void> {
    const { namespace } = this.#queue;
    this.#queue.groupOf(element.group);
    if (element.expiresAt !== null) requireExpiry(namespace);
    this.#batch.push(element);
    this.#bytes += element.body.byteLength;
    if (this.#batch.length >= MAX_BATCH || this.#bytes >= MAX_BATCH_BYTES) await this.flush();
  }

  /**
   * Stores the added elements.
   * @throws QuaysideError what `Queue.insert` throws; then either none or all of the last batch were stored
   */
  async flush(): Promise<void> {
    const batch = this.#batch;
    this.#batch = [];
    this.#bytes = 0;
    const isThere = await this.#existing(batch);
    const elements = batch.filter((element) => !isThere(element)).map((element) => this.#newElement(element));
    let repeated = batch.length - elements.length;
    if (elements.length > 0) {
      const onRepeat = (): void => {
        repeated += 1;
      };
      await this.#queue.insert(elements, { user: this.#user, onRepeat, keepsExpiry: true });
    }
    this.repeated += repeated;
    this.imported += batch.length - repeated;
  }

  /** Returns which of them are in the queue. Compares more than ids: another store may have used the same one. */
  async #existing(batch: readonly ExportedElement[]): Promise<(element: ExportedElement) => boolean> {
    if (!this.#findsIds || batch.length === 0) return () => false;
    const found = new Set<string>();
    for (const group of new Set(batch.map((element) => element.group))) {
      const ids = batch.filter((element) => element.group === group).map(({ id }) => id);
      const page = await this.#queue.scan({
        group,
        states: DELIVERY_STATES,
        ids,
        after: null,
        limit: ids.length,
        bodies: false,
      });
      for (const { id, insertedAt } of page.deliveries) found.add(keyOf({ id, insertedAt, group }));
    }
    return (element) => found.has(keyOf(element));
  }

  #newElement(element: ExportedElement): NewElement {
    const { body, contentType, contentEncoding, headers, tries, matureAt, expiresAt, group } = element;
    const { namespace } = this.#queue;
    // With a maturity, an element that has matured keeps its place in the queue.
    const isTimed = namespace.capabilities.sched;
    requireTiming(namespace, this.#queue.key, { matureAt, delayMs: 0 });
    return {
      body,
      contentType,
      contentEncoding,
      headers,
      matureAt: isTimed ? matureAt : null,
      delayMs: 0,
      tries,
      groups: this.#queue.groups(group === null ? null : [group]),
      dedupKey: JSON.stringify(['import', keyOf(element)]),
      expiresAt,
    };
  }
}

function keyOf({ id, insertedAt, group }: Pick<ExportedElement, 'id' | 'insertedAt' | 'group'>): string {
  return `${id} ${insertedAt} ${group ?? ''}`;
}
