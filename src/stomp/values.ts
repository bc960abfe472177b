import { QuaysideError } from '../model/errors.ts';
import { checkName } from '../model/names.ts';
import { textOfBytes } from '../util/byte-text.ts';
import { quoteBytes } from '../util/quote.ts';
import { malformed } from './codec/frame.ts';

const FORM = /^\/(?:q|queue)\/([^/]+)\/([^/]+)$/;

/** The names of `/q/<namespace>/<queue>`, each percent-decoded. @throws QuaysideError `invalid-name` */
export function parseDestination(bytes: string): { ns: string; name: string } {
  const [, ns, name] = FORM.exec(bytes) ?? [];
  if (ns === undefined || name === undefined) {
    throw invalid(
      `The destination ${quoteBytes(bytes)} names no queue. Write /q/<namespace>/<queue>, with a / within a name as %2F.`,
    );
  }
  return { ns: checkName('namespace', decoded(ns)), name: checkName('queue', decoded(name)) };
}

function decoded(part: string): string {
  const text = textOfBytes(part);
  try {
    if (text !== null) return decodeURIComponent(text);
  } catch {
    // Said below, as for bytes that are not UTF-8.
  }
  throw invalid(`${quoteBytes(part)} in the destination is not percent-encoded UTF-8. Write % as %25.`);
}

function invalid(message: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter: 'destination' });
}

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
