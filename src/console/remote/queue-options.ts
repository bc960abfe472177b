import type { OptionsRecord, ShownOptions } from '../../model/records.ts';
import { call, get, path } from '../api.ts';
import type { QueueNamed } from './live.ts';

function optionsPath({ ns, queue }: QueueNamed): string {
  return path('q', ns, queue, 'options');
}

export function readOptions(of: QueueNamed, signal: AbortSignal): Promise<OptionsRecord> {
  return get<OptionsRecord>(optionsPath(of), { signal });
}

/**
 * Replaces the stored options of a queue. Empty options delete them, so that the configuration's apply.
 * @param version of the options that the user saw
 * @throws ApiError `precondition-failed` if they have changed since
 */
export async function storeOptions(of: QueueNamed, options: ShownOptions, version: string): Promise<void> {
  const headers = { 'if-match': `"${version}"` };
  if (Object.keys(options).length === 0) await call(optionsPath(of), { method: 'DELETE', headers });
  else await call(optionsPath(of), { method: 'PUT', headers, json: options });
}
