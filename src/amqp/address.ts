import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkName } from '../model/names.ts';
import { groupOf, milliseconds } from '../session/values.ts';

/** What an address names, and what it asks for beside. */
export interface Address {
  readonly ns: string;
  readonly name: string;
  /** Streams only: the group to read as; null where none is given. */
  readonly group: string | null;
  /** How long each reservation lasts, ms; null: kept while the link lives. */
  readonly leaseMs: number | null;
}

const FORM = /^(?:\/(?:q|queue)\/)?([^/?]+)\/([^/?]+)(?:\?(.*))?$/;

/**
 * Reads `<namespace>/<queue>`, `/q/<namespace>/<queue>` or `/queue/<namespace>/<queue>`, each name
 * percent-decoded, with `?group=…&lease=…` behind it where wanted.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`
 */
export function parseAddress(text: string): Address {
  const [, ns, name, options] = FORM.exec(text) ?? [];
  if (ns === undefined || name === undefined) {
    throw invalid('An address is <namespace>/<queue>; write a / or ? within a name as %2F or %3F.');
  }
  return {
    ns: checkName('namespace', decoded(ns)),
    name: checkName('queue', decoded(name)),
    ...readOptions(options ?? ''),
  };
}

function readOptions(text: string): { group: string | null; leaseMs: number | null } {
  const options = new Map<string, string>();
  for (const option of text === '' ? [] : text.split('&')) {
    const [name = '', value = ''] = option.split('=');
    if (name !== 'group' && name !== 'lease') {
      throw invalidParameter('address', 'An address has the options group and lease.');
    }
    options.set(name, decoded(value));
  }
  const group = options.get('group') ?? null;
  return {
    group: group === null ? null : groupOf('group', Buffer.from(group).toString('latin1')),
    leaseMs: milliseconds('lease', options.get('lease') ?? null, 1, null),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    throw invalid('The address is not well percent-encoded UTF-8.');
  }
}

function invalid(message: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter: 'address' });
}
