import { textOfBytes } from '../model/byte-text.ts';
import { QuaysideError } from '../model/errors.ts';
import { checkName } from '../model/names.ts';

const FORM = /^\/(?:q|queue)\/([^/]+)\/([^/]+)$/;

/** The names of `/q/<namespace>/<queue>`, each percent-decoded. @throws QuaysideError `invalid-name` */
export function parseDestination(bytes: string): { ns: string; name: string } {
  const [, ns, name] = FORM.exec(bytes) ?? [];
  if (ns === undefined || name === undefined) {
    throw invalid('A destination is /q/<namespace>/<queue>; write a / within a name as %2F.');
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
  throw invalid('The destination is not well percent-encoded UTF-8.');
}

function invalid(message: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter: 'destination' });
}
