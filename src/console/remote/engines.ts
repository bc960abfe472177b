import { get } from '../api.ts';

/** An engine as the node that answered sees it. */
export interface EngineInfo {
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

/** The engines of the namespaces that the user may see. */
export function readEngines(signal: AbortSignal): Promise<readonly EngineInfo[]> {
  return get<readonly EngineInfo[]>('engines', { signal });
}
