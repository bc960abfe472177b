import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { checkName } from '../model/names.ts';
import { groupOf, milliseconds } from '../session/values.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';

/** What an address names, and what its options ask for. */
export interface Address {
  readonly ns: string;
  readonly name: string;
  /** Streams only: the group to read as; null if none is given. */
  readonly group: string | null;
  /** How long each reservation lasts, ms; null: kept while the link lives. */
  readonly leaseMs: number | null;
}

const OPTIONS: readonly string[] = ['group', 'lease'];
const FORM = /^(?:\/(?:q|queue)\/)?([^/?]+)\/([^/?]+)(?:\?(.*))?$/;
/** Some clients make a URL of each address. The host is that of the connection, so it is not looked at. */
const AUTHORITY = /^amqps?:\/\/[^/?#]*/i;

/**
 * Reads `<namespace>/<queue>`, `/q/<namespace>/<queue>` or `/queue/<namespace>/<queue>`, each name percent-decoded
 * and perhaps with `?group=…&lease=…` behind it. Each may be the path of an `amqp:` or `amqps:` URL.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`
 */
export function parseAddress(text: string): Address {
  const [, ns, name, options] = FORM.exec(withoutAuthority(text)) ?? [];
  if (ns === undefined || name === undefined) {
    throw invalid(
      `The address ${quote(maskUrl(text))} names no queue. Write <namespace>/<queue>, with a / or ? within a name as %2F or %3F.`,
    );
  }
  return {
    ns: checkName('namespace', decoded(ns)),
    name: checkName('queue', decoded(name)),
    ...readOptions(options ?? ''),
  };
}

/** The path of a URL as it is written alone; what is no URL, as it is. */
function withoutAuthority(text: string): string {
  const path = text.replace(AUTHORITY, '');
  if (path === text || /^\/(?:q|queue)\/[^/?]+\/[^/?]+/.test(path)) return path;
  return path.replace(/^\//, '');
}

function readOptions(text: string): { group: string | null; leaseMs: number | null } {
  const options = new Map<string, string>();
  for (const option of text === '' ? [] : text.split('&')) {
    const [name = '', value = ''] = option.split('=');
    if (!OPTIONS.includes(name)) {
      throw invalidParameter(
        'address',
        `Unknown option ${quote(name)} of an address.${didYouMean(name, OPTIONS)} Allowed: ${OPTIONS.join(', ')}.`,
      );
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
    throw invalid(`${quote(part)} in the address is not percent-encoded UTF-8. Write % as %25.`);
  }
}

function invalid(message: string): QuaysideError {
  return new QuaysideError('invalid-name', message, { parameter: 'address' });
}
