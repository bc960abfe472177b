import type { Delivery } from '../../../model/element.ts';
import type { QueueKey } from '../../../model/names.ts';
import type { Sending } from '../call.ts';
import { send } from '../changes.ts';
import { blank, contentFields } from '../documents.ts';
import { duplicatesOf } from '../errors.ts';
import type { Parts } from '../parts.ts';

/** Undoes pops: the documents wait again, as they did, whether they are deleted already or only marked. */
export class PutBack {
  readonly #parts: Parts;

  constructor(parts: Parts) {
    this.#parts = parts;
  }

  /** @throws what the driver throws, or Lost where there is no primary */
  async run(call: Sending, queue: QueueKey, deliveries: readonly Delivery[]): Promise<void> {
    const { store, known, policies, ops } = this.#parts;
    store.assertUp();
    const [now] = await Promise.all([store.time.recent(), known.make([queue])]);
    const isKept = policies.retentionMs(queue.ns) !== null;
    const statements = deliveries.map((delivery) => {
      const { id, group, matureAt, tries } = delivery;
      const { _id, state, ...fields } = blank(id, queue, group, ops.next());
      const at = new Date(matureAt);
      const set = { ...fields, ...contentFields(delivery), at, tries, ...(isKept && { born: now }) };
      // One that waits or is held again was put back before: making it anew then fails by its `_id`.
      const filter = { _id, state: 'gone' } as const;
      const update = { $set: { ...set, state }, $unset: { until: '' } } as const;
      return { updateOne: { filter, update, upsert: true } };
    });
    if (statements.length === 0) return;
    call.begin();
    try {
      await send(store, statements);
    } catch (error) {
      if (duplicatesOf(error) === null) throw error;
    }
  }
}
