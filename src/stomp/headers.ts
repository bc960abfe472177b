import { QuaysideError } from '../model/errors.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { ownString } from '../util/own-bytes.ts';
import { malformed } from './codec.ts';
import { STOMP_LIMITS } from './options.ts';

/**
 * Headers that have a meaning in SEND or MESSAGE. STOMP requires that receivers of the message get every other header
 * of a SEND: each is stored as an element header, and MESSAGE has it with and without the prefix.
 */
export const PROTOCOL_HEADERS: ReadonlySet<string> = new Set([
  'destination',
  'content-type',
  'content-length',
  'content-encoding',
  'receipt',
  'transaction',
  'subscription',
  'message-id',
  'ack',
  'x-ks-groups',
  'x-ks-group',
  'x-ks-ttl',
  'x-next-t',
  'x-delta-t',
  'x-tries',
  'x-mature',
]);

/** How many existing ids an error message lists. */
const MAX_LISTED = 8;

/** The error message for an unknown id; it lists the existing ones. */
export function unknownIdMessage(kind: string, id: string, existing: Iterable<string>): string {
  const ids = [...existing];
  const listed = ids.slice(0, MAX_LISTED).map(quoteBytes).join(', ');
  const more = ids.length > MAX_LISTED ? `, and ${ids.length - MAX_LISTED} more` : '';
  return `There is no ${kind} ${quoteBytes(id)} in this session. ${ids.length === 0 ? 'It has none.' : `It has ${listed}${more}.`}`;
}

/** The value of a required header. @throws QuaysideError `malformed-request` if it is missing or empty */
export function requireHeader(command: string, name: string, value: string | null): string {
  if (value !== null && value !== '') return value;
  const wrong = value === null ? 'is missing' : 'is empty';
  throw malformed(`The header ${name} of ${command} ${wrong}.`, name);
}

/**
 * A copy of the id that a client gives to a subscription or transaction, to keep it in memory.
 * @throws QuaysideError `headers-too-large`
 */
export function storedId(name: string, id: string): string {
  const { idBytes } = STOMP_LIMITS;
  if (id.length <= idBytes) return ownString(id);
  const message = `The ${name} has ${id.length} bytes. Allowed: at most ${idBytes}.`;
  throw new QuaysideError('headers-too-large', message, { parameter: name });
}
