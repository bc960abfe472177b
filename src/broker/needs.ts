import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { Namespace } from './namespace.ts';
import type { Capabilities } from './record.ts';

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

/** @throws QuaysideError `not-supported` where an element is due later and the namespace cannot keep it */
export function needsFor(
  namespace: Namespace,
  { matureAt, delayMs }: Pick<NewElement, 'matureAt' | 'delayMs'>,
): void {
  if (matureAt !== null || delayMs > 0) needs(namespace, 'sched');
}
