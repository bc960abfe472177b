import type { Namespace } from '../../broker/namespace.ts';
import type { Capabilities } from '../../broker/record.ts';
import { invalidParameter, QuaysideError } from '../../model/errors.ts';
import type { Call } from '../call.ts';

const MEANING: Readonly<Record<keyof Capabilities, string>> = {
  sched: 'a maturity in the future',
  reserve: 'reservations',
  pipeline: 'moves between queues',
  tape: 'consumer groups',
  remove: 'remove by id',
};

/** @throws QuaysideError `not-supported` where the namespace's engine cannot do it */
export function needs(namespace: Namespace, capability: keyof Capabilities): void {
  if (namespace.capabilities[capability]) return;
  throw new QuaysideError(
    'not-supported',
    `Queues of namespace ${namespace.name} do not support ${MEANING[capability]}.`,
  );
}

/** Answers `value` as JSON with 200. */
export function answerJson(call: Call, value: unknown): void {
  call.json(200, JSON.stringify(value));
}

/** How a listing is asked for (decisions, "Listings and status"). @throws QuaysideError `invalid-parameter` */
export function listingForm({ array, tree }: { array: boolean; tree: boolean }): 'plain' | 'array' | 'tree' {
  if (array && tree) throw invalidParameter('tree', 'Ask for array or for tree, not for both.');
  if (array) return 'array';
  return tree ? 'tree' : 'plain';
}
