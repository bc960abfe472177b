import { invalidParameter } from '../../model/errors.ts';
import type { Call } from '../call.ts';

/** Answers `value` as JSON with 200. */
export function answerJson(call: Call, value: unknown, headers?: readonly string[]): void {
  call.json(200, JSON.stringify(value), headers);
}

/** How a listing is asked for (decisions, "Listings and status"). @throws QuaysideError `invalid-parameter` */
export function listingForm({ array, tree }: { array: boolean; tree: boolean }): 'plain' | 'array' | 'tree' {
  if (array && tree) throw invalidParameter('tree', 'Ask for array or for tree, not for both.');
  if (array) return 'array';
  return tree ? 'tree' : 'plain';
}
