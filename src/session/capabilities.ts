import type { Namespace } from '../broker/namespace.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';

/** @throws QuaysideError `not-supported` where an element is due later and the namespace cannot keep it */
export function needSched(
  namespace: Namespace,
  { matureAt, delayMs }: Pick<NewElement, 'matureAt' | 'delayMs'>,
): void {
  if ((matureAt !== null || delayMs > 0) && !namespace.capabilities.sched) {
    throw notSupported(namespace, 'a maturity in the future');
  }
}

/** @throws QuaysideError `not-supported` where the namespace has no reservations */
export function needReserve(namespace: Namespace): void {
  if (!namespace.capabilities.reserve) throw notSupported(namespace, 'reservations');
}

function notSupported({ name }: Namespace, what: string): QuaysideError {
  return new QuaysideError('not-supported', `Queues of namespace ${name} do not support ${what}.`);
}
