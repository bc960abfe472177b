import type { Filter } from 'mongodb';
import type { DeliveryState } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Sending } from '../call.ts';
import { discard } from '../discard.ts';
import { deliveryId, type ElementDocument } from '../documents.ts';
import type { Parts } from '../parts.ts';
import { IN_ORDER } from '../schema.ts';
import { MAX_TIME_MS } from '../settings.ts';

const AT_ONCE = 2000;
/** What the index has of a document's `_id`. */
const NAMES = { _id: 0, id: 1, group: 1 } as const;

/** Removes elements by their states, in steps: each of them is over long before its time is. */
export class Purge {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** Answers how many deliveries went. An error may leave a part of them. @throws what the driver throws */
  async run(call: Sending, queue: QueueKey, states: readonly DeliveryState[]): Promise<number> {
    const { store } = this.#parts;
    store.assertUp();
    const now = await store.time.read();
    const { elements } = store.collections;
    let gone = 0;
    for (const filter of filtersOf(queue, states, now)) {
      for (let step = AT_ONCE; step === AT_ONCE; ) {
        const found = await elements
          .find(filter, { projection: NAMES, limit: AT_ONCE, hint: IN_ORDER, maxTimeMS: MAX_TIME_MS })
          .toArray();
        step = found.length;
        if (step === 0) break;
        call.begin();
        const { writeConcern } = store.settings;
        const ids = found.map(({ id, group }) => deliveryId(id, group));
        gone += await discard(
          this.#parts,
          { ids, mayHaveKeys: true, filter, now },
          { writeConcern, maxTimeMS: MAX_TIME_MS },
        );
        call.goOn();
      }
    }
    return gone;
  }
}

function filtersOf(
  { ns, name }: QueueKey,
  states: readonly DeliveryState[],
  now: Date,
): Filter<ElementDocument>[] {
  const of = { ns, queue: name };
  const [isReady, isScheduled] = [states.includes('ready'), states.includes('scheduled')];
  const filters: Filter<ElementDocument>[] = [];
  if (isReady && isScheduled) filters.push({ ...of, state: 'waiting' });
  else if (isReady) filters.push({ ...of, state: 'waiting', at: { $lte: now } });
  else if (isScheduled) filters.push({ ...of, state: 'waiting', at: { $gt: now } });
  if (states.includes('reserved')) filters.push({ ...of, state: 'reserved' });
  return filters;
}
