import { invalidParameter, QuaysideError } from '../model/errors.ts';
import type { QueueKey } from '../model/names.ts';
import { decodeNames, decodePart, invalidDestination } from '../session/destinations.ts';
import { parseGroup, parseMilliseconds } from '../session/values.ts';
import { quoteBytes } from '../util/byte-string.ts';
import { didYouMean } from '../util/did-you-mean.ts';
import { maskUrl } from '../util/mask.ts';
import { quote } from '../util/quote.ts';
import type { Terminus } from './core/link.ts';
import { ValueReader } from './values.ts';

/** The filter in which a source names the group to read as. */
const GROUP_FILTER = 'x-ks-group';

/** What the source of a link requests. */
export interface SourceRequest extends QueueAddress {
  /** As the client wrote it. */
  readonly address: string;
  /** Whether the link browses (`distribution-mode` `copy`). */
  readonly browses: boolean;
  /** Where the client named the group, for errors: the option of the address or the filter. */
  readonly groupParameter: string;
}

/**
 * Reads the source of a link on which the client receives or browses.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`, `not-supported`
 */
export function readSource(source: Terminus | null): SourceRequest {
  checkNotDynamic(source);
  const address = source?.address ?? '';
  const browses = source?.distributionMode === 'copy';
  const request = { address, browses, groupParameter: 'group', ...parseAddress(address) };
  if (browses && request.leaseMs !== null) {
    throw invalidParameter(
      'address',
      'A link with distribution-mode "copy" does not reserve. Omit the option lease.',
    );
  }
  const group = readGroup(source?.filter ?? null);
  if (group !== null && request.group !== null) {
    throw invalidParameter(
      'filter',
      `The address and the filter ${GROUP_FILTER} both name a group. Allowed: one of them.`,
    );
  }
  return group === null ? request : { ...request, group, groupParameter: GROUP_FILTER };
}

/** Reads the group from a source's filter. @param filter an encoded map, whose encoding was checked */
function readGroup(filter: Buffer | null): string | null {
  if (filter === null) return null;
  const reader = new ValueReader(filter);
  const count = reader.open('map') ?? 0;
  let group: string | null = null;
  for (let at = 0; at < count; at += 2) {
    const name = reader.simple().text;
    if (name !== GROUP_FILTER) {
      throw notSupported(
        'filter',
        `Unknown filter ${quoteBytes(name)}. Allowed: ${GROUP_FILTER}; to select, use an exchange.`,
      );
    }
    if (group !== null)
      throw notSupported('filter', `The filter ${GROUP_FILTER} is given twice. Allowed: once.`);
    group = parseGroup(GROUP_FILTER, reader.bare().text);
  }
  return group;
}

export function notSupported(parameter: string, message: string): QuaysideError {
  return new QuaysideError('not-supported', message, { parameter });
}

/** The parts of an address. */
interface QueueAddress extends QueueKey {
  /** Streams only: the group to read as; null if none is given. */
  readonly group: string | null;
  /** Lease of each reservation, ms; null: leases are extended while the link lives. */
  readonly leaseMs: number | null;
}

const ADDRESS_OPTIONS: readonly string[] = ['group', 'lease'];
const ADDRESS = /^(?:\/(?:q|queue)\/)?([^/?]+)\/([^/?]+)(?:\?(.*))?$/;
/** Some clients turn every address into a URL. Its host is that of the connection, and is ignored. */
const AUTHORITY = /^amqps?:\/\/[^/?#]*/i;

/**
 * Parses `<namespace>/<queue>`, `/q/<namespace>/<queue>` or `/queue/<namespace>/<queue>`, with percent-encoded names
 * and optional `?group=…&lease=…`. Each may be the path of an `amqp:` or `amqps:` URL.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`
 */
export function parseAddress(text: string): QueueAddress {
  const [, ns, name, options] = ADDRESS.exec(withoutAuthority(text)) ?? [];
  if (ns === undefined || name === undefined) {
    const allowed = 'Use <namespace>/<queue>, with a / or ? within a name as %2F or %3F.';
    throw invalidDestination(
      `The address ${quote(maskUrl(text))} does not name a queue. ${allowed}`,
      'address',
    );
  }
  return { ...decodeNames(ns, name, 'address'), ...readOptions(options ?? '') };
}

/** The address without the scheme and host of a URL; unchanged if it is not a URL. */
function withoutAuthority(text: string): string {
  const path = text.replace(AUTHORITY, '');
  if (path === text || /^\/(?:q|queue)\/[^/?]+\/[^/?]+/.test(path)) return path;
  return path.replace(/^\//, '');
}

function readOptions(text: string): { group: string | null; leaseMs: number | null } {
  const options = new Map<string, string>();
  for (const option of text === '' ? [] : text.split('&')) {
    const [name = '', ...values] = option.split('=');
    if (!ADDRESS_OPTIONS.includes(name)) {
      throw invalidParameter(
        'address',
        `Unknown option ${quote(name)} of an address.${didYouMean(name, ADDRESS_OPTIONS)} Allowed: ${ADDRESS_OPTIONS.join(', ')}.`,
      );
    }
    if (options.has(name))
      throw invalidParameter('address', `The option ${name} of an address is given twice. Allowed: once.`);
    options.set(name, decodePart(values.join('='), 'address'));
  }
  const group = options.get('group') ?? null;
  return {
    group: group === null ? null : parseGroup('group', Buffer.from(group).toString('latin1')),
    leaseMs: parseMilliseconds('lease', options.get('lease') ?? null, 1, null),
  };
}

/** @throws QuaysideError `not-supported` if a source or target requests a dynamically created queue */
export function checkNotDynamic(terminus: Terminus | null): void {
  if (terminus?.isDynamic === true) {
    throw notSupported('dynamic', 'dynamic is true, but queues are not created for links. Name a queue.');
  }
}

/** @throws QuaysideError `invalid-parameter` if the address has options, which would have no effect */
export function checkTarget(address: string): void {
  const { group, leaseMs } = parseAddress(address);
  if (group === null && leaseMs === null) return;
  throw invalidParameter(
    'address',
    `The address ${quote(maskUrl(address))} has options, which are allowed for receivers only. A message names its groups in x-ks-groups.`,
  );
}
