import { invalidParameter } from '../../model/errors.ts';
import type { Call } from '../call.ts';

/** Answers `value` as JSON with 200. */
export function answerJson(call: Call, value: unknown, headers?: readonly string[]): void {
  call.json(200, JSON.stringify(value), headers);
}

/** How a listing is asked for (decisions, "Listings and status"). @throws QuaysideError `invalid-parameter` */
export function listingForm({ array, tree }: { array: boolean; tree: boolean }): 'plain' | 'array' | 'tree' {
  if (array && tree) throw invalidParameter('tree', 'array and tree are both set. Set one of them.');
  if (array) return 'array';
  return tree ? 'tree' : 'plain';
}
