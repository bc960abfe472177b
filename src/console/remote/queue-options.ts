import { call, get, path } from '../api.ts';
import type { QueueNamed } from './live.ts';

/** Options of a queue, as `GET /q/:namespace/:queue/options` names them. */
export interface OptionsOfQueue {
  readonly lease?: number;
  readonly deadLetter?: { readonly maxTries: number; readonly queue?: string } | null;
  readonly retryDelay?: {
    readonly first: number;
    readonly factor?: number;
    readonly max?: number;
    readonly jitter?: number;
  } | null;
  readonly retention?: number | null;
  readonly ttl?: number | null;
  readonly maxElements?: number | null;
}

export type OptionKey = keyof OptionsOfQueue;

export interface OptionsReading {
  readonly stored: OptionsOfQueue;
  /** The pattern of the configuration that applies to the queue. */
  readonly pattern: string | null;
  readonly effective: Required<OptionsOfQueue>;
  readonly sources: Readonly<Record<OptionKey, 'stored' | 'pattern' | 'namespace'>>;
  /** Changes with what is stored. */
  readonly version: string;
}

function optionsPath({ ns, queue }: QueueNamed): string {
  return path('q', ns, queue, 'options');
}

export function readOptions(of: QueueNamed, signal: AbortSignal): Promise<OptionsReading> {
  return get<OptionsReading>(optionsPath(of), { signal });
}

/**
 * Replaces the stored options of a queue. Empty options delete them, so that the configuration's apply.
 * @param version of the options that the user saw
 * @throws ApiError `precondition-failed` if they have changed since
 */
export async function storeOptions(of: QueueNamed, options: OptionsOfQueue, version: string): Promise<void> {
  const headers = { 'if-match': `"${version}"` };
  if (Object.keys(options).length === 0) await call(optionsPath(of), { method: 'DELETE', headers });
  else await call(optionsPath(of), { method: 'PUT', headers, json: options });
}
