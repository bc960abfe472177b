import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/malformed.ts';

/** How many of those that exist are named. */
const MAX_LISTED = 8;

/** Says that nothing has this id, and what does. */
export function unknown(kind: string, id: string, existing: Iterable<string>): string {
  const ids = [...existing];
  const listed = ids.slice(0, MAX_LISTED).map(quoteBytes).join(', ');
  const more = ids.length > MAX_LISTED ? `, and ${ids.length - MAX_LISTED} more` : '';
  return `There is no ${kind} ${quoteBytes(id)} in this session. ${ids.length === 0 ? 'It has none.' : `It has ${listed}${more}.`}`;
}

/** @throws QuaysideError `malformed-request` if it was not sent, or is empty */
export function needed(command: string, name: string, value: string | null): string {
  if (value !== null && value !== '') return value;
  const wrong = value === null ? 'is missing' : 'is empty';
  throw malformed(`The header ${name} of ${command} ${wrong}.`, name);
}
