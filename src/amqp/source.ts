import { invalidParameter, QuaysideError } from '../model/errors.ts';
import { groupOf } from '../session/values.ts';
import { quoteBytes } from '../util/quote.ts';
import { type Address, parseAddress } from './address.ts';
import type { Terminus } from './core/link.ts';
import { ValueReader } from './core/reader.ts';
import { checkNotDynamic } from './link.ts';

/** The filter by which a source names the group to read as. */
const GROUP_FILTER = 'x-ks-group';

/** What the source of a link asks for. */
export interface SourceRequest extends Address {
  /** As the client wrote it. */
  readonly address: string;
  /** It looks at copies, and takes nothing (`distribution-mode` `copy`). */
  readonly browses: boolean;
}

/**
 * Reads the source of a link by which a client receives.
 * @throws QuaysideError `invalid-name`, `invalid-parameter`, `not-supported`
 */
export function readSource(source: Terminus | null): SourceRequest {
  checkNotDynamic(source);
  const address = source?.address ?? '';
  const browses = source?.distributionMode === 'copy';
  const request = { address, browses, ...parseAddress(address) };
  if (browses && request.leaseMs !== null) {
    throw invalidParameter(
      'address',
      'A link with distribution-mode "copy" reserves nothing: leave lease out.',
    );
  }
  const group = readGroup(source?.filter ?? null);
  return group === null ? request : { ...request, group };
}

/** @param filter a map, encoded, whose encoding was checked */
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
    group = groupOf(GROUP_FILTER, reader.bare().text);
  }
  return group;
}

function notSupported(parameter: string, message: string): QuaysideError {
  return new QuaysideError('not-supported', message, { parameter });
}
