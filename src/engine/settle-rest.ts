import { QuaysideError } from '../model/errors.ts';
import type { SettleItem, SettleResult } from './storage.ts';

// Settlements that an engine applies in several steps, since one step would block its store for too long.

/**
 * Settles the items that follow those of the first step, and returns the results of all.
 * @param results of the first step, to which those of the others are added
 * @param step settles some of the items that it is given, from the first one on, and returns their results
 * @throws QuaysideError `outcome-unknown` if a step fails after another one changed something
 */
export async function settleRest(
  items: readonly SettleItem[],
  results: SettleResult[],
  step: (items: readonly SettleItem[]) => Promise<SettleResult[]>,
): Promise<SettleResult[]> {
  try {
    while (results.length < items.length) results.push(...(await step(items.slice(results.length))));
    return results;
  } catch (cause) {
    throw partialFailure(results, cause);
  }
}

/**
 * The error of a settlement of which a part failed.
 * @param results of the other parts
 */
export function partialFailure(results: readonly SettleResult[], cause: unknown): unknown {
  if (!results.some(({ outcome }) => outcome === 'done' || outcome === 'dead-lettered')) return cause;
  return new QuaysideError('outcome-unknown', 'Only some of the items were certainly settled.', { cause });
}
