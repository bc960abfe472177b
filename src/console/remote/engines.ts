import { get } from '../api.ts';
import type { OfNodes } from './node-lists.ts';

/** An engine as a node sees it. */
export interface EngineInfo {
  readonly node: string;
  readonly engine: string;
  readonly type: string;
  readonly namespaces: readonly string[];
  readonly state: 'healthy' | 'slow' | 'unavailable';
  readonly pingMs: number | null;
  readonly disk: {
    readonly fileBytes: number;
    readonly freeBytes: number;
    readonly minFreeBytes: number;
  } | null;
}

/** Reads the engines of the namespaces that the user may see, as seen by each node. */
export function readEngines(
  signal: AbortSignal,
): Promise<OfNodes & { readonly engines: readonly EngineInfo[] }> {
  return get('engines', { signal });
}
