import { NETWORK_HINT, NetworkError, Networks } from '../access/networks.ts';
import { ConfigError, pathText } from '../config/problem.ts';
import type { SourceOf } from './users.ts';

/** The networks that an option lists. @throws ConfigError that names the entry that is none */
export function networksOf(
  entries: readonly string[],
  path: readonly string[],
  sourceOf: SourceOf,
): Networks {
  try {
    return new Networks(entries);
  } catch (fault) {
    if (!(fault instanceof NetworkError)) throw fault;
    const at = [...path, String(fault.index)];
    const { message: problem } = fault;
    throw new ConfigError([{ source: sourceOf(at), path: pathText(at), problem, remedy: NETWORK_HINT }]);
  }
}
