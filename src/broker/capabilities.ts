import type { StorageCapabilities } from '../engine/storage.ts';
import type { NewElement } from '../model/element.ts';
import { QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import type { Namespace } from './namespace.ts';

/** The capabilities of a queue (spec 2.2): those of the engine, and whether several groups read the same element. */
export interface Capabilities extends Omit<StorageCapabilities, 'expiry'> {
  readonly tape: boolean;
}

const MEANING: Readonly<Record<keyof Capabilities, string>> = {
  sched: 'a maturity in the future',
  reserve: 'reservations',
  pipeline: 'moves between queues',
  tape: 'consumer groups',
  remove: 'remove by id',
};

/**
 * @param parameter what requests it, for the error
 * @throws QuaysideError `not-supported` if the namespace lacks the capability
 */
export function requireCapability(
  namespace: Namespace,
  capability: keyof Capabilities,
  parameter?: string,
): void {
  if (!namespace.capabilities[capability]) throw notSupported(namespace, MEANING[capability], parameter);
}

/**
 * @param parameter what requests it, for the error
 * @throws QuaysideError `not-supported` if the namespace's engine stores neither expiries nor reasons
 */
export function requireExpiry(
  namespace: Namespace,
  parameter?: string,
  meaning = 'elements that expire',
): void {
  if (!namespace.hasExpiry) throw notSupported(namespace, meaning, parameter);
}

function notSupported({ name }: Namespace, meaning: string, parameter: string | undefined): QuaysideError {
  const message = `Queues of namespace ${name} do not support ${meaning}.`;
  return new QuaysideError('not-supported', message, parameter === undefined ? {} : { parameter });
}

type Timing = Pick<NewElement, 'matureAt' | 'delayMs' | 'expiresAt'>;

/**
 * @param names of the parameters, for the error
 * @throws QuaysideError `not-supported` if an element matures later or expires, and the namespace cannot store that
 */
export function requireTiming(
  namespace: Namespace,
  queue: QueueKey,
  { matureAt, delayMs, expiresAt = null }: Timing,
  names: { readonly [Time in keyof Timing]?: string } = {},
): void {
  if (!namespace.capabilities.sched) {
    const isLater = matureAt === null ? delayMs > 0 : matureAt > namespace.storage.now(queue);
    const parameter = matureAt === null ? names.delayMs : names.matureAt;
    if (isLater) requireCapability(namespace, 'sched', parameter);
  }
  if (expiresAt !== null) requireExpiry(namespace, names.expiresAt);
}
