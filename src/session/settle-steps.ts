import type { Queue, SettleItem, SettleOutcome } from '../broker/queue.ts';
import { QuaysideError } from '../model/errors.ts';

/** Whether what failed this way has changed nothing. */
export function isCertain(failure: unknown): failure is QuaysideError {
  return (
    failure instanceof QuaysideError && failure.code !== 'outcome-unknown' && failure.code !== 'internal'
  );
}

/**
 * Elements that are settled in one call. An engine executes it as a whole, and what others ask of it waits behind that:
 * one call for a window of 65,536 took Redis 1.2 s.
 */
export const MAX_SETTLED = 1000;

/**
 * Settles any number of elements, one call after the other.
 * @param note called for each element that a call settled, or refused to
 * @param after what it waits for first
 * @throws what a call does; the elements that were not noted may be settled, or not
 */
export async function settleInSteps(
  queue: Queue,
  items: readonly SettleItem[],
  note: (item: SettleItem, outcome: SettleOutcome) => void,
  after: Promise<unknown> | null = null,
): Promise<void> {
  for (let from = 0; from < items.length; from += MAX_SETTLED) {
    const step = items.length <= MAX_SETTLED ? items : items.slice(from, from + MAX_SETTLED);
    const results = await queue.settleAll(step, from === 0 ? after : null);
    for (const [i, item] of step.entries()) note(item, results[i]?.outcome ?? 'not-found');
  }
}
