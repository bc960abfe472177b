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

/** @throws QuaysideError `not-supported` if the namespace's engine cannot do it */
export function needs(namespace: Namespace, capability: keyof Capabilities): void {
  if (namespace.capabilities[capability]) return;
  throw new QuaysideError(
    'not-supported',
    `Queues of namespace ${namespace.name} do not support ${MEANING[capability]}.`,
  );
}

/** @throws QuaysideError `not-supported` if the namespace's engine keeps neither expiries nor reasons */
export function needsExpiry(namespace: Namespace, meaning: string): void {
  if (namespace.hasExpiry) return;
  throw new QuaysideError(
    'not-supported',
    `Queues of namespace ${namespace.name} do not support ${meaning}.`,
  );
}

/** @throws QuaysideError `not-supported` if an element is due later, or expires, and the namespace cannot keep that */
export function needsFor(
  namespace: Namespace,
  { matureAt, delayMs, expiresAt = null }: Pick<NewElement, 'matureAt' | 'delayMs' | 'expiresAt'>,
): void {
  if (matureAt !== null || delayMs > 0) needs(namespace, 'sched');
  if (expiresAt !== null) needsExpiry(namespace, EXPIRY);
}

/** What `needsExpiry` calls an element's end. */
export const EXPIRY = 'elements that expire';
