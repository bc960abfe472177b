import type { EngineRow, NodesList } from '../../model/records.ts';
import { get } from '../api.ts';

/** Reads the engines of the namespaces that the user may see, as seen by each node. */
export function readEngines(
  signal: AbortSignal,
): Promise<NodesList & { readonly engines: readonly EngineRow[] }> {
  return get('engines', { signal });
}
