import type { ExchangeDeclaration, ExchangeRecord } from '../../model/records.ts';
import { call, get, path } from '../api.ts';

export function exchangeDetails(id: string, signal: AbortSignal): Promise<ExchangeRecord> {
  return get<ExchangeRecord>(path('x', id), { signal });
}

export async function saveExchange(
  id: string,
  declared: ExchangeDeclaration,
  version: string | null,
): Promise<void> {
  const headers = version === null ? {} : { 'if-match': `"${version}"` };
  await call(path('x', id), { method: 'PUT', json: declared, headers });
}

export async function changeExchange(id: string, verb: 'start' | 'stop' | 'delete'): Promise<void> {
  if (verb === 'delete') await call(path('x', id), { method: 'DELETE' });
  else await call(path('x', id, verb), { method: 'POST' });
}
