import type { Queue, SettleItem, SettleOutcome } from '../broker/queue.ts';
import { QuaysideError } from '../model/errors.ts';

/** Whether a call that failed with this error has certainly changed nothing. */
export function isCertain(failure: unknown): failure is QuaysideError {
  return (
    failure instanceof QuaysideError && failure.code !== 'outcome-unknown' && failure.code !== 'internal'
  );
}

/**
 * Maximum elements settled in one call. An engine executes a call as a whole while other calls wait: one call for a
 * window of 65,536 took Redis 1.2 s.
 */
export const MAX_SETTLED = 1000;

/**
 * Settles any number of elements in sequential calls of at most `MAX_SETTLED`.
 * @param onOutcome called with the outcome of each element
 * @param after the first call waits for this promise
 * @throws what `Queue.settleAll` throws. Of the elements that were not noted, the first `MAX_SETTLED` may be settled
 * unless the error `isCertain`; the others are not settled.
 */
export async function settleInSteps(
  queue: Queue,
  items: readonly SettleItem[],
  onOutcome: (item: SettleItem, outcome: SettleOutcome) => void,
  after: Promise<unknown> | null = null,
): Promise<void> {
  for (let from = 0; from < items.length; from += MAX_SETTLED) {
    const step = items.length <= MAX_SETTLED ? items : items.slice(from, from + MAX_SETTLED);
    const results = await queue.settleAll(step, from === 0 ? after : null);
    for (const [i, item] of step.entries()) onOutcome(item, results[i]?.outcome ?? 'not-found');
  }
}
