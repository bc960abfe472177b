import type { SettleOutcome } from '../engine/storage.ts';
import type { ElementId, GroupName } from '../model/element.ts';
import { type ErrorCode, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { quote } from '../util/quote.ts';
import type { Outcome } from './meter.ts';

/** The outcomes of settling that did what was requested. */
type Settled = 'done' | 'dead-lettered';

/** Those that changed nothing. */
export type Refused = Exclude<SettleOutcome, Settled>;

export function isSettled(outcome: SettleOutcome): outcome is Settled {
  return outcome === 'done' || outcome === 'dead-lettered';
}

/** The code that a client is answered with, and that metrics count. */
const REFUSAL_CODES = {
  'lease-lost': 'lease-lost',
  'token-required': 'token-required',
  'not-reserved': 'not-reserved',
  'not-found': 'element-not-found',
  reserved: 'element-reserved',
} as const satisfies Record<Refused, ErrorCode>;

/** How metrics count an outcome. */
export function countedAs(outcome: SettleOutcome): Outcome {
  return isSettled(outcome) ? 'ok' : REFUSAL_CODES[outcome];
}

/** The error of a rejected settlement. `group`: where the element was looked for; null on a plain queue. */
export function refusalOf(
  outcome: Refused,
  { id, group }: { readonly id: ElementId; readonly group: GroupName | null },
  { name }: QueueKey,
): QuaysideError {
  return new QuaysideError(REFUSAL_CODES[outcome], sentence(outcome, id, group, name));
}

function sentence(outcome: Refused, id: ElementId, group: GroupName | null, queue: string): string {
  switch (outcome) {
    case 'lease-lost':
      return `The reservation of ${id} has ended, or the token is of an older one; reserve the element again.`;
    case 'token-required':
      return `Element ${id} is reserved by another user. Pass the token of the reservation.`;
    case 'not-reserved':
      return `Element ${id} is not reserved.`;
    case 'reserved':
      return `Element ${id} is reserved; commit it or roll it back.`;
    case 'not-found':
      return `There is no element ${id} in ${quote(queue)}${group === null ? '' : ` for group ${quote(group)}`}.`;
    default:
      return outcome satisfies never;
  }
}
